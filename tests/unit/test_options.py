"""Bad input is refused before anything is sent, and the error names the value and a right one."""

import asyncio
import inspect
import math
import threading
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest
import redis
from attrs import evolve

import relock
from relock import AsyncClient, AsyncLock, Client, ConfigurationError, Event, Lock, Loss, RelockError
from relock._options import ClientArguments, ClientOptions, LockArguments

if TYPE_CHECKING:
    from relock.testing import Lab

NOWHERE = "redis://127.0.0.1:1"  # no server listens there, and no test here sends a request
NO_FLOAT = 10**400

WRONG_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"ttl": 0.049}, "0.05"),
    ({"ttl": 0}, "0.05"),
    ({"ttl": -1}, "0.05"),
    ({"ttl": math.nan}, "nan"),
    ({"ttl": math.inf}, "10 years"),
    ({"ttl": 11 * 366 * 86400}, "10 years"),
    ({"node_timeout": 0}, "more than 0"),
    ({"node_timeout": 11.0}, "third"),
    ({"node_timeout": 86_401.0, "ttl": 3e8}, "a day"),
    ({"max_hold": 0}, "more than 0"),
    ({"max_hold": NO_FLOAT}, "more than 0"),
    ({"patience": -0.1}, "0 or more"),
    ({"patience": math.nan}, "nan"),
    ({"patience": NO_FLOAT}, "0 or more"),
    ({"restart_guard": -1}, "no guard"),
    ({"restart_guard": math.nan}, "nan"),
    ({"drift_factor": 0.6}, "between"),
    ({"min_replicas": -1}, "0 or more"),
    ({"replica_timeout": 0}, "more than 0"),
    ({"replica_timeout": 0}, "more than 0"),
    ({"max_connections": 0}, "1 or more"),
    ({"max_connections": -1}, "1 or more"),
    ({"prefix": ""}, "braces"),
    ({"prefix": "a{b"}, "braces"),
    ({"prefix": "\ud800"}, "UTF-8"),
    ({"client_name": ""}, "non-empty"),
]


def shown(option: object) -> str:
    """Return the name of a case, without the four hundred digits that some values have."""
    return str(option)[:40]


WRONG_TYPES: list[dict[str, Any]] = [
    {"ttl": "30"},
    {"ttl": True},
    {"ttl": None},
    {"renew": 1},
    {"fair": "yes"},
    {"min_replicas": 1.5},
    {"min_replicas": False},
    {"max_connections": 64.0},
    {"max_connections": True},
    {"max_connections": None},
    {"prefix": b"lock"},
    {"client_name": 7},
    {"on_lost": "callback"},
    {"restart_guard": True},
    {"on_event": 1},
    {"unheard_of": 1},
]


@pytest.mark.parametrize(("option", "hint"), WRONG_VALUES, ids=shown)
def test_a_wrong_value_names_the_option_the_value_and_what_would_be_right(option: dict[str, Any], hint: str) -> None:
    name, value = next(iter(option.items()))
    with pytest.raises(ConfigurationError) as caught:
        Client(NOWHERE, **option)
    assert caught.value.option == name
    assert f"{name}={value!r}" in str(caught.value)
    assert hint in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, RelockError)


@pytest.mark.parametrize("option", WRONG_TYPES, ids=str)
def test_a_wrong_type_is_a_type_error(option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        Client(NOWHERE, **option)


@pytest.mark.parametrize(
    ("nodes", "hint"),
    [
        ([], "at least one"),
        ("http://localhost", "http://"),
        ("localhost:6379", "redis://"),
        ("redis+cluster://a:7000/5", "redis\\+cluster://host"),
        (["redis+cluster://a:7000", "redis://b"], "alone"),
        (["redis://a", "http://b"], "http://"),
    ],
)
def test_nodes_that_can_not_work(nodes: Any, hint: str) -> None:
    with pytest.raises(ConfigurationError, match=hint) as caught:
        Client(nodes)
    assert caught.value.option == "nodes"


@pytest.mark.parametrize("nodes", [None, 5, [5], b"redis://localhost"])
def test_nodes_of_a_wrong_type(nodes: Any) -> None:
    with pytest.raises(TypeError, match="nodes"):
        Client(nodes)


@pytest.mark.parametrize("name", ["", "}x", "\ud800"])
def test_names_that_can_not_work(name: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Client(NOWHERE).lock(name)
    assert caught.value.option == "name"


@pytest.mark.parametrize("name", [None, 5, b"a"])
def test_names_of_a_wrong_type(name: Any) -> None:
    with pytest.raises(TypeError, match="name"):
        Client(NOWHERE).lock(name)


@pytest.mark.parametrize("of", [Client.lock, Client.synchronized])
@pytest.mark.parametrize(
    "option",
    [
        {"ttl": 0.01},
        {"timeout": -2},
        {"timeout": math.nan},
        {"timeout": NO_FLOAT},
        {"owner": ""},
        {"max_hold": -1},
        {"max_hold": NO_FLOAT},
        {"at_least": -0.1},
        {"at_least": math.inf},
        {"at_least": math.nan},
        {"note": ""},
        {"note": " \n"},
        {"note": "\u00e4" * 101},
        {"note": "\ud800"},
    ],
    ids=shown,
)
def test_wrong_values_of_a_lock(of: Callable[..., object], option: dict[str, Any]) -> None:
    """Decorators raise when they decorate, and not only when the function is called."""
    with pytest.raises(ConfigurationError) as caught:
        of(Client(NOWHERE), "a", **option)
    assert caught.value.option == next(iter(option))


@pytest.mark.parametrize("of", [Client.lock, Client.synchronized])
@pytest.mark.parametrize(
    "option",
    [
        {"ttl": "1"},
        {"timeout": True},
        {"owner": 5},
        {"on_lost": 5},
        {"at_least": True},
        {"note": b"x"},
        {"unheard_of": 1},
    ],
    ids=str,
)
def test_wrong_types_of_a_lock(of: Callable[..., object], option: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(option))):
        of(Client(NOWHERE), "a", **option)


@pytest.mark.parametrize("seconds", [math.nan, -1.0, NO_FLOAT], ids=["nan", "negative", "no float"])
def test_ensure_judges_its_argument(seconds: float) -> None:
    with pytest.raises(ConfigurationError):
        Client(NOWHERE).lock("a").ensure(seconds)
    with pytest.raises(TypeError):
        Client(NOWHERE).lock("a").ensure("1")  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl", [0.01, math.inf, math.nan])
def test_extend_judges_its_argument(ttl: float) -> None:
    with pytest.raises(ConfigurationError):
        Client(NOWHERE).lock("a").extend(ttl)
    with pytest.raises(TypeError):
        Client(NOWHERE).lock("a").extend(True)


@pytest.mark.parametrize(("ttl", "expected"), [(30.0, 1.0), (5.0, 0.5), (0.5, 0.1), (0.05, 0.05 / 3), (600.0, 1.0)])
def test_the_node_timeout_is_a_tenth_of_the_ttl_within_bounds(ttl: float, expected: float) -> None:
    assert ClientOptions(ttl=ttl).node_timeout_for(ttl) == pytest.approx(expected)


def test_a_node_timeout_of_ones_own_is_at_most_a_third_of_a_locks_ttl() -> None:
    options = ClientOptions(node_timeout=2.0)
    assert options.node_timeout_for(30.0) == 2.0
    assert options.node_timeout_for(3.0) == 1.0


THREE = ["redis://a", "redis://b", "redis://c"]


@pytest.mark.parametrize(
    ("given", "masters", "seconds"),
    [
        ({}, 1, 0.0),
        ({}, 3, 30.0),
        ({"ttl": 7}, 2, 7.0),
        ({"restart_guard": 0}, 3, 0.0),
        ({"restart_guard": 60}, 1, 60.0),
        ({"restart_guard": 60}, 5, 60.0),
    ],
)
def test_the_guard_is_none_for_one_master_else_the_ttl(given: dict[str, Any], masters: int, seconds: float) -> None:
    options = ClientOptions(**given)
    assert options.guard_for(masters) == seconds
    assert evolve(options, restart_guard=seconds).guard_ms == pytest.approx(seconds * 1020, abs=1)


def test_a_client_knows_its_guard() -> None:
    assert Client(NOWHERE)._options.restart_guard == 0.0
    assert Client(THREE, ttl=20)._options.restart_guard == 20.0
    assert Client(THREE, ttl=20)._options.guard_ms == 20_400
    assert Client(THREE, restart_guard=0)._options.restart_guard == 0.0


def test_with_several_masters_no_ttl_may_be_above_the_guard() -> None:
    with pytest.raises(ConfigurationError, match=r"ttl=30\.0.*at most the restart_guard of 10 s") as caught:
        Client(THREE, restart_guard=10)
    assert caught.value.option == "ttl"
    client = Client(THREE, ttl=10, restart_guard=20)
    client.lock("a", ttl=20)
    with pytest.raises(ConfigurationError, match=r"ttl=20\.1") as caught:
        client.lock("a", ttl=20.1)
    assert caught.value.option == "ttl"
    with pytest.raises(ConfigurationError):
        Client(THREE).lock("a", ttl=31)


def test_with_several_masters_no_rest_may_be_longer_than_the_guard() -> None:
    client = Client(THREE, ttl=10, restart_guard=20)
    client.lock("a", at_least=20)
    with pytest.raises(ConfigurationError, match=r"at_least=20\.1.*at most the restart_guard of 20 s") as caught:
        client.synchronized("a", at_least=20.1)
    assert caught.value.option == "at_least"


def test_without_a_guard_or_with_one_master_any_ttl_will_do_and_any_rest() -> None:
    Client(THREE, restart_guard=0).lock("a", ttl=3600, at_least=7200)
    Client(NOWHERE, ttl=10, restart_guard=10).lock("a", ttl=3600, at_least=7200)


@pytest.mark.parametrize("door", [Client, AsyncClient])
def test_only_a_lock_of_one_name_and_one_owner_rests(door: type[Any]) -> None:
    client = door(NOWHERE)
    for make in (partial(client.rwlock, "a"), partial(client.lock_all, ["a"]), partial(client.semaphore, "a", 2)):
        with pytest.raises(TypeError, match=r"no such option as 'at_least': it is an option of lock\(\)"):
            make(at_least=5)


@pytest.mark.parametrize("door", [Client, AsyncClient])
def test_all_locks_can_have_notes_and_permits_have_none(door: type[Any]) -> None:
    client = door(NOWHERE)
    for make in (partial(client.lock, "a"), partial(client.rwlock, "a"), partial(client.lock_all, ["a"])):
        make(note="\u00e4" * 100)
    with pytest.raises(TypeError, match=r"no such option as 'note': it is an option of lock\(\)"):
        client.semaphore("a", 2, note="why")


def test_passwords_reach_no_repr_and_no_error() -> None:
    client = Client("redis://user:hush@127.0.0.1:1/2")
    assert repr(client) == "<open relock.Client of redis://127.0.0.1:1/2>"
    for texts in (repr(client), repr(client._nodes), repr(client.statistics()), repr(client.lock("a"))):
        assert "hush" not in texts
    for url in ("redis://user:hush@127.0.0.1:notaport", "redis://:hu/sh@host", "redis://:hu#sh@host", "redis://[::1"):
        with pytest.raises(ConfigurationError) as caught:
            Client(url)
        assert "hu" not in str(caught.value)


def test_a_client_of_redis_py_is_taken_with_its_own_settings_but_never_resends() -> None:
    given = redis.Redis(host="127.0.0.1", port=1, db=3, password="hush", decode_responses=True)
    (node,) = Client(given)._nodes
    assert node.address == "redis://127.0.0.1:1/3"
    connection: Any = node.raw_connection(0.5)
    assert connection.password == "hush"
    assert connection.retry._retries == 0
    assert connection.encoder.decode_responses is False


# The knowledge of type checkers ---------------------------------------------------------------------------------------


def test_a_type_checker_knows_each_option_of_a_client_as_it_is() -> None:
    options = {attribute.name: attribute.type for attribute in ClientOptions.__attrs_attrs__}
    assert get_type_hints(ClientArguments) == options
    assert not ClientArguments.__required_keys__, "each has a default"


def test_a_type_checker_knows_each_option_of_synchronized_as_one_of_lock() -> None:
    keywords = [one for one in inspect.signature(Client.lock).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert get_type_hints(LockArguments) == {one.name: one.annotation for one in keywords}


SHOWN: dict[Callable[..., object], set[str]] = {
    Client: {"nodes", *get_type_hints(ClientArguments)},
    AsyncClient: {"nodes", "stall_limit", *get_type_hints(ClientArguments)},
    Client.lock: {"self", "name", *get_type_hints(LockArguments)},
    AsyncClient.lock: {"self", "name", "cancel_on_lost", *get_type_hints(LockArguments)},
    Lock.acquire: {"self", "blocking", "timeout"},
    AsyncLock.acquire: {"self", "blocking", "timeout"},
}


@pytest.mark.parametrize("function", SHOWN, ids=lambda function: function.__qualname__)
def test_a_signature_shows_each_option_and_nothing_else(function: Callable[..., object]) -> None:
    """Signatures appear so in `help` and in completion at a prompt."""
    assert set(inspect.signature(function).parameters) == SHOWN[function]


def test_a_signature_shows_the_default_of_each_option() -> None:
    shown = inspect.signature(Client).parameters
    defaults = ClientOptions()
    assert {name: shown[name].default for name in get_type_hints(ClientArguments)} == {
        name: getattr(defaults, name) for name in get_type_hints(ClientArguments)
    }


def test_calls_are_checked_by_it() -> None:
    """Type checkers check more than types of arguments: the names of options are in the signatures."""
    for function, arguments in ((Client.__init__, ClientArguments), (Client.synchronized, LockArguments)):
        hints = get_type_hints(function)
        assert any(getattr(hint, "__args__", None) == (arguments,) for hint in hints.values()), function


# Other libraries' names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keyword", "says"),
    [
        ("tll", "did you mean 'ttl'"),
        ("restart_gaurd", "did you mean 'restart_guard'"),
        ("owner", r"an option of lock\(\)"),
        ("timeout", r"timeout= of lock\(\) or acquire\(\), and the lease.* is ttl="),
        ("blocking_timeout", r"timeout= of lock\(\)"),
        ("blocking", r"blocking= of acquire\(\)"),
        ("sleep", "woken"),
        ("thread_local", "owner="),
        ("id", "owner="),
        ("expire", "the lease is ttl="),
        ("auto_renewal", "renew="),
        ("something_else", "there are ttl, renew, fair"),
    ],
)
def test_a_keyword_that_a_client_has_not_says_what_is_meant(keyword: str, says: str) -> None:
    given: dict[str, Any] = {keyword: 1}
    with pytest.raises(TypeError, match=rf"^Client\(\) has no such option as '{keyword}': .*{says}"):
        Client(NOWHERE, **given)


def synchronized(client: Client, name: str, **options: Any) -> object:
    return relock.synchronized(lambda: client, name, **options)


@pytest.mark.parametrize("of", [Client.lock, Client.synchronized, synchronized])
@pytest.mark.parametrize(
    ("keyword", "says"),
    [
        ("tll", "did you mean 'ttl'"),
        ("timeuot", "did you mean 'timeout'"),
        ("patience", r"an option of Client\(\)"),
        ("blocking_timeout", r"timeout= of lock\(\)"),
        ("sleep", "woken"),
        ("thread_local", "owner="),
        ("id", "owner="),
        ("expire", "the lease is ttl="),
        ("auto_renewal", "renew="),
    ],
)
def test_a_keyword_that_a_lock_has_not_says_what_is_meant(of: Callable[..., object], keyword: str, says: str) -> None:
    with pytest.raises(TypeError, match=rf"^\w+\(\) has no such option as '{keyword}': .*{says}"):
        of(Client(NOWHERE), "a", **{keyword: 1})


@pytest.mark.parametrize(
    ("keyword", "says"),
    [
        ("timeuot", "did you mean 'timeout'"),
        ("ttl", r"an option of lock\(\)"),
        ("blocking_timeout", r"timeout= of lock\(\) or acquire\(\)"),
        ("sleep", "woken"),
    ],
)
def test_a_keyword_that_acquire_has_not_says_what_is_meant(keyword: str, says: str) -> None:
    given: dict[str, Any] = {keyword: 1}
    with pytest.raises(TypeError, match=rf"^acquire\(\) has no such option as '{keyword}': .*{says}"):
        Client(NOWHERE).lock("a").acquire(**given)


def test_all_wrong_keywords_are_named_at_once() -> None:
    given: dict[str, Any] = {"expire": 1, "tll": 2}
    with pytest.raises(TypeError, match=r"'expire'.*; 'tll'"):
        Client(NOWHERE, **given)


def test_async_with_says_that_a_lock_is_for_threads() -> None:
    async def work() -> None:
        lock: Any = Client(NOWHERE).lock("a")
        async with lock:
            raise AssertionError("nobody has the lock")

    with pytest.raises(TypeError, match=r"'a' is a lock for threads: use `with`.*relock.AsyncClient"):
        asyncio.run(work())


# The arguments of acquire ---------------------------------------------------------------------------------------------

NEARLY = threading.TIMEOUT_MAX * (1 - 1e-9)
TIMEOUTS: list[Any] = [
    *(-1, -1.0, -1.0 - 1e-12, -0.9999999999, 0, -0.0, 0.5, 1, 10**9, True, NEARLY, threading.TIMEOUT_MAX),
    *(-0.5, -1e-9, -1.5, -2, -math.inf, math.inf, math.nan, -1e18, 1e18, 1e100, -1e100, threading.TIMEOUT_MAX + 1),
    *(2**31, 2**62, 2**63, -(2**70), NO_FLOAT, -NO_FLOAT, 10**5000),
    *(None, "1", b"1", [1], Decimal(1), Fraction(1, 2), Fraction(-1)),
]


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("timeout", TIMEOUTS, ids=lambda timeout: "huge" if timeout == 10**5000 else shown(timeout))
def test_acquire_judges_its_arguments_as_an_rlock_does(lab: "Lab", blocking: bool, timeout: Any) -> None:
    """A fresh RLock is the judge, whatever this Python's version."""
    error = None
    try:
        assert threading.RLock().acquire(blocking, timeout)
    except Exception as raised:
        error = type(raised)
    lock = lab.client().lock("a")
    if error is None:
        assert lab.run(lambda: lock.acquire(blocking, timeout)) == [True]
    else:
        with pytest.raises(error) as caught:
            lab.run(lambda: lock.acquire(blocking, timeout))
        assert caught.type is error
        assert "timeout" in str(caught.value)


@pytest.mark.parametrize("timeout", [-1, -1.0, -0.9999999999])
def test_what_an_rlock_takes_for_minus_one_waits_as_long_as_it_takes(lab: "Lab", timeout: float) -> None:
    client = lab.client()
    holder, lock = client.lock("a", owner="holder"), client.lock("a")

    def hold() -> None:
        with holder:
            lab.sleep(100)

    def wait() -> tuple[bool, bool]:
        lab.sleep(1)
        return lock.acquire(False, timeout), lock.acquire(timeout=timeout)

    assert lab.run(hold, wait) == [None, (False, True)]
    assert lab.now > 100


def test_no_timeout_at_all_says_how_to_wait_as_long_as_it_takes() -> None:
    lock: Any = Client(NOWHERE).lock("a")
    with pytest.raises(TypeError, match=r"timeout=None.*-1"):
        lock.acquire(timeout=None)


def test_so_many_replicas_as_a_server_counts_are_taken() -> None:
    assert Client(NOWHERE, min_replicas=2**31 - 1)
    with pytest.raises(ConfigurationError, match="at most 2147483647") as caught:
        Client(NOWHERE, min_replicas=2**31)
    assert caught.value.option == "min_replicas"


def test_type_checkers_know_what_a_callback_is_called_with_and_each_hand_off() -> None:
    hints = get_type_hints(ClientArguments)
    assert hints["on_lost"] == Callable[[Loss], object] | None
    assert hints["on_event"] == Callable[[Event], object] | None
    assert get_args(hints["handoff"]) == ("grant", "wake")
    assert get_type_hints(LockArguments)["on_lost"] == hints["on_lost"]
    assert get_type_hints(Lock.ensure)["return"] is int
