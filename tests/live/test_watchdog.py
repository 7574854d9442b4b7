"""Renewals, and their absence: a hold is kept while its owner lives, and its loss is told."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.masters import Deployment, ProxyBefore
from support.processes import Worker
from support.proxy import calls_script
from support.until import until

from relock import Client, LockLostError, Loss, LossCode, NotOwnedError, RenewalFailing

pytestmark = pytest.mark.every_quorum

TTL = 6.0  # a machine that is busy elsewhere for three seconds, when a renewal is due, loses no lock here


def threads_named(part: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if part in thread.name]


@pytest.mark.every_server
def test_a_hold_outlives_its_ttl_while_its_owner_lives(
    connect: Callable[..., Client], server: Deployment, name: str
) -> None:
    client = connect(server.url, ttl=TTL)
    with client.lock(name) as lock:
        token = lock.token
        begin = time.monotonic()
        until(lambda: time.monotonic() - begin > 1.5 * TTL, within=20, what="more than a lease passes")
        assert lock.owned()
        assert lock.token == token
        remembered = client.info(name).token or 0
        assert remembered == token if server.quorum == 1 else remembered >= (token or 0), (
            "one of several masters may have proposed a larger token"
        )
    assert client.statistics().renewals >= 2


def test_a_thousand_holds_are_renewed_in_batches_by_one_thread(
    connect: Callable[..., Client], server: Deployment, name: str
) -> None:
    client = connect(server.url, ttl=12.0)  # a busy machine takes seconds for a thousand holds
    before = len(threads_named("watchdog"))
    for number in range(1000):
        client.lock(f"{name}-{number}").acquire()
    until(lambda: client.statistics().renewals >= 2000, within=60, what="each is renewed twice")
    assert len(threads_named("watchdog")) <= before + 1
    assert client.statistics().losses == 0
    assert client.statistics().held == 1000
    for number in range(1000):
        client.lock(f"{name}-{number}").release()


@pytest.mark.reach("majority", "all")
def test_a_failing_renewal_is_tried_again_until_it_succeeds(
    connect: Callable[..., Client], server: Deployment, proxy: ProxyBefore, faulty: ProxyBefore, name: str
) -> None:
    events: list[Any] = []
    client = connect(proxy.url, ttl=2 * TTL, on_event=events.append)
    with client.lock(name) as lock:
        for _ in range(3):
            fault = faulty.lose_request(calls_script("extend"))
            until(fault.struck.is_set, within=20, what="a renewal is lost")
        until(lambda: client.statistics().renewals >= 1, within=20, what="a renewal succeeds")
        assert lock.owned()
    until(lambda: any(isinstance(event, RenewalFailing) for event in events), within=20, what="the failure was told")


def test_a_hold_whose_server_stays_away_is_lost_at_its_deadline_and_said_once(
    own_server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    of_lock: list[Loss] = []
    of_client: list[Loss] = []
    client = connect(own_server.url, ttl=TTL, on_lost=of_client.append)
    lock = client.lock(name, on_lost=of_lock.append)
    lock.acquire()
    lock.acquire()
    token = lock.token
    own_server.kill()
    until(lambda: of_client, within=30, what="the loss is told")
    assert not lock.owned()
    assert lock.lost
    assert (lock.hold_count, lock.token, lock.remaining()) == (0, None, 0.0)
    with pytest.raises(LockLostError) as caught:
        lock.acquire()
    assert caught.value.token == token
    for _ in range(2):
        with pytest.raises(LockLostError):
            lock.release()
    with pytest.raises(NotOwnedError):
        lock.release()
    assert of_lock == of_client
    (loss,) = of_client
    assert (loss.lock, loss.token, loss.hold_count) == (name, token, 2)
    assert 0.9 * TTL < loss.held_for < 20.0
    own_server.start()
    with lock:
        assert not lock.lost


@pytest.mark.parametrize("how", ["deleted", "flushed"])
def test_a_hold_that_the_master_forgot_is_lost_with_the_next_renewal(
    connect: Callable[..., Client], server: Deployment, name: str, how: str
) -> None:
    losses: list[Loss] = []
    client = connect(server.url, ttl=TTL, on_lost=losses.append)
    lock = client.lock(name)
    lock.acquire()
    if how == "deleted":
        server.cli("DEL", f"lock:{{{name}}}")
    else:
        server.cli("FLUSHALL")
    until(lambda: losses, within=20, what="the watchdog finds out")
    assert "no longer know it" in losses[0].reason
    assert not lock.owned()
    with pytest.raises(LockLostError):
        lock.release()
    assert not client.info(name).held, "a lost hold is never put back"


@pytest.mark.parametrize("use", ["release", "acquire", "extend"])
def test_the_next_use_finds_out_that_the_key_was_deleted(
    client: Client, server: Deployment, name: str, use: str
) -> None:
    lock = client.lock(name)
    lock.acquire()
    server.cli("DEL", f"lock:{{{name}}}")
    with pytest.raises(LockLostError, match="no longer know it"):
        getattr(lock, use)()
    assert lock.lost


def test_a_with_block_says_that_its_hold_was_lost_but_never_hides_the_bodys_error(
    client: Client, server: Deployment, name: str
) -> None:
    with pytest.raises(LockLostError), client.lock(name):
        server.cli("DEL", f"lock:{{{name}}}")
    with pytest.raises(ZeroDivisionError), client.lock(name):  # noqa: PT012  (the failing block is the subject)
        server.cli("DEL", f"lock:{{{name}}}")
        raise ZeroDivisionError


def test_a_hold_whose_thread_ended_is_renewed_no_more_and_ends_with_its_lease(
    connect: Callable[..., Client], server: Deployment, name: str
) -> None:
    losses: list[Loss] = []
    client = connect(server.url, ttl=3.0, on_lost=losses.append)
    thread = threading.Thread(target=client.lock(name).acquire)
    thread.start()
    thread.join()
    assert client.lock(name).acquire(timeout=20), "a lease, a waiter's sleep, and the delay of a busy machine"
    until(lambda: losses, within=20, what="the loss is told")
    assert losses[0].code == LossCode.OWNER_ENDED


def test_max_hold_ends_renewal(connect: Callable[..., Client], server: Deployment, name: str) -> None:
    losses: list[Loss] = []
    client = connect(server.url, ttl=TTL, on_lost=losses.append)
    lock = client.lock(name, max_hold=TTL / 2)  # longer than it takes until the first renewal is due, less than a lease
    lock.acquire()
    until(lambda: losses, within=30, what="the hold is lost")
    assert "max_hold" in losses[0].reason
    assert TTL / 2 <= losses[0].held_for < 20.0
    with pytest.raises(LockLostError, match="max_hold"):
        lock.release()


def test_without_renewal_a_hold_is_lost_at_its_deadline(
    connect: Callable[..., Client], server: Deployment, name: str
) -> None:
    losses: list[Loss] = []
    client = connect(server.url, ttl=1.5, renew=False, on_lost=losses.append)
    lock = client.lock(name)
    lock.acquire()
    until(lambda: losses, within=20, what="the hold is lost")
    assert "renew=False" in losses[0].reason
    assert client.statistics().renewals == 0
    assert lock.lost


def test_a_process_that_ends_ends_its_holds_within_a_ttl(
    client: Client, server: Deployment, start_worker: Callable[..., Worker], name: str
) -> None:
    worker = start_worker("workers.locker", server.url, '{"ttl": 1.0}')
    assert worker.receive()["event"] == "ready"
    worker.send({"do": "acquire", "id": 1, "name": name})
    assert worker.receive()["event"] == "granted"
    worker.kill()
    until(lambda: not client.info(name).held, within=20, what="the lease ends, long before one of ours would")


def test_a_process_that_was_stopped_past_its_deadline_is_told(
    client: Client, server: Deployment, start_worker: Callable[..., Worker], name: str
) -> None:
    worker = start_worker("workers.locker", server.url, json.dumps({"ttl": TTL}))
    assert worker.receive()["event"] == "ready"
    worker.send({"do": "acquire", "id": 1, "name": name})
    assert worker.receive()["event"] == "granted"
    worker.stop()
    assert client.lock(name).acquire(timeout=30), "another client gets the lock"
    worker.cont()
    assert worker.receive()["event"] == "lost"
    worker.send({"do": "release", "id": 1})
    events = [worker.receive()["event"], worker.receive()["event"]]
    assert events == ["releasing", "error"]
    assert client.lock(name).owned(), "the stopped client did not touch the next holder"


def test_a_callback_that_blocks_delays_no_renewal(
    connect: Callable[..., Client], server: Deployment, name: str
) -> None:
    blocked, go_on = threading.Event(), threading.Event()

    def block(_loss: Loss) -> None:
        blocked.set()
        go_on.wait(30)

    client = connect(server.url, ttl=TTL, on_lost=block)
    client.lock(f"{name}-lost").acquire()
    kept = client.lock(name)
    kept.acquire()
    server.cli("DEL", f"lock:{{{name}-lost}}")
    assert blocked.wait(20)
    renewals = client.statistics().renewals
    until(lambda: client.statistics().renewals >= renewals + 2, within=20, what="renewals go on")
    assert kept.owned()
    go_on.set()
    kept.release()


def test_an_exception_in_a_callback_harms_nothing(
    connect: Callable[..., Client], server: Deployment, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    client = connect(server.url, on_lost=fail, on_event=fail)
    with client.lock(name):
        pass
    until(lambda: "failed on" in caplog.text, within=20, what="the text is logged")
    with client.lock(name) as lock:
        assert lock.owned()


def test_extend_lengthens_the_lease_and_never_shortens_it(client: Client, server: Deployment, name: str) -> None:
    redis = server.client()
    with client.lock(name, ttl=20) as lock:
        assert 60 < lock.extend(90) <= 90
        assert redis.pttl(f"lock:{{{name}}}") > 60_000
        assert lock.extend(1) > 60
        assert lock.extend() > 60
    with pytest.raises(NotOwnedError):
        lock.extend()


def test_ensure_spends_nothing(client: Client, name: str) -> None:
    with client.lock(name, ttl=30) as lock:
        lock.ensure()
        lock.ensure(2.0)
        with pytest.raises(LockLostError, match="extend"):
            lock.ensure(60)
        assert lock.owned()
        assert not lock.lost
    with pytest.raises(NotOwnedError):
        lock.ensure()


def test_a_clock_that_seems_to_step_ahead_shortens_what_is_trusted(
    connect: Callable[..., Client], server: Deployment, name: str
) -> None:
    """Moving the client's own view has the effect of a paused virtual machine, seen from inside."""
    client = connect(server.url, ttl=30.0, renew=False)
    lock = client.lock(name)
    lock.acquire()
    before = lock.remaining()
    for master in client._session.masters:
        master.facts.offset.low -= 10.0
        master.facts.offset.high -= 10.0
    with client.lock(f"{name}-other"):
        pass
    assert lock.remaining() < before - 9.5


def test_signals_do_not_stop_the_watchdog(connect: Callable[..., Client], server: Deployment, name: str) -> None:
    client = connect(server.url, ttl=TTL)
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    with client.lock(name) as lock:
        for _ in range(20):
            os.kill(os.getpid(), signal.SIGUSR1)
        renewals = client.statistics().renewals
        until(lambda: client.statistics().renewals >= renewals + 2, within=20, what="renewals go on")
        assert lock.owned()
    signal.signal(signal.SIGUSR1, before)


def test_a_loss_names_the_levels_that_there_were(connect: Callable[..., Client], server: Deployment, name: str) -> None:
    losses: list[Loss] = []
    client = connect(server.url, on_lost=losses.append)
    for use in ("acquire", "release"):
        lock = client.lock(f"{name}-{use}")
        lock.acquire()
        lock.acquire()
        server.cli("DEL", f"lock:{{{lock.name}}}")
        with pytest.raises(LockLostError):
            getattr(lock, use)()
    until(lambda: len(losses) == 2, within=20, what="both are told")
    assert [loss.hold_count for loss in losses] == [2, 2]
