"""Latches on real servers: several processes, a Cluster, a fork, and what a loop leaves behind."""

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.cluster import ClusterOfServers
from support.masters import Deployment
from support.until import until

from relock import AsyncClient, Client, QuorumError

SOON = 30.0  # seconds


# Arrives at a latch for three in another process, and tells when it is open.
ARRIVE_AND_WAIT = """
import sys
from relock import Client
_, name, party, seconds, *urls = sys.argv
with Client(urls) as client:
    latch = client.latch(name, 3)
    print(party, latch.arrive(party) < 3, latch.wait(float(seconds)))
"""


def test_processes_wait_for_each_other(server: Deployment, client: Client, name: str) -> None:
    urls = [server.url] if isinstance(server.url, str) else list(server.url)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", ARRIVE_AND_WAIT, name, party, str(SOON), *urls], stdout=subprocess.PIPE, text=True
        )
        for party in "ab"
    ]
    latch = client.latch(name, 3)
    until(lambda: latch.missing() == 1, within=SOON, what="both have arrived")
    assert not latch.wait(0)
    assert latch.arrive("a") == 1, "a job that runs again"
    assert latch.arrive("c") == 0
    assert [child.communicate(timeout=SOON)[0].split() for child in children] == [
        ["a", "True", "True"],
        ["b", "True", "True"],
    ]
    assert latch.info().arrived == ("a", "b", "c")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_another_party(client: Client, name: str) -> None:
    latch = client.latch(name, 2)
    assert latch.arrive() == 1
    child = multiprocessing.get_context("fork").Process(target=latch.arrive)
    child.start()
    assert latch.wait(SOON)
    child.join(SOON)
    assert child.exitcode == 0


@pytest.mark.every_server
def test_a_latch_on_a_cluster(cluster: ClusterOfServers, connect: Callable[..., Client], name: str) -> None:
    one, two = connect(cluster.url), connect(cluster.url)
    for number in range(6):  # in several slots
        latch, other = one.latch(f"{name}-{number}", 2), two.latch(f"{name}-{number}", 2)
        opened = threading.Event()

        def wait(latch: Any = latch, opened: threading.Event = opened) -> None:
            if latch.wait(SOON):
                opened.set()

        waiter = threading.Thread(target=wait, daemon=True)
        waiter.start()
        assert (other.arrive("a"), other.arrive("a"), other.arrive("b")) == (1, 1, 0)
        waiter.join(SOON)
        assert opened.is_set()
        assert (latch.missing(), latch.info().arrived) == (0, ("a", "b"))
    assert sorted(one.names(f"{name}-*", kind="latch")) == [f"{name}-{number}" for number in range(6)]


def test_a_key_of_another_type_is_an_error_at_once(server: Deployment, client: Client, name: str) -> None:
    for one in server.members:
        one.cli("SET", f"lock:{{{name}}}:latch", "theirs")
    latch = client.latch(name, 2)
    for call in (latch.arrive, latch.wait, latch.missing):
        with pytest.raises(QuorumError, match="WRONGTYPE"):
            call()


def test_loops_that_end_leave_no_waiter(server: Deployment, name: str) -> None:
    url: Any = server.url

    async def give_up(client: AsyncClient) -> None:
        latch = client.latch(name, 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(latch.wait(), 0.2)
        task = asyncio.ensure_future(latch.wait())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with Client(url) as client:
        for _ in range(3):
            asyncio.run(give_up(AsyncClient(client)))
        assert client._session.hubs.waiters() == []
        assert client.latch(name, 2).missing() == 2
