"""The lab: tests of code that uses relock need no server, and their waits take no real time."""

import gc
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from relock import Client, Event, Granted, LockLostError, Loss, MasterWithoutVote, QuorumError, Released
from relock.testing import Lab


def test_two_functions_exclude_each_other(relock_lab: Lab) -> None:
    ledger: list[str] = []
    clients = {name: relock_lab.client(name) for name in ("one", "two")}

    def update(name: str) -> None:
        with clients[name].lock("ledger"):
            ledger.append(f"{name} begins")
            relock_lab.sleep(100.0)
            ledger.append(f"{name} ends")

    begin = time.monotonic()
    relock_lab.run(lambda: update("one"), lambda: update("two"))
    assert sorted(ledger[:2]) in (["one begins", "one ends"], ["two begins", "two ends"])
    assert len(ledger) == 4
    assert relock_lab.now > 200.0
    assert time.monotonic() - begin < 20.0, "the wait takes no real time"


def test_run_returns_what_functions_return_and_raises_what_they_raise(relock_lab: Lab) -> None:
    assert relock_lab.run(lambda: 1, lambda: 2) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        relock_lab.run(lambda: 1 // 0)


@pytest.mark.parametrize("error", [pytest.fail.Exception("wrong"), KeyboardInterrupt(), SystemExit(1)], ids=repr)
def test_an_interrupt_and_a_failed_check_come_out_as_well(relock_lab: Lab, error: BaseException) -> None:
    """Failed checks of pytest, and interrupts, end the test in the same way."""

    def check() -> None:
        raise error

    with pytest.raises(type(error)):
        relock_lab.run(check)


def test_a_function_that_never_ends_is_an_error(relock_lab: Lab) -> None:
    one, two = relock_lab.client("one"), relock_lab.client("two")
    relock_lab.run(one.lock("a", owner="job").acquire)
    with pytest.raises(TimeoutError, match="virtual"):
        relock_lab.run(two.lock("a").acquire, within=500.0)


def test_a_process_that_dies_loses_the_lock_with_the_lease(relock_lab: Lab) -> None:
    one, two = relock_lab.client("one", ttl=10.0), relock_lab.client("two")
    relock_lab.run(lambda: one.lock("a").acquire())
    relock_lab.crash("one")
    begin = relock_lab.now
    assert relock_lab.run(lambda: two.lock("a").acquire(timeout=60)) == [True]
    assert 5.0 < relock_lab.now - begin < 11.0


@pytest.mark.parametrize("masters", [1, 3])
def test_permits_of_a_process_that_dies_come_back_with_their_leases(masters: int) -> None:
    with Lab(masters=masters) as lab:
        one, two = lab.client("one", ttl=10.0), lab.client("two")
        lab.run(lambda: [one.semaphore("a", 2, owner="job").acquire() for _ in range(2)])
        lab.run(lambda: lab.sleep(60.0))
        assert lab.run(lambda: two.semaphore("a", 2).acquire(timeout=0)) == [None], "they are renewed"
        lab.crash("one")
        begin = lab.now

        def take_both() -> list[int | None]:
            permits = [two.semaphore("a", 2).acquire(timeout=60) for _ in range(2)]
            return [permit.slot for permit in permits if permit is not None]

        (slots,) = lab.run(take_both)
        assert sorted(slots) == [0, 1]
        assert 5.0 < lab.now - begin < 11.0


def test_a_process_that_is_paused_for_too_long_hears_of_its_loss(relock_lab: Lab) -> None:
    client = relock_lab.client("one", ttl=10.0)

    def work() -> None:
        with client.lock("a") as lock:
            relock_lab.pause("one", 30.0)
            relock_lab.sleep(31.0)
            lock.ensure()

    with pytest.raises(LockLostError):
        relock_lab.run(work)


def test_a_quorum_of_masters_can_be_lost_and_come_back() -> None:
    lab = Lab(masters=3)
    client = lab.client(ttl=10.0)
    for master in lab.masters[:2]:
        master.crash()
    with pytest.raises(QuorumError):
        lab.run(lambda: client.lock("a").acquire(timeout=5))
    for master in lab.masters[:2]:
        master.restart()
    begin = lab.now
    assert lab.run(lambda: client.lock("a").acquire(timeout=60)) == [True]
    assert lab.now - begin > 9.0, "the masters may have forgotten leases of 10 s"
    lab.close()


def test_the_event_of_a_master_without_a_vote_names_a_clock_that_stepped_as_a_cause() -> None:
    lab = Lab(masters=3)
    events: list[Event] = []
    client = lab.client(ttl=10.0, on_event=events.append)

    def work() -> None:
        for _ in range(4):
            with client.lock("a"):
                lab.sleep(1.0)

    lab.run(work)
    assert not any(isinstance(event, MasterWithoutVote) for event in events)
    lab.masters[0].step(3.0)
    lab.run(work)
    whys = [event.why for event in events if isinstance(event, MasterWithoutVote)]
    assert whys
    assert all("clock" in why for why in whys)
    lab.close()


def test_an_unknown_name_is_an_error(relock_lab: Lab) -> None:
    with pytest.raises(ValueError, match="nobody"):
        relock_lab.crash("nobody")


def test_time_goes_on_no_further_than_the_functions(relock_lab: Lab) -> None:
    """Time stands still even if no other event is to come."""
    relock_lab.run(lambda: relock_lab.sleep(10.0))
    assert relock_lab.now == pytest.approx(10.0, abs=0.01)


def test_a_lock_outside_of_run_says_where_it_belongs(relock_lab: Lab) -> None:
    client = relock_lab.client("one")
    uses: list[Callable[[], object]] = [
        client.lock("a").acquire,
        client.lock("a", owner="job").acquire,
        lambda: client.info("a"),
        lambda: relock_lab.sleep(1.0),
    ]
    for use in uses:
        with pytest.raises(RuntimeError, match=r"Lab\.run"):
            use()


def test_a_lock_in_a_real_thread_says_where_it_belongs(relock_lab: Lab) -> None:
    client = relock_lab.client("one")

    def work() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(client.lock("a").acquire).result()

    with pytest.raises(RuntimeError, match=r"Lab\.run"):
        relock_lab.run(work)


def test_run_inside_run_is_refused(relock_lab: Lab) -> None:
    with pytest.raises(RuntimeError, match="inside run"):
        relock_lab.run(lambda: relock_lab.run(lambda: None))
    assert relock_lab.run(lambda: 1) == [1], "the lab goes on"


def test_a_function_does_nothing_after_its_client_is_killed(relock_lab: Lab) -> None:
    """Functions end even in a call that sends nothing, such as `ensure`, and in the end of a ``with`` block."""
    client = relock_lab.client("one", ttl=10.0)
    done: list[str] = []

    def work() -> str:
        with client.lock("a") as lock:
            relock_lab.sleep(100.0)
            lock.ensure()
            done.append("dead, and at work")
        return "dead, and well"

    def kill() -> None:
        relock_lab.sleep(3.0)
        relock_lab.crash("one")

    assert relock_lab.run(work, kill) == [None, None]
    assert not done


def test_a_hold_that_a_function_does_not_release_is_lost(relock_lab: Lab) -> None:
    lost: list[Loss] = []
    one, two = relock_lab.client("one", ttl=10.0, on_lost=lost.append), relock_lab.client("two")
    relock_lab.run(one.lock("a").acquire)
    assert relock_lab.run(lambda: two.lock("a").acquire(timeout=60.0)) == [True]
    assert relock_lab.now < 20.0
    assert [loss.reason for loss in lost] == ["its owner ended without releasing it"]


def test_a_lab_ends_with_its_block() -> None:
    with Lab(masters=3) as lab:
        client = lab.client()
        assert lab.run(lambda: client.lock("a").acquire(timeout=5)) == [True]


def test_callbacks_have_heard_of_everything_when_run_is_over() -> None:
    """Callbacks run on a thread of their own, which comes last."""
    for seed in range(20):
        with Lab(seed=seed) as lab:
            events: list[Event] = []
            client = lab.client(on_event=events.append)

            def work(client: Client = client) -> None:
                with client.lock("a"):
                    pass

            lab.run(work)
            assert [type(event) for event in events] == [Granted, Released]


def test_names_are_listed(relock_lab: Lab) -> None:
    client = relock_lab.client()

    def work() -> list[str]:
        with client.lock("orders:1"), client.lock("orders:2"), client.lock("other"):
            return sorted(client.names("orders:*"))

    assert relock_lab.run(work) == [["orders:1", "orders:2"]]
    assert relock_lab.run(lambda: list(client.names())) == [[]]


def test_closing_ends_a_function_that_holds_a_lock() -> None:
    """Functions end at once, because their release is a call of a dead client; no waiting object keeps the lab."""
    ended = []

    def use(lab: Lab) -> None:
        client = lab.client()

        def hold() -> None:
            try:
                with client.lock("a"):
                    lab.sleep(1000.0)
            finally:
                ended.append("hold")

        with pytest.raises(TimeoutError):
            lab.run(hold, within=5.0)

    kept = closed_after(use)
    assert ended == ["hold"]
    gc.collect()
    assert kept() is None


def test_a_lab_in_which_a_script_failed_is_not_kept() -> None:
    """Lua would keep a Python exception, and the frames of the calls that it passed, until its garbage collection."""

    def use(lab: Lab) -> None:
        client = lab.client()
        lab.masters[0].master.is_full = True

        def take() -> None:
            with pytest.raises(QuorumError, match="OOM"):
                client.lock("a").acquire(timeout=1.0)

        lab.run(take)

    kept = closed_after(use)
    gc.collect()
    assert kept() is None


def closed_after(use: Callable[[Lab], None]) -> "weakref.ref[Lab]":
    """Return a weak reference to a lab that was used, and closed."""
    lab = Lab()
    use(lab)
    lab.close()
    return weakref.ref(lab)


def test_masters_give_the_token_that_is_proposed_to_them() -> None:
    """Releases need not bring such a token along."""
    with Lab(masters=3) as lab:
        client = lab.client("one")

        def take() -> list[bool]:
            with client.lock("a"):
                return [hold.settled for hold in client._session.holds.values()]

        lab.run(take)  # the first acquire opens the connections, which show the masters' clocks
        assert [lab.run(take) for _ in range(5)] == [[[True]]] * 5


def test_clients_that_share_their_locks_with_redisson_work_in_a_lab(relock_lab: Lab) -> None:
    clients = [relock_lab.client(redisson=True) for _ in range(2)]
    counter = 0

    def add(client: Client) -> None:
        nonlocal counter
        for _ in range(20):
            with client.lock("counter"):
                before = counter
                relock_lab.sleep(0.01)
                counter = before + 1

    relock_lab.run(*(lambda client=client: add(client) for client in clients))
    assert counter == 40
