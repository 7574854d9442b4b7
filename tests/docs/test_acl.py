"""Rights of the user on the ACL page: they suffice for everything that the API offers."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from support.servers import Server
from support.until import until

import relock
from relock import Client, Event, LockLostError, LossCode, Lost, QuorumError, ReleaseUnconfirmed, RenewalFailing
from relock._runtime.wakeups import channels
from relock.history import STREAM, Recorder, find_entries

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "acl.md"
TTL = 4.0
SOON = 20.0  # seconds after which a wait has failed


def _documented_rights() -> list[str]:
    found = re.search(r"```text\n(ACL SETUSER.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1].split()


def _documented_entries() -> dict[str, str]:
    """Return the entries of the log that the page explains, each with the program that asks for the right."""
    rows = re.findall(r"^\| `([^`]+)` \| ([^,]+), ", PAGE.read_text().split("## What `ACL LOG` shows")[1], re.MULTILINE)
    entries = {entry.replace("\\|", "|"): asked.strip("`") for entry, asked in rows}
    assert set(entries.values()) == {"redis-py", "relock doctor"}
    return entries | {entry.partition("|")[0]: asked for entry, asked in entries.items()}  # as Redis 6.2 does


def _refused(server: Server) -> set[str]:
    with server.client(decode_responses=True) as admin:
        return {entry["object"] for entry in admin.acl_log()}


@pytest.mark.every_server
@pytest.mark.parametrize("guard", [0.0, TTL])
def test_the_documented_user_can_do_everything(server: Server, guard: float) -> None:
    server.cli("SCRIPT", "FLUSH")  # so that EVAL is needed as well
    server.cli("ACL", "LOG", "RESET")
    server.cli(*_documented_rights())
    url = f"redis://relock:CHANGE-ME@127.0.0.1:{server.port}/0"
    try:
        with Client(url, ttl=TTL, restart_guard=guard) as client:
            assert client.check() == ()
            _use_everything(client)
        used = _refused(server)
        doctor = subprocess.run(
            [sys.executable, "-m", "relock", "doctor"],
            env=os.environ | {"RELOCK_NODES": url, "PYTHONPATH": str(Path(relock.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        assert used <= {entry for entry, asked in _documented_entries().items() if asked == "redis-py"}
        assert _refused(server) <= {*_documented_entries()}
    finally:
        server.cli("ACL", "DELUSER", "relock")


def test_the_rights_for_redisson_are_those_that_the_option_needs(server: Server, name: str) -> None:
    """The release reads Redisson's queue, and publishes; the wait listens, and no longer after its time."""
    row = next(line for line in PAGE.read_text().splitlines() if "&redisson_lock__channel" in line)
    rights = row.split("`")[1].replace("%R~", "~").split()
    server.cli("ACL", "LOG", "RESET")
    server.cli(*_documented_rights(), *rights)
    url = f"redis://relock:CHANGE-ME@127.0.0.1:{server.port}/0"
    try:
        with Client(url, redisson=True) as client, server.client() as java:
            heard = java.pubsub(ignore_subscribe_messages=True)
            channel = f"redisson_lock__channel:lock:{{{name}}}"
            heard.subscribe(f"{channel}:uuid:1")
            until(lambda: java.pubsub_numsub(f"{channel}:uuid:1")[0][1], within=SOON, what="Redisson listens")
            java.rpush(f"redisson_lock_queue:lock:{{{name}}}", "uuid:1")
            waiter = threading.Thread(target=client.lock(name, owner="other").acquire)
            with client.lock(name):
                waiter.start()
                until(lambda: java.zcard(f"lock:{{{name}}}:queue"), within=SOON, what="a thread waits")
                assert java.pubsub_numsub(channel)[0][1] == 1
            waiter.join()
            client.lock(name, owner="other").release()
            until(lambda: heard.get_message(timeout=0.01), within=SOON, what="Redisson's first waiter is told")
            heard.close()
            hub = client._session.hub
            with patch.object(channels, "KEPT_SECONDS", 0.0), patch.object(channels, "SCAN_SECONDS", 0.0):
                hub.subscriptions[0].call()
                until(lambda: not java.pubsub_numsub(channel)[0][1], within=SOON, what="the channel is given up")
        assert _refused(server) <= {entry for entry, asked in _documented_entries().items() if asked == "redis-py"}
    finally:
        server.cli("ACL", "DELUSER", "relock")


def _use_everything(client: Client) -> None:
    lock = client.lock("a", timeout=30)
    order: list[str] = []

    def wait() -> None:
        with client.lock("a", timeout=30):
            order.append("waiter")

    with lock:
        with lock:
            lock.extend(2 * TTL)
        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(3)  # a renewal, a heartbeat and a ping; less than is left of the lease
        assert lock.locked()
        assert len(lock.info().queue) == 1
        assert list(client.names()) == ["a"]
        order.append("holder")
    waiter.join()
    assert order == ["holder", "waiter"]
    lock.acquire()
    assert not client.lock("a", owner="another").acquire(timeout=0.2)  # joins the queue and leaves it
    assert client.force_release("a")
    with pytest.raises(LockLostError):
        lock.release()
    with client.lock("a", at_least=TTL):
        pass
    assert client.info("a").resting
    assert client.force_release("a")
    _use_both_sides(client)


def _use_both_sides(client: Client) -> None:
    both, order = client.rwlock("b", timeout=30), list[str]()

    def wait(side: str) -> None:
        with getattr(client.rwlock("b", timeout=30), side):
            order.append(side)

    def start(side: str) -> threading.Thread:
        before = len(both.info().queue)
        thread = threading.Thread(target=wait, args=(side,))
        thread.start()
        until(lambda: len(both.info().queue) > before, within=SOON, what="it waits")
        return thread

    assert both.write.acquire()
    with both.read:
        assert both.read.extend() > 0
    waiting = [start("read")]
    both.write.downgrade()
    waiting[0].join()
    waiting += [start("write"), start("read")]
    both.read.release()
    for thread in waiting:
        thread.join()
    assert order == ["read", "write", "read"]


@pytest.mark.every_server
def test_with_the_rights_to_the_stream_the_user_can_record_and_read(server: Server) -> None:
    server.cli("ACL", "LOG", "RESET")
    (added,) = re.findall(r"^\| `(\+xadd [^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    server.cli(*_documented_rights())
    server.cli("ACL", "SETUSER", "relock", *added.split())
    url = f"redis://relock:CHANGE-ME@127.0.0.1:{server.port}/0"
    try:
        with Client(url, node_timeout=5.0) as client:
            with Recorder(client), client.lock("a"):
                pass
            read = partial(find_entries, client, STREAM, "a", since=3600.0)
            until(lambda: len(read()[0]) == 2, within=SOON, what="both events are read")
        assert _refused(server) <= {*_documented_entries()}
    finally:
        server.cli("ACL", "DELUSER", "relock")


# Without a right ------------------------------------------------------------------------------------------------------


@contextmanager
def _user_without(server: Server, right: str) -> Iterator[str]:
    """Let the user of the page exist without one of its rights; return the URL for that user."""
    server.cli(*_documented_rights())
    server.cli("ACL", "SETUSER", "relock", f"-{right}")
    try:
        yield f"redis://relock:CHANGE-ME@127.0.0.1:{server.port}/0"
    finally:
        server.cli("ACL", "DELUSER", "relock")
        server.cli("FLUSHALL")


@pytest.mark.every_server
def test_without_hdel_a_release_ends_the_hold_for_its_caller_and_the_others_wait_for_the_lease(server: Server) -> None:
    events: list[Event] = []
    with (
        _user_without(server, "hdel") as url,
        Client(url, ttl=60.0, node_timeout=3.0, on_event=events.append) as client,
        Client(server.url, node_timeout=5.0) as others,
    ):
        lock = client.lock("a")
        lock.acquire()
        owner = others.info("a").owner
        lock.release()
        assert (lock.owned(), lock.lost) == (False, False)
        until(lambda: any(isinstance(one, ReleaseUnconfirmed) for one in events), within=SOON, what="the event is told")
        assert not others.lock("a").acquire(timeout=0.1)
        assert others.info("a").owner == owner
        server.cli("PEXPIRE", "lock:{a}", 1)  # the lease ends
        assert others.lock("a").acquire(timeout=SOON)


@pytest.mark.every_server
def test_without_hexists_a_hold_is_lost_when_its_first_lease_ends(server: Server) -> None:
    events: list[Event] = []
    with (
        _user_without(server, "hexists") as url,
        Client(url, ttl=3.0, node_timeout=1.0, on_event=events.append) as client,
    ):
        lock = client.lock("a")
        lock.acquire()
        until(lambda: lock.lost, within=SOON, what="the hold is lost")
        with pytest.raises(LockLostError):
            lock.release()
        assert client.statistics().renewals == 0
        until(lambda: any(isinstance(one, Lost) for one in events), within=SOON, what="the loss is told")
    assert any(isinstance(one, RenewalFailing) for one in events)
    assert [one.code for one in events if isinstance(one, Lost)] == [LossCode.EXPIRED]


@pytest.mark.every_server
def test_without_pubsub_a_reader_goes_by_the_deadline_of_a_writer_that_may_be_dead(server: Server) -> None:
    with _user_without(server, "pubsub") as url, Client(url, node_timeout=5.0) as client:
        client.rwlock("a", owner="another").read.acquire()
        deadline_ms = server.client().time()[0] * 1000 + 5000
        server.cli("ZADD", "lock:{a}:waiters", str(deadline_ms), "dead:1")
        server.cli("ZADD", "lock:{a}:queue", "1", "dead:1")
        reader = client.rwlock("a").read
        is_refused = not reader.acquire(timeout=0)
        assert is_refused or server.client().time()[0] * 1000 >= deadline_ms
        assert not is_refused or reader.acquire(timeout=SOON)
        assert (server.client().time()[0] + 1) * 1000 >= deadline_ms, "the deadline is over"
        assert client.rwlock("a", owner="a third").read.acquire(timeout=SOON)
        assert len(client.info("a").readers) == 3


@pytest.mark.every_server
def test_without_pexpire_the_deadlines_of_a_queue_stay_until_another_client_waits(server: Server) -> None:
    waiters = "lock:{a}:waiters"
    with Client(server.url, ttl=60.0, node_timeout=5.0) as others, _user_without(server, "pexpire") as url:
        others.lock("a").acquire()
        with Client(url, node_timeout=3.0) as client, pytest.raises(QuorumError, match="ACL page"):
            client.lock("a").acquire()
        assert server.cli("PTTL", waiters) == -1, "it has no end, also when the client is closed"
        assert not server.cli("EXISTS", "lock:{a}:queue")
        other = others.lock("a", owner="another", timeout=0.5)  # on a busy machine it may not come to wait in that time
        until(lambda: not other.acquire() and server.cli("PTTL", waiters) > 0, within=SOON, what="the key has an end")
