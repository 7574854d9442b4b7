"""A read-write lock before anything is sent: its name and options, and uses that can't work."""

import asyncio
import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from relock import AsyncClient, AsyncRWLock, Client, ConfigurationError, NotOwnedError, RWLock, UpgradeError
from relock._keys import lock_keys, read_keys
from relock._options import SharedArguments

NOWHERE = "redis://127.0.0.1:1"  # no server listens there, and no test here sends a request

Make = Callable[..., RWLock | AsyncRWLock]
each_door = pytest.mark.parametrize(
    "rwlock", [Client(NOWHERE).rwlock, AsyncClient(NOWHERE).rwlock], ids=["threads", "tasks"]
)


@each_door
def test_both_sides_have_the_name_the_keys_and_the_options(rwlock: Make) -> None:
    made = rwlock("a", ttl=7, fair=False, owner="job", timeout=5)
    assert (made.name, made.read.name, made.write.name) == ("a", "a", "a")
    assert made.write._spec.keys == lock_keys("lock", "a")
    assert made.read._spec.keys == read_keys("lock", "a")
    assert (made.write._spec.is_shared, made.read._spec.is_shared) == (False, True)
    for lock in (made.read, made.write):
        options = lock._spec.options
        assert (lock._spec.ttl, options.fair, options.owner, options.timeout) == (7, False, "job", 5)


@each_door
def test_options_are_judged_as_those_of_a_lock(rwlock: Make) -> None:
    values: list[dict[str, Any]] = [{"ttl": 0.01}, {"timeout": -2}, {"owner": ""}, {"max_hold": -1}]
    types: list[dict[str, Any]] = [{"ttl": "1"}, {"timeout": True}, {"owner": 5}, {"on_lost": 5}]
    for option in values:
        with pytest.raises(ConfigurationError) as caught:
            rwlock("a", **option)
        assert caught.value.option == next(iter(option))
    for option in types:
        with pytest.raises(TypeError, match=next(iter(option))):
            rwlock("a", **option)
    with pytest.raises(TypeError, match=r"rwlock\(\) has no such option as 'tll': did you mean 'ttl'"):
        rwlock("a", tll=5)
    for name in ("", "}x", "\ud800"):
        with pytest.raises(ConfigurationError) as caught:
            rwlock(name)
        assert caught.value.option == "name"
    with pytest.raises(TypeError):
        rwlock(5)


def test_only_tasks_have_cancel_on_lost() -> None:
    with pytest.raises(TypeError, match="cancel_on_lost"):
        AsyncClient(NOWHERE).rwlock("a", cancel_on_lost="yes")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cancel_on_lost"):
        Client(NOWHERE).rwlock("a", cancel_on_lost=True)  # type: ignore[call-arg]


@pytest.mark.parametrize(("door", "more"), [(Client, set()), (AsyncClient, {"cancel_on_lost"})])
def test_a_signature_shows_each_option(door: type[Client | AsyncClient], more: set[str]) -> None:
    shown = set(inspect.signature(door.rwlock).parameters)
    assert shown == {"self", "name", *more, *get_type_hints(SharedArguments)}


@each_door
def test_a_side_that_is_not_held_has_nothing(rwlock: Make) -> None:
    made = rwlock("a", owner="job")
    for lock in (made.read, made.write):
        assert (lock.owned(), lock.hold_count, lock.remaining(), lock.lost, lock.token) == (False, 0, 0.0, False, None)


def test_a_release_without_a_hold_says_of_which_side() -> None:
    made = Client(NOWHERE).rwlock("a", owner="job")
    with pytest.raises(NotOwnedError, match="owner='job' does not hold 'a' as a reader"):
        made.read.release()
    with pytest.raises(NotOwnedError, match="owner='job' does not hold 'a':"):
        made.write.release()
    with pytest.raises(NotOwnedError, match="owner='job' does not hold 'a':"):
        made.write.downgrade()


@each_door
def test_a_repr_shows_local_state(rwlock: Make) -> None:
    shown = repr(rwlock("a"))
    kind = "AsyncR" if "Async" in shown else "R"
    assert shown.startswith(f"<relock.{kind}WLock object name='a' read=<unlocked relock.")
    assert " write=<unlocked relock." in shown


def test_an_upgrade_error_is_a_runtime_error_and_names_the_lock() -> None:
    error = pickle.loads(pickle.dumps(UpgradeError("no", lock="a")))
    assert (str(error), error.lock) == ("no", "a")
    assert isinstance(error, RuntimeError)


# Uses that can't work -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["read", "write"])
def test_the_other_kind_of_with_says_which_one_it_is_for(side: str) -> None:
    async def work() -> None:
        lock: Any = getattr(Client(NOWHERE).rwlock("a"), side)
        async with lock:
            raise AssertionError("no caller has the lock")

    with pytest.raises(TypeError, match=r"'a' is a lock for threads: use `with`.*relock.AsyncClient"):
        asyncio.run(work())
    lock: Any = getattr(AsyncClient(NOWHERE).rwlock("a"), side)
    with pytest.raises(TypeError, match=r"'a' is a lock for tasks: use `async with`.*relock.Client"), lock:
        raise AssertionError("no caller has the lock")


@each_door
def test_the_whole_is_no_block(rwlock: Make) -> None:
    made: Any = rwlock("a")
    with pytest.raises(TypeError), made:
        raise AssertionError("no caller has the lock")


def test_a_call_of_tasks_without_await_is_not_true() -> None:
    """A coroutine is true, so `if lock.read.acquire():` would run its body without the lock."""

    async def work() -> None:
        made = AsyncClient(NOWHERE).rwlock("a")
        for call in (made.read.acquire(), made.write.downgrade()):
            with pytest.raises(TypeError, match="await"):
                assert call
            call.close()

    asyncio.run(work())


@pytest.mark.parametrize("side", ["read", "write"])
def test_outside_a_task_no_caller_can_be_an_owner(side: str) -> None:
    with pytest.raises(RuntimeError, match=r"'a' was used outside a task of asyncio.*name an owner="):
        getattr(AsyncClient(NOWHERE).rwlock("a"), side).acquire()
    with pytest.raises(RuntimeError, match=r"'a' was used outside a task of asyncio.*name an owner="):
        AsyncClient(NOWHERE).rwlock("a").write.downgrade()  # type: ignore[unused-coroutine]


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_can_not_be_pickled(use: Callable[[object], object]) -> None:
    threads, tasks = Client(NOWHERE).rwlock("a"), AsyncClient(NOWHERE).rwlock("a")
    things = {"an RWLock": threads, "an AsyncRWLock": tasks, "a Lock": threads.read, "an AsyncLock": tasks.write}
    for what, thing in things.items():
        with pytest.raises(TypeError, match=f"{what} can't be pickled"):
            use(thing)
