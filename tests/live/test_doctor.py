"""`relock doctor` on several masters."""

import contextlib
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from support.cli import relock
from support.clock import Clock
from support.servers import Server

from relock import Client, QuorumError


def doctor(*nodes: str, options: bool = False, as_json: bool = True) -> tuple[int, str]:
    """Run the doctor; return its exit code and its output. The nodes are given by ``--node``, or by the environment."""
    words = [word for node in nodes for word in ("--node", node)] if options else []
    done = relock("doctor", *(["--json"] if as_json else []), *words, nodes="" if options else " ".join(nodes))
    assert not done.stderr
    return done.returncode, done.stdout


def judged(*nodes: str, **how: bool) -> tuple[int, dict[str, Any]]:
    code, printed = doctor(*nodes, **how)
    return code, json.loads(printed)


def findings(of: dict[str, Any], key: str = "findings") -> dict[str, tuple[str, str]]:
    return {finding["check"]: (finding["verdict"], finding["says"]) for finding in of[key]}


@pytest.fixture
def three(start_server: Callable[..., Server]) -> list[Server]:
    return [start_server() for _ in range(3)]


@pytest.mark.parametrize("options", [False, True], ids=["RELOCK_NODES", "--node"])
def test_three_good_masters(three: list[Server], *, options: bool) -> None:
    code, found = judged(*(server.url for server in three), options=options)
    assert (code, found["healthy"]) == (0, True)
    assert [master["address"] for master in found["masters"]] == [server.url for server in three]
    for master in found["masters"]:
        of = findings(master)
        checks = {"reachable", "commands", "INFO", "role", "version", "eviction", "clock", "SCAN", "PUBLISH", "scripts"}
        checks |= {"Pub/Sub"}
        assert {check: of[check][0] for check in checks} == dict.fromkeys(checks, "ok")
        assert of["persistence"][0] == "note"
        assert of["votes"] == ("note", of["votes"][1])
        assert "no client with a restart guard has used it yet" in of["votes"][1]
    together = findings(found, "together")
    assert list(together) == ["clocks"]
    assert together["clocks"][0] == "ok"


def test_the_lines_for_files_have_each_master_and_check(three: list[Server]) -> None:
    code, printed = doctor(*(server.url for server in three), as_json=False)
    assert code == 0
    rows = [line.split("\t")[:3] for line in printed.splitlines()]
    for server in three:
        assert [server.url, "ok", "scripts"] in rows
        assert [server.url, "ok", "eviction"] in rows
    assert ["all masters", "ok", "clocks"] in rows


def test_one_of_three_that_evicts_and_one_that_is_away(three: list[Server]) -> None:
    three[0].cli("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    three[1].kill()
    code, found = judged(*(server.url for server in three))
    first, second, third = (findings(master) for master in found["masters"])
    assert code == 1
    assert first["eviction"][0] == "wrong"
    assert second["reachable"][0] == "wrong"
    assert all(verdict != "wrong" for verdict, _ in third.values())
    assert "clocks" in findings(found, "together")


def test_one_of_three_whose_clock_is_wrong(three: list[Server]) -> None:
    wrong = three[1]
    try:
        clock = Clock(wrong.folder)
    except LookupError as error:
        pytest.skip(str(error))
    wrong.environment = clock.environment
    wrong.restart()
    clock.set(60.0)
    _, found = judged(*(server.url for server in three))
    verdict, says = findings(found, "together")["clocks"]
    assert verdict == "note"
    assert f"the clock of {wrong.url} is" in says
    assert "s ahead of" in says


@pytest.mark.every_server
@pytest.mark.parametrize("command", ["EVALSHA", "EVAL", "TIME", "HMGET", "ZADD"])
def test_a_command_that_was_renamed_is_named(start_server: Callable[..., Server], command: str) -> None:
    code, found = judged(start_server("--rename-command", command, "hidden-from-relock").url)
    assert code == 1
    verdict, says = findings(found["masters"][0])["commands"]
    assert verdict == "wrong"
    assert says == f"it does not know {command}"


@pytest.mark.parametrize("same", ["socket", "address"])
def test_the_same_server_under_two_names_is_one(three: list[Server], same: str) -> None:
    twin = three[0].unix_url if same == "socket" else three[0].url
    code, found = judged(three[0].url, twin, three[1].url)
    verdict, says = findings(found, "together")["independent"]
    assert (code, verdict) == (1, "wrong")
    assert f"127.0.0.1:{three[0].port}" in says
    assert f"127.0.0.1:{three[1].port}" not in says


def test_votes_are_those_of_the_marker(three: list[Server], connect: Callable[..., Client]) -> None:
    """One master has its vote, one waits for it, and one has restarted since."""
    for server, guard in zip(three, (1.0, 60.0, 60.0), strict=True):
        client = connect(server.url, ttl=1.0, restart_guard=guard)
        with contextlib.suppress(QuorumError):
            client.lock("a").acquire(timeout=3.0)  # begins the guard, as the first use
    three[2].cli("HSET", "lock:master", "incarnation", "before")
    _, found = judged(*(server.url for server in three))
    first, second, third = (findings(master)["votes"] for master in found["masters"])
    assert first[0] == "ok"
    assert "it has a vote; the restart guard is 1.0" in first[1]
    assert second[0] == third[0] == "note"
    assert "no vote for" in second[1]
    assert "has restarted" in third[1]
    assert found["masters"][1]["guard"] == pytest.approx(61.2)
    assert 0 < found["masters"][1]["vote_in"] <= 61.2
    assert found["masters"][0]["vote_in"] == 0.0
    assert findings(found, "together")["guard"][0] == "note"


def test_a_marker_that_another_program_has_written_is_wrong(own_server: Server) -> None:
    own_server.cli("HSET", "lock:master", "guard_ms", "soon", "no_vote_until_us", "0")
    assert findings(judged(own_server.url)[1]["masters"][0])["votes"][0] == "wrong"
    own_server.cli("HSET", "lock:master", "guard_ms", "1000", "no_vote_until_us", "soon")
    verdict, says = findings(judged(own_server.url)[1]["masters"][0])["votes"]
    assert (verdict, "lock:master, is damaged" in says) == ("wrong", True)
    own_server.cli("DEL", "lock:master")
    own_server.cli("SET", "lock:master", "x")
    code, found = judged(own_server.url)
    verdict, says = findings(found["masters"][0])["votes"]
    assert (code, verdict, "is no hash" in says) == (1, "wrong", True)


def test_a_single_master_is_asked_for_its_vote_only_where_there_is_a_guard(
    own_server: Server, connect: Callable[..., Client]
) -> None:
    assert "votes" not in findings(judged(own_server.url)[1]["masters"][0])
    assert connect(own_server.url, ttl=1.0, restart_guard=1.0).lock("a").acquire(timeout=20)
    assert findings(judged(own_server.url)[1]["masters"][0])["votes"][0] == "ok"


@pytest.mark.every_server
def test_a_user_who_may_swap_databases_under_the_guard_is_told(
    own_server: Server, connect: Callable[..., Client]
) -> None:
    """The guard does not notice SWAPDB. The doctor's question itself swaps nothing."""
    assert connect(own_server.url, ttl=1.0, restart_guard=1.0).lock("a").acquire(timeout=20)
    keys = set(own_server.cli("KEYS", "*:master"))
    assert findings(judged(own_server.url)[1]["masters"][0])["rights"] == ("note", mock.ANY)
    assert set(own_server.cli("KEYS", "*:master")) == keys
    own_server.cli("ACL", "SETUSER", "default", "-swapdb")
    assert findings(judged(own_server.url)[1]["masters"][0])["rights"][0] == "ok"
