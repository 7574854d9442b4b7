"""`relock.history.Recorder` and `relock history`: what clients write to the stream, and what is read from it."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from support.cli import relock
from support.cluster import ClusterOfServers
from support.proxy import Proxy
from support.servers import Server
from support.until import until

import relock.history as module
from relock import (
    AsyncClient,
    Client,
    ConfigurationError,
    Deadlocked,
    Event,
    LockLostError,
    Released,
    ReleaseUnconfirmed,
)
from relock.cli._exit_codes import ExitCode
from relock.history import STREAM, Recorder

SOON = 30.0  # seconds after which a wait has failed


def read(nodes: str, name: str, *options: str) -> list[dict[str, Any]]:
    """Return what the command line reads."""
    done = relock("history", name, "--json", *options, nodes=nodes)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def kinds(nodes: str, name: str, *options: str) -> list[str]:
    return [entry["event"] for entry in read(nodes, name, *options)]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "relock.history"]


def test_what_becomes_of_a_lock_is_read_back(server: Server, connect: Callable[..., Client], name: str) -> None:
    server.client().xadd(STREAM, {"event": "Granted", "lock": name, "from": "another program"}, id="1000-0")
    client, operator = connect(server.url), connect(server.url)
    lock = client.lock(name)
    with Recorder(client), Recorder(operator) as of_operator:
        with lock:
            token = lock.token
        with client.semaphore(name, 2), client.lock(f"{name}-of-another-name"):
            pass
        lock.acquire()
        until(lambda: kinds(server.url, name, "--since", "1h").count("Granted") == 3, within=SOON, what="it is told")
        assert operator.force_release(name)
        of_operator.close()
        with pytest.raises(LockLostError):
            lock.extend()
        cycle = ((name, "a", "b"), ("other", "b", "a"))
        client._session.emit(Deadlocked(name, cycle, "a", kind="lock"))
        until(lambda: kinds(server.url, name)[-1:] == ["Deadlocked"], within=SOON, what="all is written")
    entries = read(server.url, name, "--since", "1h")
    of_lock, both = ("lock", client._session.client_id), ["Granted", "Released"]
    assert [one["event"] for one in entries] == [*both, *both, "Granted", "ForceReleased", "Lost", "Deadlocked"]
    assert [one["kind"] for one in entries[2:4]] == ["semaphore"] * 2
    granted, released, *_, forced, lost, deadlock = entries
    assert (granted["kind"], granted["client"]) == (released["kind"], released["client"]) == of_lock
    assert granted["token"] == released["token"] == token
    assert granted["waited"] >= 0 < released["held_for"]
    assert forced["client"] == operator._session.client_id
    assert (lost["code"], "deleted" in lost["reason"]) == ("forgotten", True)
    assert (deadlock["cycle"], deadlock["victim"]) == ([list(one) for one in cycle], "a")
    assert [one["at"] for one in entries] == sorted(one["at"] for one in entries)
    shown = relock("history", name, nodes=server.url).stdout.splitlines()
    assert len(shown) == 9, "with the other program's"
    words = ["another program", "granted to process", "released by", "semaphore: granted", "semaphore: released"]
    words += ["granted to", f"by the client {operator._session.client_id}", "lost by", "deadlock of 2 callers"]
    for line, part in zip(shown, words, strict=True):
        assert part in line


async def test_what_tasks_do_is_recorded_too(server: Server, name: str) -> None:
    async with AsyncClient(server.url, node_timeout=5.0) as client:
        recorder = Recorder(client, stream=f"{name}-stream")
        async with client.lock(name):
            pass
        recorder.close()
        async with client.lock(name):  # it is closed by now
            pass
    options = ("--stream", f"{name}-stream")
    until(lambda: len(kinds(server.url, name, *options)) == 2, within=SOON, what="all is written")
    assert kinds(server.url, name, *options) == ["Granted", "Released"]
    assert kinds(server.url, name) == []


def test_a_recorder_ends_with_its_client(server: Server, name: str) -> None:
    with Client(server.url, node_timeout=5.0) as client:
        recorder = Recorder(client)
        with client.lock(name):
            pass
    until(lambda: kinds(server.url, name) == ["Granted", "Released"], within=SOON, what="what came before is written")
    mine = f"name={client._session.connection_name} ".encode()
    until(lambda: mine not in server.cli("CLIENT", "LIST"), within=SOON, what="its connection is closed")
    recorder.close()
    with pytest.raises(RuntimeError, match="closed"):
        Recorder(client)


def test_a_forked_child_records_what_it_does_itself(server: Server, name: str) -> None:
    with Client(server.url, node_timeout=5.0) as client, Recorder(client) as recorder:
        with client.lock(name):
            pass
        until(lambda: len(kinds(server.url, name)) == 2, within=SOON, what="the parent's is written")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                parents = recorder._connection
                with client.lock(name):
                    pass
                client._session.events.settle(SOON)
                code = 0 if recorder._connection not in (None, parents) else 2
                client.close()
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        with client.lock(name):
            pass
        until(lambda: len(kinds(server.url, name)) == 6, within=SOON, what="the parent goes on")
    parent, clients = client._session.client_id, [entry["client"] for entry in read(server.url, name)]
    assert [one == parent for one in clients] == [True, True, False, False, True, True]
    assert clients[2] == clients[3]


def test_the_stream_is_trimmed(server: Server, connect: Callable[..., Client], name: str) -> None:
    client = connect(server.url)
    with Recorder(client, maxlen=10):
        for _ in range(150):
            with client.lock(name) as lock:
                token = lock.token
        is_written = [("Released", token)]
        until(
            lambda: [(one["event"], one["token"]) for one in read(server.url, name)][-1:] == is_written,
            within=SOON,
            what="all is written",
        )
    assert 10 <= server.cli("XLEN", STREAM) <= 10 + 100, "a server drops a hundred entries at a time"


def test_a_cluster_has_the_stream_on_the_node_of_its_slot(
    cluster: ClusterOfServers, connect: Callable[..., Client], name: str
) -> None:
    client = connect(cluster.url)
    with Recorder(client):
        for number in range(3):
            with client.lock(f"{name}-{number}"):
                pass
    last = f"{name}-2"
    until(lambda: kinds(cluster.url, last) == ["Granted", "Released"], within=SOON, what="all is written")
    assert [kinds(cluster.url, f"{name}-{number}") for number in range(2)] == [["Granted", "Released"]] * 2


# When it can't be written ---------------------------------------------------------------------------------------------


def test_no_call_waits_for_a_record(server: Server, proxy: Proxy, connect: Callable[..., Client], name: str) -> None:
    client = connect(proxy.url, ttl=60.0, node_timeout=20.0)
    held = proxy.hold_request(lambda words: words[0] == b"XADD")
    with Recorder(client):
        with client.lock(name):
            pass
        until(held.struck.is_set, within=SOON, what="the recorder writes")
        for _ in range(3):
            with client.lock(name):
                pass
        assert not held.done.is_set()
        assert kinds(server.url, name) == []
        held.release()
        until(lambda: len(kinds(server.url, name)) == 8, within=SOON, what="all is written")


def test_a_stream_that_refuses_is_one_warning_and_delays_no_callback(
    server: Server, connect: Callable[..., Client], name: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)  # so that each event is tried
    told: list[Event] = []
    server.client().set(STREAM, "no stream")
    client = connect(server.url, on_event=told.append)
    lock = client.lock(name)
    with Recorder(client) as recorder:
        for _ in range(3):
            with lock:
                pass
        until(lambda: sum(isinstance(one, Released) for one in told) == 3, within=SOON, what="all is told")
        until(lambda: recorder._missed == 6, within=SOON, what="all was tried")
        until(lambda: warnings_of(caplog), within=SOON, what="it is logged")
        (warning,) = warnings_of(caplog)
        assert "WRONGTYPE" in warning
        server.client().delete(STREAM)
        with lock:
            pass
    until(lambda: len(warnings_of(caplog)) == 2, within=SOON, what="the end is logged")
    assert "6 events are missing" in warnings_of(caplog)[1]
    assert kinds(server.url, name) == ["Granted", "Released"]


def test_a_server_that_is_down_is_one_warning(
    own_server: Server, connect: Callable[..., Client], name: str, caplog: Any
) -> None:
    told: list[Event] = []
    client = connect(own_server.url, ttl=60.0, node_timeout=5.0, on_event=told.append)
    recorder, locks = Recorder(client), [client.lock(f"{name}-{number}") for number in range(3)]
    for lock in locks:
        lock.acquire()
    own_server.kill()
    for lock in locks:
        lock.release()
    until(
        lambda: sum(isinstance(one, ReleaseUnconfirmed) for one in told) == 3, within=SOON, what="the releases are told"
    )
    until(lambda: recorder._missed >= 3, within=SOON, what="the recorder has given them up")
    recorder.close()
    until(lambda: warnings_of(caplog), within=SOON, what="it is logged")
    assert len(warnings_of(caplog)) == 1
    done = relock("history", name, nodes=own_server.url)
    assert (done.returncode, done.stdout) == (ExitCode.UNREACHABLE, "")


# Arguments ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"maxlen": 0}, ConfigurationError),
        ({"maxlen": 1.5}, TypeError),
        ({"maxlen": True}, TypeError),
        ({"stream": ""}, ConfigurationError),
        ({"stream": "\udc00"}, ConfigurationError),
        ({"stream": b"a"}, TypeError),
        ({"client": "redis://127.0.0.1:1"}, TypeError),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    given: dict[str, Any] = {"client": Client("redis://127.0.0.1:1"), **options}
    with pytest.raises(error, match=next(iter(options))):
        Recorder(**given)


@pytest.mark.parametrize("since", ["", "h", "1w", "-1h", "nan", "1 h"])
def test_a_time_that_is_none_is_refused(since: str) -> None:
    done = relock("history", "a", "--since", since, nodes="redis://127.0.0.1:1")
    assert (done.returncode, "1h or 7d" in done.stderr) == (2, True)
