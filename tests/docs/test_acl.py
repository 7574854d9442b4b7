"""Rights of the user on the ACL page: they suffice for everything that the API offers."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.servers import Server

import relock
from relock import Client, LockLostError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "acl.md"
TTL = 4.0


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
