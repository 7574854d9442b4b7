"""`relock guard`, and the reports of `relock doctor` and of the warning about a guard that was set by mistake."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from support.cli import relock
from support.servers import Server, free_port

from relock import Client, QuorumError, RelockWarning

Connect = Callable[..., Client]
LONG = 600.0
PART = LONG * 1.02  # with the allowance for clocks that run at different rates


def masters(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.stdout)["masters"]
    return found


@pytest.fixture
def careless(own_server: Server, connect: Connect) -> Client:
    """A client that has set a guard of ten minutes, unlike all others."""
    client = connect(own_server.url, restart_guard=LONG, node_timeout=9.0)  # a slow machine answers, too
    with pytest.raises(QuorumError):
        client.lock("a").acquire(blocking=False)
    return client


def test_a_command_with_wrong_nodes_leaves_no_guard(own_server: Server) -> None:
    nodes = " ".join([own_server.url, *(f"redis://127.0.0.1:{free_port()}" for _ in range(2))])
    done = relock("run", "--ttl", "600", "--no-wait", "a", "true", nodes=nodes)
    assert done.returncode == 69
    assert not own_server.cli("EXISTS", "lock:master")


def test_a_guard_is_shown_with_who_has_set_it_and_until_when(own_server: Server, careless: Client) -> None:
    done = relock("guard", "--json", nodes=own_server.url)
    (shown,) = masters(done)
    assert (done.returncode, shown["guard_seconds"], shown["set_by"]) == (0, PART, careless._session.client_id)
    assert 0 < shown["vote_in_seconds"] < PART
    assert shown["set_at"] < own_server.cli("TIME")[0] + 1
    assert (shown["outcome"], shown["trouble"]) == (None, None)
    plain = relock("guard", nodes=own_server.url).stdout
    assert f"a guard of 612 s, set by {careless._session.client_id} at 20" in plain
    assert "no vote until 20" in plain
    doctor = relock("doctor", nodes=own_server.url).stdout
    assert "more, until 20" in doctor
    assert f"set by {careless._session.client_id} at 20" in doctor
    assert "relock guard --lower" in doctor


def test_a_guard_is_lowered_only_with_a_yes(own_server: Server, careless: Client, connect: Connect) -> None:
    assert careless._session.options.restart_guard == LONG
    for answer in ("", "n\n"):
        done = relock("guard", "--lower", nodes=own_server.url, answer=answer)
        assert done.returncode == 1
        assert "A lease that a master has forgotten may still run, for up to 6" in done.stderr
    with pytest.warns(RelockWarning, match="relock guard --lower ends it"), pytest.raises(QuorumError):
        connect(own_server.url).lock("a").acquire(blocking=False)
    done = relock("guard", "--lower", "--json", nodes=own_server.url, answer="y\n")
    assert done.returncode == 0
    assert masters(done)[0]["outcome"] == "lowered"
    assert connect(own_server.url).lock("a").acquire(blocking=False)


def test_a_script_lowers_without_a_question(own_server: Server, careless: Client, connect: Connect) -> None:
    done = relock("guard", "--lower", "--yes", nodes=own_server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "its guard was ended" in done.stdout
    lock = careless.lock("a")
    assert lock.acquire(blocking=False), "a client that knows the larger guard writes it again"
    assert masters(relock("guard", "--json", nodes=own_server.url))[0]["guard_seconds"] == PART


def test_a_master_without_a_guard_is_left_alone(own_server: Server) -> None:
    done = relock("guard", "--lower", nodes=own_server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "no guard" in done.stdout
    assert not own_server.cli("EXISTS", "lock:master")


def test_a_master_that_does_not_answer_is_named(own_server: Server) -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    assert relock("guard", "--yes", nodes=away).returncode == 2
    done = relock("guard", "--json", nodes=f"{own_server.url} {away}")
    assert done.returncode == 69
    assert "refused" in masters(done)[1]["trouble"]
