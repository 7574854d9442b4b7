"""The watch of the order in which locks are taken: what it notes, what it does not, and that it leaves nothing."""

import contextlib
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

import pytest

import relock
from relock import Client, LockLostError
from relock._core.calls import Calls
from relock._core.hold import Hold
from relock._core.multi import _MemberCalls
from relock.aio_lock import AsyncLock
from relock.lock import Lock
from relock.testing import OrderError, _order, watch_order
from relock.testing._order_graph import read_graph

if TYPE_CHECKING:
    from relock.testing import Lab


P = ParamSpec("P")


@pytest.fixture
def client(lab: "Lab") -> Client:
    return lab.client()


def watched(lab: "Lab", *functions: Callable[[], object]) -> None:
    """Watch the functions while they run one after the other."""
    with watch_order():
        for function in functions:
            lab.run(function)


def seen(lab: "Lab", *functions: Callable[[], object]) -> list[str]:
    """Return the edges that are noted while the functions run one after the other, such as ``"a b"``."""
    with contextlib.suppress(OrderError), watch_order() as watch:
        for function in functions:
            lab.run(function)
    return [f"{held} {wanted}" for held, wanted in watch.graph]


def nested(client: Client, *names: str) -> Callable[[], None]:
    """Return a function that takes the locks, each within those before it."""

    def take() -> None:
        locks = [client.lock(name) for name in names]
        for lock in locks:
            lock.acquire()
        for lock in reversed(locks):
            lock.release()

    return take


# What is found --------------------------------------------------------------------------------------------------------


def test_two_orders_are_an_error_though_no_deadlock_happened(lab: "Lab", client: Client) -> None:
    with pytest.raises(OrderError) as caught:
        watched(lab, nested(client, "orders:42", "stock:7"), nested(client, "stock:8", "orders:43"))
    ((first, second),) = caught.value.cycles
    assert (first.held, first.wanted, first.held_name, first.wanted_name) == (
        "orders:#",
        "stock:#",
        "orders:42",
        "stock:7",
    )
    assert (second.held_name, second.wanted_name) == ("stock:8", "orders:43")
    assert first.caller.startswith("the thread ")
    assert "'orders:42'" in str(caught.value)


def test_one_order_is_none(lab: "Lab", client: Client) -> None:
    with watch_order() as watch:
        lab.run(nested(client, "a", "b", "c"), nested(client, "a", "c"))
    assert set(watch.graph) == {("a", "b"), ("a", "c"), ("b", "c")}


def test_each_edge_has_the_users_frames_of_both_places(lab: "Lab", client: Client) -> None:
    def take_a() -> None:
        client.lock("a").acquire()

    def take_b() -> None:
        client.lock("b").acquire()

    def work() -> None:
        take_a()
        take_b()

    with watch_order() as watch:
        lab.run(work)
    (edge,) = watch.graph.values()
    assert [frame.rpartition(".")[2] for frame in edge.taken_at] == ["work", "take_a"]
    assert [frame.rpartition(".")[2] for frame in edge.asked_at] == ["work", "take_b"]
    assert all(frame.startswith(f"{__file__}:") for frame in edge.taken_at + edge.asked_at)


def test_two_names_of_one_class_are_an_error_if_one_is_taken_within_the_other(lab: "Lab", client: Client) -> None:
    with pytest.raises(OrderError, match="Two locks of one class are nested: orders:# -> orders:#"):
        watched(lab, nested(client, "orders:1", "orders:2"))


def test_an_order_over_several_masters_is_seen() -> None:
    pytest.importorskip("hiredis")
    from relock.testing import Lab

    with Lab(masters=3) as lab:
        client = lab.client()
        assert seen(lab, nested(client, "a", "b")) == ["a b"]


def holds_b(lab: "Lab") -> Callable[[], None]:
    """Return a function by which another client holds b for half a minute."""
    client = lab.client("another")

    def hold() -> None:
        with client.lock("b"):
            lab.sleep(30)

    return hold


def test_a_wait_in_the_queue_is_seen(lab: "Lab", client: Client) -> None:
    def wait() -> None:
        lab.sleep(1)
        nested(client, "a", "b")()

    with watch_order() as watch:
        lab.run(holds_b(lab), wait)
    assert list(watch.graph) == [("a", "b")]


def test_a_failed_wait_is_seen_and_leaves_no_hold(lab: "Lab", client: Client) -> None:
    def give_up() -> None:
        lab.sleep(1)
        with client.lock("a"):
            assert not client.lock("b").acquire(timeout=1)
            nested(client, "c")()

    with watch_order() as watch:
        lab.run(holds_b(lab), give_up)
    assert list(watch.graph) == [("a", "b"), ("a", "c")]


def test_a_condition_takes_its_lock_again_within_the_others(lab: "Lab", client: Client) -> None:
    def wait() -> None:
        lock = client.lock("a")
        with lock, client.lock("b"):
            lock._acquire_restore(lock._release_save())  # as `threading.Condition.wait` does

    assert seen(lab, wait) == ["a b", "b a"]


def test_a_thread_is_one_owner_through_all_its_clients(lab: "Lab") -> None:
    first, second = lab.client("first"), lab.client("second")

    def work() -> None:
        with first.lock("a"), second.lock("b"):
            pass

    assert seen(lab, work) == ["a b"]


def test_holds_from_before_the_watch_count(lab: "Lab", client: Client) -> None:
    watches = []

    def work() -> None:
        with client.lock("a"), watch_order() as watch:
            nested(client, "b")()
        watches.append(watch)

    lab.run(work)
    (edge,) = watches[0].graph.values()
    assert (edge.held, edge.wanted, edge.taken_at) == ("a", "b", ())


def test_an_owner_by_name_is_one_owner_in_all_threads(lab: "Lab", client: Client) -> None:
    def first() -> None:
        client.lock("a", owner="job").acquire()

    def second() -> None:
        client.lock("b", owner="job").acquire()
        nested(client, "c")()  # of the thread, which holds nothing

    with watch_order() as watch:
        lab.run(first)
        lab.run(second)
    assert [(edge.held, edge.wanted, edge.caller) for edge in watch.graph.values()] == [("a", "b", "owner='job'")]


# What is not an order -------------------------------------------------------------------------------------------------


def test_a_nested_acquire_of_the_same_lock_is_none(lab: "Lab", client: Client) -> None:
    assert seen(lab, nested(client, "a", "a"), nested(client, "a", "b", "a")) == ["a b"]


def test_a_released_lock_is_not_held(lab: "Lab", client: Client) -> None:
    def work() -> None:
        for name in ("a", "b"):
            with client.lock(name):
                pass

    assert seen(lab, work, nested(client, "b", "a")) == ["b a"]


def test_other_threads_locks_are_not_held(lab: "Lab", client: Client) -> None:
    def first() -> None:
        with client.lock("a"):
            lab.sleep(10)

    def second() -> None:
        lab.sleep(1)
        nested(client, "b")()

    with watch_order() as watch:
        lab.run(first, second)
    assert not watch.graph


def test_a_try_can_not_wait(lab: "Lab", client: Client) -> None:
    def work() -> None:
        with client.lock("a"):
            assert client.lock("b").acquire(blocking=False)
            nested(client, "c")()

    assert seen(lab, work) == ["a c", "b c"]


def test_the_members_of_one_multi_lock_have_no_order(lab: "Lab", client: Client) -> None:
    def work() -> None:
        with client.lock("z"), client.lock_all(["orders:1", "orders:2", "stock:1"]):
            nested(client, "mail")()

    assert set(seen(lab, work)) == {"z orders:#", "z stock:#", "z mail", "orders:# mail", "stock:# mail"}


def test_a_multi_lock_that_waits_for_a_member_has_no_order_either(lab: "Lab") -> None:
    first, second = lab.client("first"), lab.client("second")

    def hold() -> None:
        with first.lock("b"):
            lab.sleep(30)

    def wait() -> None:
        lab.sleep(1)
        with second.lock_all(["a", "b", "c"]):
            pass

    with watch_order() as watch:
        lab.run(hold, wait)
    assert not watch.graph


def test_a_multi_lock_over_a_lock_of_the_same_class_is_an_error(lab: "Lab", client: Client) -> None:
    def work() -> None:
        with client.lock("orders:1"), client.lock_all(["orders:1", "orders:2"]):
            pass

    with pytest.raises(OrderError):
        watched(lab, work)


def test_readers_and_writers_of_a_lock_are_one_class(lab: "Lab", client: Client) -> None:
    both = client.rwlock("a")

    def reads_first() -> None:
        with both.read:
            nested(client, "b")()

    def writes_second() -> None:
        with client.lock("b"), both.write:
            pass

    with pytest.raises(OrderError):
        watched(lab, reads_first, writes_second)


def test_a_writer_that_reads_does_not_wait(lab: "Lab", client: Client) -> None:
    both = client.rwlock("a")

    def work() -> None:
        with both.write, client.lock("b"), both.read:
            pass

    assert seen(lab, work) == ["a b"]


def test_a_reader_that_reads_again_does_not_wait(lab: "Lab", client: Client) -> None:
    both = client.rwlock("a")

    def work() -> None:
        with both.read, client.lock("b"), both.read:
            pass

    assert seen(lab, work) == ["a b"]


def test_a_lock_of_the_same_name_under_another_prefix_is_no_second_one_of_its_class(lab: "Lab") -> None:
    first, second = lab.client("first"), lab.client("second", prefix="other")

    def work() -> None:
        with first.lock("a"), second.lock("a"):
            pass

    assert seen(lab, work) == []


def test_a_lost_lock_is_not_held(lab: "Lab", client: Client) -> None:
    def work() -> None:
        lock = client.lock("a", ttl=10)
        lock.acquire()
        client.force_release("a")
        lab.sleep(20)
        nested(client, "b")()
        with pytest.raises(LockLostError):
            lock.release()

    assert seen(lab, work) == []


def test_what_a_closed_client_had_is_not_held(lab: "Lab") -> None:
    first, second = lab.client("first"), lab.client("second")

    def work() -> None:
        first.lock("a").acquire()
        first.close()
        nested(second, "b")()

    assert seen(lab, work) == []


def test_permits_are_no_locks(lab: "Lab", client: Client) -> None:
    def work() -> None:
        with client.semaphore("gpu", 2), client.lock("a"), client.semaphore("cpu", 2):
            pass

    assert seen(lab, work) == []


# Classes of decorated functions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_late", [False, True], ids=["of the client", "with a client made later"])
def test_a_decorated_function_has_the_class_of_its_template(lab: "Lab", client: Client, is_late: bool) -> None:
    def decorate(template: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
        return relock.synchronized(lambda: client, template) if is_late else client.synchronized(template)

    @decorate("stock:{article[0]}:v2:{version:>{width}}")
    def ship(article: str, version: str = "new", width: int = 3) -> None:
        nested(client, "mail-to-bob")()

    @decorate("everything")
    def close() -> None:
        ship("xyz")

    assert seen(lab, close) == [
        "everything stock:#:v#:#",
        "everything mail-to-bob",
        "stock:#:v#:# mail-to-bob",
    ]


def test_a_template_and_a_name_made_by_hand_are_one_class(lab: "Lab", client: Client) -> None:
    @client.synchronized("orders:{order_id}")
    def pay(order_id: int) -> None:
        nested(client, "stock")()

    with pytest.raises(OrderError):
        watched(lab, lambda: pay(42), nested(client, "stock", "orders:43"))


# The watch itself -----------------------------------------------------------------------------------------------------


def hooks() -> list[Any]:
    return [Calls.acquire, _MemberCalls.acquire_all, Lock._acquiring, AsyncLock._acquiring]


def test_without_a_watch_there_is_no_hook() -> None:
    before = hooks()
    assert before == [Calls.acquire, _MemberCalls.acquire_all, Calls.acquire, Calls.acquire]
    with watch_order():
        assert not set(before) & set(hooks())
        with watch_order():
            pass
        assert not set(before) & set(hooks())
    assert hooks() == before


def test_each_of_two_watches_sees_what_happens_while_it_is_open(lab: "Lab", client: Client) -> None:
    with watch_order() as outer:
        lab.run(nested(client, "a", "b"))
        with watch_order() as inner:
            lab.run(nested(client, "b", "c"))
        lab.run(nested(client, "c", "d"))
    assert list(inner.graph) == [("b", "c")]
    assert list(outer.graph) == [("a", "b"), ("b", "c"), ("c", "d")]


def test_the_end_of_one_watch_takes_nothing_from_another(lab: "Lab", client: Client) -> None:
    def work() -> None:
        with client.lock("a"):
            with watch_order():
                pass
            nested(client, "b")()

    with watch_order() as watch:
        lab.run(work)
    (edge,) = watch.graph.values()
    assert edge.taken_at


def test_a_watch_that_opens_while_another_one_ends_has_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    put, before = _order._set, hooks()
    with contextlib.ExitStack() as stack:

        def open_before(*functions: Any) -> None:
            monkeypatch.undo()
            stack.enter_context(watch_order())  # as another thread may do at this moment
            put(*functions)

        with watch_order():
            monkeypatch.setattr(_order, "_set", open_before)
        assert not set(before) & set(hooks())
    assert hooks() == before


def test_an_error_of_the_block_comes_first(lab: "Lab", client: Client, tmp_path: Path) -> None:
    def fail() -> None:
        nested(client, "a", "b")()
        nested(client, "b", "a")()
        raise KeyError

    before = hooks()
    with pytest.raises(KeyError), watch_order(tmp_path / "graph.json"):
        lab.run(fail)
    assert hooks() == before
    assert set(read_graph(tmp_path / "graph.json")) == {("a", "b"), ("b", "a")}


def test_a_watch_keeps_no_hold_alive(lab: "Lab", client: Client) -> None:
    holds: list[weakref.ref[Hold]] = []

    def work() -> None:
        with client.lock("a"):
            holds.extend(map(weakref.ref, client._session.holds.values()))

    with watch_order():
        lab.run(work)
        gc.collect()
        assert [hold() for hold in holds] == [None]
