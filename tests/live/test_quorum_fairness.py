"""Fairness over five masters: contenders make progress, in their order, whatever happens to a minority of them."""

import json
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from attrs import define, field
from support.masters import Masters
from support.processes import Worker
from support.quorum import is_everywhere, key_of, replies, wait_for_votes
from support.servers import Server
from support.until import until
from support.urls import Urls

from relock import Client

TTL = 3.0  # and the guard
OPTIONS = {"ttl": TTL, "restart_guard": TTL, "node_timeout": 0.5}
PROCESSES = 5
CONTENDERS = 50
HOLD_SECONDS = 0.01
HAND_OFF_SECONDS = 1.0
HAND_OFF_SECONDS_MAX = 6.0  # a busy machine may delay a few, but not for as long as the dead count as alive
HELD_UP_MAX = 2


def are_swift(hand_offs: list[float]) -> bool:
    """Return whether no contender waited for a heartbeat, or for a lease to end."""
    held_up = [seconds for seconds in hand_offs if seconds >= HAND_OFF_SECONDS]
    return len(held_up) <= max(HELD_UP_MAX, len(hand_offs) // 5) and max(hand_offs) < HAND_OFF_SECONDS_MAX


@define
class Crowd:
    """Contenders for one lock, of several processes; each is known by a number."""

    masters: Masters
    name: str
    workers: list[Worker]
    said: list[dict[str, Any]] = field(factory=list)
    count: int = 0
    away: tuple[Server, ...] = ()  # masters that are not asked for waiters

    def come(self) -> None:
        """Start one more contender."""
        order = {"do": "acquire", "id": self.count, "name": self.name, "hold": HOLD_SECONDS}
        self.workers[self.count % len(self.workers)].send(order)
        self.count += 1

    def queue(self) -> None:
        """Start one more contender, and wait until it is in the queue of a quorum."""
        self.come()
        until(self.is_queued, within=20, what=f"{self.count} wait on a quorum")

    def is_queued(self) -> bool:
        """Return whether all that came are waiting on a quorum."""
        asked = [member for member in self.masters.members if member not in self.away]
        sizes = replies(asked, "ZCARD", f"{key_of(self.name)}:queue")
        return sizes.count(self.count) >= self.masters.quorum

    def served(self, number: int) -> dict[str, Any]:
        """Return a contender's report that it has the lock, after checking that none fails meanwhile."""
        worker = self.workers[number % len(self.workers)]
        while not any(one["event"] == "granted" and one["id"] == number for one in self.said):
            one = worker.receive(60.0)
            assert one["event"] in ("granted", "releasing", "released"), one
            self.said.append(one)
        return next(one for one in self.said if one["event"] == "granted" and one["id"] == number)

    def granted(self) -> list[dict[str, Any]]:
        """Return the reports of the served contenders, in the order of time, which is also that of the tokens."""
        granted = [one for one in self.said if one["event"] == "granted"]
        by_time = sorted(granted, key=lambda one: one["at"])
        assert by_time == sorted(granted, key=lambda one: one["token"])
        return by_time

    def hand_offs(self) -> list[float]:
        """Return the seconds from each release (called, not done) to the next grant, when all have been served."""
        for number, worker in enumerate(self.workers):
            mine = set(range(number, self.count, len(self.workers)))
            while not mine <= {one["id"] for one in self.said if one["event"] == "released"}:
                self.said.append(worker.receive(60.0))
        let_go = {one["id"]: one["at"] for one in self.said if one["event"] == "releasing"}
        return [after["at"] - let_go[before["id"]] for before, after in pairwise(self.granted())]

    def order(self) -> list[int]:
        """Return the contenders that were served, in order."""
        return [one["id"] for one in self.granted()]


@pytest.fixture
def masters_count() -> int:
    return 5


@pytest.fixture
def masters(start_server: Callable[..., Masters]) -> Masters:
    """Masters that relock has never seen."""
    return start_server()


@pytest.fixture
def holder(masters: Masters, connect: Callable[..., Client], name: str) -> Client:
    """A client whose masters have their votes."""
    client = connect(masters.url, **OPTIONS)
    wait_for_votes(client, masters, name)
    return client


@pytest.fixture
def crowd(masters: Masters, holder: Client, start_worker: Callable[..., Worker], name: str) -> Crowd:
    """An empty crowd, whose processes are started and connected."""
    workers = [start_worker("workers.locker", *arguments(masters)) for _ in range(PROCESSES)]
    for worker in workers:
        assert worker.receive()["event"] == "ready"
        await_connected(worker, masters, f"{name}-connected")
    return Crowd(masters, name, workers)


def arguments(masters: Masters) -> tuple[Urls, str]:
    """Return the orders for a worker."""
    return masters.url, json.dumps(OPTIONS)


def await_connected(worker: Worker, masters: Masters, name: str) -> None:
    """Wait until all masters grant to a process."""

    def all_grant() -> bool:
        worker.send({"do": "acquire", "id": -1, "name": name})
        assert worker.receive()["event"] == "granted"
        everywhere = is_everywhere(masters, name)
        worker.send({"do": "release", "id": -1})
        assert [worker.receive()["event"] for _ in range(2)] == ["releasing", "released"]
        return everywhere

    until(all_grant, within=20, what="the process reaches every master")


# Progress and order ---------------------------------------------------------------------------------------------------


def test_contenders_that_all_come_at_once_make_progress_while_a_master_dies_and_comes_back(
    masters: Masters, crowd: Crowd
) -> None:
    """The lock is never idle for a second, though fifty want it at once and a master is killed and restarted empty."""
    for _ in range(CONTENDERS):
        crowd.come()
    await_count(crowd, 10)
    masters.members[0].kill()
    await_count(crowd, 25)
    masters.members[0].start()
    for number in range(CONTENDERS):
        crowd.served(number)
    assert are_swift(crowd.hand_offs())
    assert sorted(crowd.order()) == list(range(CONTENDERS))


def await_count(crowd: Crowd, wanted: int) -> None:
    """Wait until so many have been served, in any order."""

    def enough() -> bool:
        for worker in crowd.workers:
            while (one := worker.look()) is not None:
                assert one["event"] in ("granted", "releasing", "released"), one
                crowd.said.append(one)
        return [one["event"] for one in crowd.said].count("granted") >= wanted

    until(enough, within=60, what=f"{wanted} have been served")


@pytest.mark.parametrize(
    "fault", [pytest.param(False, marks=pytest.mark.long), True], ids=["all well", "a master is killed and restarted"]
)
def test_contenders_of_many_processes_are_served_in_the_order_in_which_a_quorum_saw_them(
    masters: Masters, holder: Client, crowd: Crowd, name: str, fault: bool
) -> None:
    """Fifty of five processes are served first come, first served, also while masters die and come back empty."""
    first, second = masters.members[:2]
    lock = holder.lock(name)
    assert lock.acquire(timeout=20)
    for number in range(CONTENDERS):
        crowd.queue()
        if fault and number == 15:
            first.kill()
        if fault and number == 35:
            first.start()
    lock.release()
    for number in range(CONTENDERS):
        crowd.served(number)
        if fault and number == 10:
            second.kill()
        if fault and number == 30:
            second.start()
    assert crowd.order() == list(range(CONTENDERS))
    assert are_swift(crowd.hand_offs())


def test_the_order_is_kept_when_other_masters_die_than_those_that_a_waiter_did_not_reach(
    masters: Masters, holder: Client, crowd: Crowd, name: str
) -> None:
    """Ten queue without two masters, ten more with all, then two others die: the one common master keeps the order."""
    away, others = masters.members[:2], masters.members[2:4]
    crowd.away = away
    lock = holder.lock(name)
    assert lock.acquire(timeout=20)
    for member in away:
        member.stop()
    for _ in range(10):
        crowd.queue()
    for member in away:
        member.cont()
    crowd.away = ()
    for worker in crowd.workers:
        await_connected(worker, masters, f"{name}-connected")
    await_healed(holder, masters, name)
    for _ in range(10):
        crowd.queue()
    for member in others:
        member.kill()
    lock.release()
    for number in range(20):
        crowd.served(number)
    assert crowd.order() == list(range(20))
    assert are_swift(crowd.hand_offs())


def await_healed(holder: Client, masters: Masters, name: str) -> None:
    """Wait until the holder has all masters, too."""
    until(lambda: is_everywhere(masters, name), within=20, what="those that were away have the hold")
    wait_for_votes(holder, masters, name)


# The dead -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [pytest.param(False, marks=pytest.mark.long), True], ids=["all well", "a master dies with them"]
)
def test_waiters_that_die_at_the_head_are_passed_over_at_once(
    masters: Masters, holder: Client, crowd: Crowd, name: str, fault: bool
) -> None:
    """Three dead processes at the head of the queue cost the next one no wait, even if a master died with them."""
    lock = holder.lock(name)
    assert lock.acquire(timeout=20)
    for _ in range(2 * PROCESSES):
        crowd.queue()
    for worker in crowd.workers[:3]:
        worker.kill()
    if fault:
        masters.members[0].kill()
    let_go = time.monotonic()
    lock.release()
    alive = [number for number in range(2 * PROCESSES) if number % PROCESSES >= 3]
    for number in alive:
        crowd.served(number)
    assert crowd.order() == alive
    at = [let_go, *(one["at"] for one in crowd.granted())]
    assert are_swift([after - before for before, after in pairwise(at)])
