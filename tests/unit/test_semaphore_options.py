"""A semaphore before anything is sent: its name, limit and options, and uses that can't work."""

import asyncio
import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from relock import (
    AsyncClient,
    AsyncSemaphore,
    Client,
    ConfigurationError,
    NotOwnedError,
    Permit,
    Semaphore,
)
from relock._options import PermitArguments, check_limit, check_permits
from relock._owner import PermitKey, named, owner_of_permit
from relock.aio_semaphore import AsyncPermit

NOWHERE = "redis://127.0.0.1:1"  # no server listens there, and no test here sends a request
THREE = ["redis://127.0.0.1:1", "redis://127.0.0.1:2", "redis://127.0.0.1:3"]

Make = Callable[..., Semaphore | AsyncSemaphore]
each_door = pytest.mark.parametrize(
    "semaphore", [Client(NOWHERE).semaphore, AsyncClient(NOWHERE).semaphore], ids=["threads", "tasks"]
)


# Names, limits and options --------------------------------------------------------------------------------------------


@each_door
def test_a_limit_is_from_1_to_1000(semaphore: Make) -> None:
    assert [semaphore("a", limit).limit for limit in (1, 1000)] == [1, 1000]
    for limit in (0, -1, 1001):
        with pytest.raises(ConfigurationError, match=f"limit={limit}: it must be from 1 to 1000") as caught:
            semaphore("a", limit)
        assert caught.value.option == "limit"
    for wrong in (1.0, "1", None, True):
        with pytest.raises(TypeError, match="limit must be "):
            semaphore("a", wrong)


def test_an_operator_s_limit_may_be_0() -> None:
    assert check_limit(0, least=0) == 0
    with pytest.raises(ConfigurationError):
        check_limit(-1, least=0)


@pytest.mark.parametrize(("permits", "limit", "masters"), [(1, 1, 1), (8, 8, 1), (1, 8, 3)])
def test_permits_that_can_be_had(permits: int, limit: int, masters: int) -> None:
    assert check_permits(permits, limit, masters) == permits


@pytest.mark.parametrize(("permits", "limit", "masters"), [(0, 8, 1), (-1, 8, 1), (9, 8, 1), (2, 8, 3), (2, 1, 3)])
def test_permits_that_can_never_be_had(permits: int, limit: int, masters: int) -> None:
    """Redisson waits without an end for more permits than there are."""
    with pytest.raises(ConfigurationError) as caught:
        check_permits(permits, limit, masters)
    assert caught.value.option == "permits"


def test_several_permits_are_refused_with_several_masters_and_above_the_limit_before_anything_is_sent() -> None:
    with pytest.raises(ConfigurationError, match="with several masters"):
        Client(THREE, ttl=10).semaphore("a", 8).acquire(2)
    with pytest.raises(ConfigurationError, match="more would never be free"):
        Client(NOWHERE).semaphore("a", 8).acquire(9)
    for wrong in (1.0, True, "1", None):
        with pytest.raises(TypeError, match="permits must be "):
            Client(NOWHERE).semaphore("a", 8).acquire(wrong)  # type: ignore[arg-type]


@each_door
def test_options_are_judged_as_those_of_a_lock(semaphore: Make) -> None:
    values: list[dict[str, Any]] = [{"ttl": 0.01}, {"timeout": -2}, {"owner": ""}, {"max_hold": -1}]
    types: list[dict[str, Any]] = [{"ttl": "1"}, {"timeout": True}, {"owner": 5}, {"on_lost": 5}]
    for option in values:
        with pytest.raises(ConfigurationError) as caught:
            semaphore("a", 2, **option)
        assert caught.value.option == next(iter(option))
    for option in types:
        with pytest.raises(TypeError, match=next(iter(option))):
            semaphore("a", 2, **option)
    with pytest.raises(TypeError, match=r"semaphore\(\) has no such option as 'tll': did you mean 'ttl'"):
        semaphore("a", 2, tll=5)
    for name in ("", "}x", "\ud800"):
        with pytest.raises(ConfigurationError) as caught:
            semaphore(name, 2)
        assert caught.value.option == "name"


@each_door
def test_a_semaphore_has_the_options(semaphore: Make) -> None:
    made = semaphore("a", 5, ttl=7, fair=False, owner="job", timeout=5)
    options = made._spec.options
    assert (made.name, made.limit, made._spec.ttl) == ("a", 5, 7)
    assert (options.fair, options.owner, options.timeout) == (False, "job", 5)
    assert made._spec.keys.lock == b"lock:{a}:sem"


@pytest.mark.parametrize("door", [Client, AsyncClient])
def test_a_signature_shows_each_option(door: type[Client | AsyncClient]) -> None:
    shown = set(inspect.signature(door.semaphore).parameters)
    assert shown == {"self", "name", "limit", *get_type_hints(PermitArguments)}


def test_calls_judge_their_arguments() -> None:
    semaphore: Any = Client(NOWHERE).semaphore("a", 2)
    with pytest.raises(ValueError, match=r"timeout=-2"):
        semaphore.acquire(timeout=-2)
    with pytest.raises(ValueError, match="a non-blocking acquire takes no timeout"):
        semaphore.acquire(blocking=False, timeout=1)
    with pytest.raises(TypeError, match=r"acquire\(\) has no such option as 'timeuot'"):
        semaphore.acquire(timeuot=1)
    with pytest.raises(TypeError):
        semaphore.acquire(1, False)
    for limit, seconds, option in ((-1, 1, "limit"), (1001, 1, "limit"), (1, -1, "seconds"), (1, 1e10, "seconds")):
        with pytest.raises(ConfigurationError) as caught:
            semaphore.override(limit, seconds)
        assert caught.value.option == option
    with pytest.raises(TypeError):
        semaphore.override("1", 1)
    with pytest.raises(TypeError, match="owner must be a str"):
        semaphore.force_release(b"me:1")
    with pytest.raises(ConfigurationError) as caught:
        semaphore.force_release("me")
    assert caught.value.option == "owner"


# Owners of permits ----------------------------------------------------------------------------------------------------


def test_each_permit_has_a_key_of_its_own() -> None:
    job = named("job")
    first, second = owner_of_permit(job), owner_of_permit(job)
    assert first.key != second.key
    assert isinstance(first.key, PermitKey)
    assert first.key.owner == "job"
    assert (first.name, first.liveness, first.takes_turns) == ("job", None, False)
    assert first.key != job.key


def unheld() -> Permit:
    """Return a permit as it is after its release."""
    client = Client(NOWHERE)
    return Permit(client, client.semaphore("a", 2)._spec, owner_of_permit(named("job")), 1)


def test_a_permit_that_was_released_has_nothing() -> None:
    permit = unheld()
    assert [permit.owned(), permit.hold_count, permit.remaining(), permit.lost] == [False, 0, 0.0, False]
    assert [permit.token, permit.slot, permit.permits] == [None, None, 1]
    for use in (permit.release, permit.extend, permit.ensure):
        with pytest.raises(NotOwnedError, match="this permit of 'a' was released already") as caught:
            use()
        assert caught.value.lock == "a"


def test_reprs_show_local_state() -> None:
    client = Client("redis://user:hush@127.0.0.1:1")
    assert repr(client.semaphore("a", 2)).startswith("<relock.semaphore.Semaphore object name='a' limit=2 at 0x")
    assert repr(unheld()).startswith("<released relock.semaphore.Permit object name='a' permits=1 slot=None at 0x")


# Uses that can't work -------------------------------------------------------------------------------------------------


def test_async_with_says_that_it_is_for_threads() -> None:
    async def work() -> None:
        semaphore: Any = Client(NOWHERE).semaphore("a", 2)
        async with semaphore:
            raise AssertionError("no caller has a permit")

    with pytest.raises(TypeError, match=r"'a' is a semaphore for threads: use `with`.*relock.AsyncClient"):
        asyncio.run(work())


def test_with_says_that_it_is_for_tasks() -> None:
    semaphore: Any = AsyncClient(NOWHERE).semaphore("a", 2)
    with pytest.raises(TypeError, match=r"'a' is a semaphore for tasks: use `async with`.*relock.Client"), semaphore:
        raise AssertionError("no caller has a permit")


def test_an_acquire_of_tasks_without_await_is_no_permit() -> None:
    """A coroutine is true, so `if semaphore.acquire():` would run its body without a permit."""

    async def work() -> None:
        call = AsyncClient(NOWHERE).semaphore("a", 2).acquire()
        with pytest.raises(TypeError, match="await"):
            assert call
        call.close()

    asyncio.run(work())


def test_outside_a_task_no_caller_can_be_an_owner() -> None:
    with pytest.raises(RuntimeError, match=r"'a' was used outside a task of asyncio.*name an owner="):
        AsyncClient(NOWHERE).semaphore("a", 2).acquire()  # type: ignore[unused-coroutine]
    AsyncClient(NOWHERE).semaphore("a", 2, owner="job").acquire().close()


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_can_not_be_pickled(use: Callable[[object], object]) -> None:
    client, tasks = Client(NOWHERE), AsyncClient(NOWHERE)
    things = {
        "a Semaphore": client.semaphore("a", 2),
        "an AsyncSemaphore": tasks.semaphore("a", 2),
        "a Permit": unheld(),
        "an AsyncPermit": AsyncPermit(tasks, client.semaphore("a", 2)._spec, owner_of_permit(named("job")), 1),
    }
    for what, thing in things.items():
        with pytest.raises(TypeError, match=f"{what} can't be pickled"):
            use(thing)
