"""Several locks as one, before anything is sent: names, options, and uses that can't work."""

import asyncio
import copy
import inspect
import pickle
import threading
from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from relock import AsyncClient, AsyncMultiLock, Client, ConfigurationError, MultiLock, NotOwnedError
from relock._options import SharedArguments

NOWHERE = "redis://127.0.0.1:1"  # no server listens there, and no test here sends a request
SORTED = ["B", "a", "a-", "aa", "é", "\uffff", "\U0001f512"]  # by bytes: a sort by UTF-16 would swap the last two

Make = Callable[..., MultiLock | AsyncMultiLock]
each_door = pytest.mark.parametrize(
    "lock_all", [Client(NOWHERE).lock_all, AsyncClient(NOWHERE).lock_all], ids=["threads", "tasks"]
)


# Names ----------------------------------------------------------------------------------------------------------------


@each_door
@pytest.mark.parametrize("kind", [list, tuple, set, frozenset, dict.fromkeys, iter, reversed])
def test_names_are_taken_from_any_iterable_in_the_order_of_their_bytes(
    lock_all: Make, kind: Callable[[list[str]], Any]
) -> None:
    for names in (SORTED, SORTED[::-1]):
        assert lock_all(kind(names)).names == (*SORTED,)


@each_door
def test_each_name_is_taken_once(lock_all: Make) -> None:
    lock = lock_all(["b", "a", "b", "a", "a"])
    assert (lock.names, lock.name) == (("a", "b"), "a, b")


@each_door
def test_a_name_that_is_a_subclass_of_str_is_its_value(lock_all: Make) -> None:
    class Loud(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self.upper()

    lock = lock_all([Loud("b"), "b", "a"])
    assert lock.names == ("a", "b")
    assert {type(name) for name in lock.names} == {str}


@each_door
@pytest.mark.parametrize("names", ["orders", b"orders", "", 5, None, print], ids=repr)
def test_names_that_are_not_several_are_a_type_error(lock_all: Make, names: Any) -> None:
    with pytest.raises(TypeError, match=r"lock_all takes several names, such as a list of str, not \w+: ") as caught:
        lock_all(names)
    assert repr(names) in str(caught.value)


@each_door
@pytest.mark.parametrize("names", [["a", 5], ["a", None], [b"a"], [["a"]]], ids=repr)
def test_a_name_of_a_wrong_type_is_a_type_error(lock_all: Make, names: Any) -> None:
    with pytest.raises(TypeError, match="the name of a lock must be a str, not "):
        lock_all(names)


@each_door
@pytest.mark.parametrize("name", ["", "}x", "\ud800"], ids=ascii)
def test_a_name_that_can_not_work(lock_all: Make, name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        lock_all(["a", name])
    assert caught.value.option == "name"


@each_door
def test_there_are_from_1_to_64_different_names(lock_all: Make) -> None:
    many = [f"{number:02}" for number in range(65)]
    assert lock_all(["a"]).names == ("a",)
    assert lock_all(many[:64] * 2).names == (*many[:64],)
    for names in ([], many):
        with pytest.raises(ConfigurationError, match=f"names={len(names)}: it must be from 1 to 64 names") as caught:
            lock_all(names)
        assert caught.value.option == "names"


# Options --------------------------------------------------------------------------------------------------------------


@each_door
def test_options_are_judged_as_those_of_a_lock(lock_all: Make) -> None:
    values: list[dict[str, Any]] = [{"ttl": 0.01}, {"timeout": -2}, {"owner": ""}, {"max_hold": -1}]
    types: list[dict[str, Any]] = [{"ttl": "1"}, {"timeout": True}, {"owner": 5}, {"on_lost": 5}]
    for option in values:
        with pytest.raises(ConfigurationError) as caught:
            lock_all(["a", "b"], **option)
        assert caught.value.option == next(iter(option))
    for option in types:
        with pytest.raises(TypeError, match=next(iter(option))):
            lock_all(["a", "b"], **option)
    with pytest.raises(TypeError, match=r"lock_all\(\) has no such option as 'tll': did you mean 'ttl'"):
        lock_all(["a", "b"], tll=5)


def test_cancel_on_lost_must_be_a_bool() -> None:
    with pytest.raises(TypeError, match="cancel_on_lost"):
        AsyncClient(NOWHERE).lock_all(["a"], cancel_on_lost=1)  # type: ignore[arg-type]


def test_with_several_masters_no_ttl_may_be_above_the_guard() -> None:
    client = Client(["redis://a", "redis://b", "redis://c"], ttl=10)
    with pytest.raises(ConfigurationError, match="restart_guard"):
        client.lock_all(["a", "b"], ttl=20)
    with pytest.raises(ConfigurationError, match="restart_guard"):
        client.lock_all(["a", "b"]).extend(20)


def test_each_lock_has_the_options() -> None:
    lock = Client(NOWHERE).lock_all(["b", "a"], ttl=7, fair=False, owner="job", timeout=5)
    for member in lock._spec.members:
        assert (member.ttl, member.options.fair, member.options.owner, member.options.timeout) == (7, False, "job", 5)


@pytest.mark.parametrize("door", [Client, AsyncClient])
def test_a_signature_shows_each_option(door: type[Client | AsyncClient]) -> None:
    shown = set(inspect.signature(door.lock_all).parameters) - {"cancel_on_lost"}
    assert shown == {"self", "names", *get_type_hints(SharedArguments)}


# Uses that can't work -------------------------------------------------------------------------------------------------


def test_async_with_says_that_it_is_for_threads() -> None:
    async def work() -> None:
        lock: Any = Client(NOWHERE).lock_all(["b", "a"])
        async with lock:
            raise AssertionError("no caller has the locks")

    with pytest.raises(TypeError, match=r"'a, b' is a lock for threads: use `with`.*relock.AsyncClient"):
        asyncio.run(work())


def test_with_says_that_it_is_for_tasks() -> None:
    lock: Any = AsyncClient(NOWHERE).lock_all(["b", "a"])
    with pytest.raises(TypeError, match=r"'a, b' is a lock for tasks: use `async with`.*relock.Client"), lock:
        raise AssertionError("no caller has the locks")


@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_can_not_be_pickled(use: Callable[[object], object]) -> None:
    with pytest.raises(TypeError, match="a MultiLock can't be pickled"):
        use(Client(NOWHERE).lock_all(["a", "b"]))
    with pytest.raises(TypeError, match="an AsyncMultiLock can't be pickled"):
        use(AsyncClient(NOWHERE).lock_all(["a", "b"]))


OUTSIDE_A_TASK: list[Callable[[AsyncMultiLock], object]] = [
    AsyncMultiLock.acquire,
    AsyncMultiLock.release,
    AsyncMultiLock.extend,
    AsyncMultiLock.ensure,
    AsyncMultiLock.owned,
    AsyncMultiLock.remaining,
    lambda lock: lock.hold_count,
    lambda lock: lock.tokens,
    lambda lock: lock.lost,
]


@pytest.mark.parametrize("use", OUTSIDE_A_TASK)
def test_outside_a_task_no_caller_can_be_an_owner(use: Callable[[AsyncMultiLock], object]) -> None:
    with pytest.raises(RuntimeError, match="'a, b' was used outside a task of asyncio"):
        use(AsyncClient(NOWHERE).lock_all(["a", "b"]))


def test_a_condition_of_it_is_refused_when_it_is_made() -> None:
    """A wait would have to give up several locks, and take them again in their order."""
    lock: Any = Client(NOWHERE).lock_all(["a", "b"])
    with pytest.raises(TypeError, match=r"a Condition takes one lock, and 'a, b' are several: .*Client\.lock"):
        threading.Condition(lock)
    assert threading.Condition(Client(NOWHERE).lock("a"))  # type: ignore[arg-type]


def test_calls_judge_their_arguments() -> None:
    lock = Client(NOWHERE).lock_all(["a", "b"])
    with pytest.raises(ValueError, match=r"timeout=-2"):
        lock.acquire(timeout=-2)
    with pytest.raises(TypeError, match=r"acquire\(\) has no such option as 'timeuot'"):
        lock.acquire(timeuot=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        lock.ensure(-1.0)
    with pytest.raises(ConfigurationError):
        lock.extend(0.01)


# Without a hold -------------------------------------------------------------------------------------------------------


def test_without_a_hold_it_owns_nothing() -> None:
    lock = Client(NOWHERE).lock_all(["b", "a"])
    assert (lock.owned(), lock.hold_count, lock.remaining(), lock.lost) == (False, 0, 0.0, False)
    assert lock.tokens == {"a": None, "b": None}
    assert lock.token is None
    for use in (lock.release, lock.extend, lock.ensure):
        with pytest.raises(NotOwnedError, match="does not hold 'a'") as caught:
            use()
        assert caught.value.lock == "a"


def test_its_repr_shows_local_state() -> None:
    lock = Client("redis://user:hush@127.0.0.1:1").lock_all(["b", "a"])
    assert repr(lock).startswith("<relock.multi_lock.MultiLock object names=('a', 'b') locked=0 of 2 at 0x")
