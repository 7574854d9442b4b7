"""A client that is closed leaves nothing on any master that can be reached, at once where nothing is pending."""

from collections.abc import Sequence
from contextlib import suppress

import pytest
from support.proxy import Fault, Line

from contract.rigs.calls import leave, take
from contract.rigs.rig import BRIEF, Rig, all_struck, calls, release_all
from relock import QuorumError
from relock._runtime.session import closing


def hold_all(lines: Sequence[Line]) -> list[Fault]:
    """Return faults that hold every request on these lines from now on."""
    return [line.hold_request(lambda _words: True) for line in lines]


@pytest.mark.several
def test_a_release_that_a_minority_has_not_heard_of_is_finished(rig: Rig, name: str) -> None:
    """Requests of the release reach a minority of the masters only after the client is closed."""
    client = rig.client(node_timeout=rig.close_seconds)
    rig.warm_up(client)
    lock = client.lock(name)
    rig.take_everywhere(lock, 1)
    faults = [line.hold_request(calls(name, "release")) for line in rig.lines[rig.quorum :]]
    leave(lock)
    closing.close(client._session)
    assert all_struck(faults)
    assert rig.is_free(name)
    release_all(faults)


def test_an_acquire_that_was_interrupted_is_undone_before_a_close_has_ended(rig: Rig, name: str) -> None:
    """Requests of the acquire reach the masters while the client is being closed: they are void, or are undone."""
    client = rig.client(node_timeout=rig.close_seconds)
    rig.warm_up(client)
    lock = client.lock(name)
    faults = [line.hold_request(calls(name, "acquire")) for line in rig.lines]
    rig.interrupt(lock.acquire, lambda: all_struck(faults))
    going_on = rig.start(lambda: release_all(faults))
    closing.close(client._session)
    going_on.result()
    assert rig.is_free(name)


def test_the_masters_that_are_silent_keep_a_close_for_no_longer_than_two_node_timeouts(rig: Rig, name: str) -> None:
    client = rig.client(node_timeout=BRIEF)
    rig.warm_up(client)
    lock = client.lock(name)
    rig.take_everywhere(lock, 1)
    rig.go_silent()
    lock.release()
    begin = rig.clock()
    closing.close(client._session)
    assert rig.clock() - begin < 2 * BRIEF + rig.slack


def test_a_client_with_nothing_pending_sends_nothing_when_it_is_closed(rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=5 * BRIEF), rig.client()
    rig.warm_up(client)
    with client.lock(name):
        take(others.lock(f"{name}-2"), 1)
        with suppress(QuorumError):  # on a busy machine the masters may seem silent
            assert not client.lock(f"{name}-2").acquire(timeout=5 * BRIEF)
    begin = rig.clock()
    rig.until(lambda: rig.clock() > begin + 15 * BRIEF, "all that was pending is over")
    faults = hold_all(rig.lines)
    begin = rig.clock()
    closing.close(client._session)
    assert rig.clock() - begin < rig.slack
    assert all(line.disarm(fault) for line, fault in zip(rig.lines, faults, strict=True)), "no request was sent"
    leave(others.lock(f"{name}-2"))
