"""Clocks of masters that are set while a client has the lock: having seen that, it does not count on the master."""

import contextlib
import warnings
from functools import partial
from typing import Any

import pytest

from relock import Client, LockLostError, QuorumError
from relock._scripts import Script
from relock.testing import Lab
from relock.testing._master import VirtualMaster

TTL_SECONDS = 10.0
STEP_SECONDS = 20.0  # beyond the lease
TRIES = 20


@pytest.fixture
def lab() -> Lab:
    return Lab(masters=3)


def connect(lab: Lab, name: str) -> Client:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lab.client(name, ttl=TTL_SECONDS, renew=False)


def test_nobody_is_let_in_between_seeing_a_step_and_taking_the_vote(lab: Lab) -> None:
    """The first reply shows the step, and the client takes the vote in the background: the next tries come before."""
    holder, watcher = connect(lab, "holder").lock("a"), connect(lab, "watcher")
    got: list[bool] = []

    def work() -> None:
        assert holder.acquire()
        lab.sleep(0.1)
        watcher.info("a")
        lab.masters[2].master.read("DEL", b"lock:{a}")  # as if the master had been away
        lab.masters[0].step(STEP_SECONDS)
        for _ in range(TRIES):
            with contextlib.suppress(QuorumError):
                got.append(watcher.lock("a").acquire(blocking=False))
        assert holder.owned()

    lab.run(work)
    lab.close()
    assert not any(got)


def test_a_step_that_is_seen_before_a_grant_is_in_the_book_shortens_its_leases(lab: Lab) -> None:
    """The clocks are so far apart that the client writes the token to a quorum first: those replies show the step."""
    for number, server in enumerate(lab.masters):
        server.step(3 * TTL_SECONDS * number)
    lock = connect(lab, "holder").lock("a")
    left = [STEP_SECONDS]

    def run(master: VirtualMaster, script: Script, *request: Any) -> Any:
        if script.name == "fence" and left:
            for server in lab.masters:
                server.step(left[0])
            left.clear()
        return VirtualMaster.run(master, script, *request)

    def work() -> None:
        for server in lab.masters:
            server.master.run = partial(run, server.master)  # type: ignore[method-assign]
        assert lock.acquire()
        assert not left
        assert not lock.owned()
        assert lock.lost

    lab.run(work)
    lab.close()


def test_a_late_master_may_show_that_a_step_was_the_clients_own(lab: Lab) -> None:
    """Steps can look as if the client's machine had stood still, though one of the clocks was set."""
    client = connect(lab, "client")
    node_timeout = client._session.node_timeout
    right, wrong, late = lab.masters

    def work() -> None:
        client.info("a")
        lab.sleep(1.0)
        for server in lab.masters:
            server.step(STEP_SECONDS)
        wrong.step(-STEP_SECONDS / 2)
        late.stop()
        client.info("a")
        lab.sleep(3 * node_timeout)

    def wake() -> None:
        lab.sleep(1.0 + node_timeout / 2)
        late.go_on()

    lab.run(work, wake)
    lab.close()
    assert right.accused_at == late.accused_at == float("-inf")
    assert wrong.accused_at > 0.0


def test_a_quorum_that_steps_together_is_trusted_again_at_once(lab: Lab) -> None:
    """Steps can look as if the client's machine had stood still: its holds end, and it may take new ones."""
    lock = connect(lab, "holder").lock("a")

    def work() -> float:
        assert lock.acquire()
        lab.sleep(0.1)
        for server in lab.masters:
            server.step(STEP_SECONDS)
        with pytest.raises(LockLostError):
            lock.extend()
        with contextlib.suppress(LockLostError):
            lock.release()
        began = lab.now
        assert lock.acquire()
        return lab.now - began

    (seconds,) = lab.run(work)
    lab.close()
    assert seconds < 1.0
