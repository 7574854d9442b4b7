"""`synchronized`: it refuses functions whose body would run without the lock, and finds its client."""

import asyncio
import contextlib
import functools
import gc
import types
import unittest.mock
import warnings
import xmlrpc.client
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import relock
from relock import AcquireTimeoutError, AsyncClient, Client, ConfigurationError, RelockWarning

if TYPE_CHECKING:
    from relock.testing import Lab

NOWHERE = "redis://127.0.0.1:1"


class Proxy:
    """Proxy that claims to wrap an object which claims the same, without end."""

    @property
    def __wrapped__(self) -> "Proxy":
        return Proxy()

    def __call__(self) -> int:
        return 7


def both(client: Client, template: str) -> list[Callable[[Any], Any]]:
    """Return the decorator of a client, and the one that gets its client later."""
    return [client.synchronized(template), relock.synchronized(lambda: client, template)]


# Refused when it decorates --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def context() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def async_context() -> Any:
    yield


@functools.wraps(context)
def around() -> Any:
    return context()


class Called:
    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def method(self) -> Iterator[None]:
        yield


CONTEXTS = [context, async_context, around, functools.partial(context), Called(), Called().method]


@pytest.mark.parametrize("function", CONTEXTS, ids=lambda function: type(function).__name__)
def test_a_context_manager_is_refused_because_its_body_would_run_without_the_lock(function: Any) -> None:
    for decorate in both(Client(NOWHERE), "a"):
        with pytest.raises(TypeError, match=r"is a context manager.*with client.lock"):
            decorate(function)


def test_what_uses_a_context_manager_is_not(lab: "Lab") -> None:
    def work() -> bool:
        with context():
            return client.lock("a").owned()

    client = lab.client()
    for decorate in both(client, "a"):
        assert lab.run(decorate(work)) == [True]


# Refused when it is called --------------------------------------------------------------------------------------------


def test_a_plain_function_that_returns_a_coroutine_is_refused_when_it_is_called(lab: "Lab") -> None:
    """The coroutine never runs, and Python does not warn that it was never awaited."""
    ran = []

    async def body() -> None:
        ran.append(1)

    @functools.wraps(body)
    def around() -> Any:
        return body()

    client = lab.client()

    def call(function: Callable[[], Any]) -> None:
        with pytest.raises(TypeError, match=r"returned a coroutine.*without the lock"):
            function()
        assert client.info("a").owner is None

    for decorate in both(client, "a"):
        for function in (around, functools.partial(around)):
            lab.run(functools.partial(call, decorate(function)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()
    assert not ran


def test_a_plain_function_that_returns_a_task_is_refused_when_it_is_called(lab: "Lab") -> None:
    client, ran = lab.client(), []

    async def body() -> None:
        ran.append(1)

    def begin() -> Any:
        return asyncio.get_running_loop().create_task(body())

    async def main() -> None:
        for decorate in both(client, "a"):
            with pytest.raises(TypeError, match=r"returned a task or future.*without the lock: it is being cancelled"):
                decorate(begin)()
        await asyncio.sleep(0)

    lab.run(lambda: asyncio.run(main()))
    assert not ran


def test_a_task_or_future_that_is_done_is_a_result(lab: "Lab") -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        future.set_result(7)
        for decorate in both(client, "a"):
            assert await decorate(lambda: future)() == 7

    client = lab.client()
    lab.run(lambda: asyncio.run(main()))


class Awaitable:
    """Awaitable that another library may return: its caller must await it, and its ``close`` is its own affair."""

    def __await__(self) -> Iterator[None]:
        raise AssertionError("nobody awaits it")

    def close(self) -> None:
        raise AssertionError("nobody closes it")


@types.coroutine
def old_coroutine() -> Iterator[None]:
    yield


@pytest.mark.parametrize(("make", "kind"), [(Awaitable, "an awaitable"), (old_coroutine, "a coroutine")])
def test_whatever_is_to_be_awaited_is_refused_when_it_is_returned(
    lab: "Lab", make: Callable[[], object], kind: str
) -> None:
    def give() -> object:
        return make()

    def call(function: Callable[[], Any]) -> None:
        with pytest.raises(TypeError, match=f"returned {kind}, .*without the lock"):
            function()

    for decorate in both(lab.client(), "a"):
        lab.run(functools.partial(call, decorate(give)))


def test_a_coroutine_that_has_begun_is_not_closed(lab: "Lab") -> None:
    """Closing such a coroutine would run its ``finally`` blocks, and it belongs to other code."""
    ended = []

    async def body() -> None:
        try:
            await old_coroutine()
        finally:
            ended.append(1)

    begun = body()
    begun.send(None)

    def call(function: Callable[[], Any]) -> None:
        with pytest.raises(TypeError, match=r"returned a coroutine, .*without the lock$"):
            function()

    for decorate in both(lab.client(), "a"):
        lab.run(functools.partial(call, decorate(lambda: begun)))
    assert not ended
    begun.close()
    assert ended


def test_what_wraps_something_without_end_can_be_decorated(lab: "Lab") -> None:
    def turn() -> int:
        return 7

    turn.__wrapped__ = turn  # type: ignore[attr-defined]
    for decorate in both(lab.client(), "a"):
        for function in (turn, Proxy()):
            assert lab.run(decorate(function)) == [7]


def test_a_proxy_that_makes_up_whatever_it_is_asked_for_can_be_decorated(lab: "Lab") -> None:
    """Proxies invent even a name that is no str, and an object that they wrap."""
    call: Any = unittest.mock.call.foo
    for decorate in both(lab.client(), "a"):
        assert callable(decorate(xmlrpc.client.ServerProxy("http://127.0.0.1:1").method))
        assert lab.run(decorate(call)) == [call()]


DESCRIPTORS = [staticmethod, classmethod, property, functools.cached_property]


@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_what_makes_an_attribute_of_a_function_is_refused_with_what_to_write(lab: "Lab", kind: Any) -> None:
    for decorate in both(lab.client(), "a"):
        with pytest.raises(TypeError, match=rf"write @{kind.__name__} above @client\.synchronized"):
            decorate(kind(lambda: None))


@pytest.mark.parametrize("kind", DESCRIPTORS)
def test_what_makes_an_attribute_of_a_function_works_above_the_decorator(lab: "Lab", kind: Any) -> None:
    client = lab.client()
    for decorate in both(client, "a"):

        def look(*_: object) -> bool:
            return client.lock("a").owned()

        class Thing:
            looked = kind(decorate(look))

        def use(thing: Any = Thing) -> bool:
            looked = thing().looked
            return looked if isinstance(looked, bool) else looked()

        assert lab.run(use) == [True]


@pytest.mark.parametrize(("thing", "why"), [(Proxy, "is a class"), (5, "can't be called"), (None, "can't be called")])
def test_what_is_no_function_is_refused(lab: "Lab", thing: Any, why: str) -> None:
    for decorate in both(lab.client(), "a"):
        with pytest.raises(TypeError, match=f"synchronized: .*{why}"):
            decorate(thing)


def test_a_function_without_a_signature_can_have_a_lock_of_one_name(lab: "Lab") -> None:
    client = lab.client()
    for decorate in both(client, "a"):
        assert lab.run(functools.partial(decorate(max), 1, 2)) == [2]
    with pytest.raises(ConfigurationError, match="max has no signature"):
        client.synchronized("a:{number}")(max)


def test_a_decorator_that_runs_its_coroutine_function_is_taken(lab: "Lab") -> None:
    async def body() -> bool:
        return client.lock("a").owned()

    @functools.wraps(body)
    def run() -> bool:
        return asyncio.run(body())

    client = lab.client()
    for decorate in both(client, "a"):
        assert lab.run(decorate(run)) == [True]


def test_a_decorated_generator_function_is_refused_unless_the_decorator_consumes_it(lab: "Lab") -> None:
    def body() -> Iterator[bool]:
        yield client.lock("a").owned()

    @functools.wraps(body)
    def pass_on() -> Any:
        return body()

    @functools.wraps(body)
    def consume() -> Any:
        return list(body())

    def call(function: Callable[[], Any]) -> None:
        with pytest.raises(TypeError, match="returned a generator"):
            function()

    client = lab.client()
    for decorate in both(client, "a"):
        lab.run(functools.partial(call, decorate(pass_on)))
        assert lab.run(decorate(consume)) == [[True]]


def test_a_generator_that_a_function_returns_for_its_own_reasons_is_its_own_affair(lab: "Lab") -> None:
    client = lab.client()
    for decorate in both(client, "a"):
        (squares,) = lab.run(decorate(lambda: (number**2 for number in range(3))))
        assert list(squares) == [0, 1, 4]


# The name -------------------------------------------------------------------------------------------------------------


def test_a_decorator_without_a_name_says_that_it_takes_one() -> None:
    client: Any = Client(NOWHERE)
    with pytest.raises(TypeError, match=r"takes the lock's name.*@client\.synchronized\('"):
        client.synchronized(print)
    with pytest.raises(TypeError, match="template"):
        relock.synchronized(lambda: client)  # type: ignore[call-overload]


class Order:
    def __init__(self, number: int) -> None:
        self.id = number

    def method(self) -> None: ...


@pytest.mark.parametrize("argument", [Order(1), Order(1).method, [Order(1)], lambda: 1], ids=type)
def test_a_name_with_an_address_in_it_is_warned_of_once(lab: "Lab", argument: Any) -> None:
    client = lab.client()
    for decorate in both(client, "orders:{order}"):
        work = decorate(lambda order: [order])

        def call(work: Callable[[Any], Any] = work) -> None:
            work(argument)

        with pytest.warns(RelockWarning, match="address") as caught:
            lab.run(call)
        assert caught[0].filename == __file__, "the warning shows the caller"
        lab.run(call)  # another warning would be an error here


def test_names_that_only_look_a_little_like_an_address_are_not(lab: "Lab") -> None:
    client = lab.client()
    for decorate in both(client, "orders:{order.id}:{note}"):
        work = decorate(lambda order, note: (order, note))
        for note in ("look at 0x7f0011223344", "<a at 0x10>", "<b at noon>"):
            lab.run(functools.partial(work, Order(1), note))


# The client -----------------------------------------------------------------------------------------------------------


def test_the_client_is_asked_for_at_each_call(lab: "Lab") -> None:
    clients: list[Client] = []

    @relock.synchronized(lambda: clients[-1], "orders:{order}", ttl=5)
    def work(order: int) -> list[str]:
        """Works."""
        return list(clients[-1].names())

    assert work.__doc__ == "Works."
    for name in ("first", "second"):
        clients.append(lab.client(name))
        assert lab.run(lambda: work(7)) == [["orders:7"]]
    assert [client.statistics().grants for client in clients] == [1, 1]


def test_a_lab_takes_the_place_of_the_application_s_client(lab: "Lab") -> None:
    """Applications test so: two workers exclude each other, and the late one gets its error."""
    of_worker = {name: lab.client(name) for name in ("first", "second")}
    seen: list[tuple[str, float]] = []

    def worker(name: str) -> None:
        @relock.synchronized(lambda: of_worker[name], "report", timeout=5)
        def work() -> None:
            seen.append((name, lab.now))
            lab.sleep(3)

        work()

    lab.run(lambda: worker("first"), lambda: worker("second"))
    assert sorted(name for name, _ in seen) == ["first", "second"]  # the lab's chance decides which one is faster
    assert seen[1][1] - seen[0][1] >= 3


def test_what_is_no_function_or_gives_no_client_is_named() -> None:
    with pytest.raises(TypeError, match=r"a function that returns the client.*@client\.synchronized"):
        relock.synchronized(Client(NOWHERE), "a")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"no relock\.Client, but None"):
        relock.synchronized(lambda: None, "a")(print)()  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize(
    ("options", "error"),
    [({"ttl": 0.01}, ConfigurationError), ({"ttl": "1"}, TypeError), ({"tll": 1}, TypeError)],
    ids=str,
)
def test_options_are_judged_when_it_decorates(options: dict[str, Any], error: type[Exception]) -> None:
    def get_client() -> Client:
        raise AssertionError("nobody has called the function")

    with pytest.raises(error, match="ttl"):
        relock.synchronized(get_client, "a", **options)
    with pytest.raises(ConfigurationError, match="has no argument b"):
        relock.synchronized(get_client, "a:{b}")(lambda a: a)


# Skipped calls: the contract has the others ---------------------------------------------------------------------------


def test_a_client_that_is_made_later_skips_calls_too(lab: "Lab") -> None:
    client = lab.client()
    work = relock.synchronized(lambda: client, "report:{year}", skip=True, otherwise=-1)(lambda year: year)

    def play() -> list[int]:
        with client.lock("report:2024", owner="somebody else"):
            return [work(2024), work(2025)]

    assert lab.run(play) == [[-1, 2025]]


def test_an_error_before_the_lock_is_asked_for_is_no_skip() -> None:
    """The function that returns the client may take other locks."""

    def get_client() -> Client:
        raise AcquireTimeoutError("of the factory")

    with pytest.raises(AcquireTimeoutError, match="of the factory"):
        relock.synchronized(get_client, "a", skip=True)(print)()


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"skip": True, "timeout": 0}, "timeout"),
    ({"skip": True, "timeout": -1}, "timeout"),
    ({"skip": True, "timeout": 5.0, "otherwise": 1}, "timeout"),
    ({"otherwise": 1}, "otherwise"),
    ({"otherwise": False, "skip": False}, "otherwise"),
]


@pytest.mark.parametrize(("options", "named"), OPTIONS, ids=str)
@pytest.mark.parametrize("door", ["threads", "tasks", "later"])
def test_options_that_contradict_each_other_are_refused(door: str, options: dict[str, Any], named: str) -> None:
    client: Any = AsyncClient(NOWHERE) if door == "tasks" else Client(NOWHERE)
    decorator = functools.partial(relock.synchronized, lambda: client) if door == "later" else client.synchronized
    with pytest.raises(ConfigurationError, match="skip=True") as caught:
        decorator("a", **options)
    assert caught.value.option == named
    with pytest.raises(TypeError, match="skip must be a bool"):
        decorator("a", skip=1)
    assert decorator("a", skip=True, timeout=None), "None is no timeout"
