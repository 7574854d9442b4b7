"""Requests and replies that are lost or come late: the outcome is as if they had come in time.

The exception is a caller that was told that too few masters answered: then nothing is left of its call.
"""

from collections.abc import Callable

import pytest
from support.proxy import Fault, Line, Match

from contract.rigs.calls import CALLS, SINGLE, Call, Kind, leave, make, shut, take
from contract.rigs.rig import BRIEF, Rig, all_done, calls, release_all
from relock import QuorumError

Fate = Callable[[Line, Match], Fault]

FATES: dict[str, Fate] = {
    "the request is late": Line.hold_request,
    "the request is lost": Line.lose_request,
    "the reply is late": Line.hold_reply,
    "the reply is lost": lambda line, match: line.swallow_reply(match, mute=True),
}
each_fate = pytest.mark.parametrize("fate", FATES.values(), ids=FATES)


@each_fate
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
@pytest.mark.parametrize("kind", SINGLE)
def test_whatever_becomes_of_a_request(call: Call, fate: Fate, kind: Kind, rig: Rig, name: str) -> None:
    """The same client goes on with another lock meanwhile, and does not take late replies for its next ones."""
    client, others = rig.client(node_timeout=BRIEF), rig.client()
    rig.warm_up(client, kind)
    lock, _ = make(client, name, kind, timeout=0)
    begin, levels = rig.clock(), call.after

    def prepare() -> None:
        leave(lock)
        take(lock, call.levels)

    def do() -> None:
        nonlocal begin, levels
        begin, levels = rig.clock(), call.after
        try:
            call.do(lock)
        except QuorumError:
            levels = call.interrupted
        assert lock.hold_count == levels

    faults = rig.until_asked(lambda line: fate(line, calls(name, call.script_for(kind))), do, before=prepare)
    another = client.lock(f"{name}-another")
    take(another, 1)
    if fate is FATES["the request is late"] and "acquire" in call.script_for(kind):
        rig.until(lambda: rig.clock() > begin + 4 * BRIEF, "all undos are over")
    release_all(faults)
    rig.until(lambda: all_done(faults), "the late requests and replies have come")
    rig.until(lambda: rig.agree_on(name, levels), "the same here and there")
    leave(lock)
    rig.until_free(name, "a request with that fate")
    shut(others, name, kind)
    assert another.owned()
    another.release()
    rig.until_free(another.name, "the other lock")
    statistics = client.statistics()
    assert (statistics.held, statistics.losses) == (0, 0)


@each_fate
def test_whatever_becomes_of_a_request_for_a_place_in_the_queue(fate: Fate, rig: Rig, name: str) -> None:
    client, others = rig.client(node_timeout=BRIEF), rig.client()
    rig.warm_up(client)
    holder = others.lock(name, owner="holder")
    rig.take_everywhere(holder, 1)
    before = rig.holders(name)

    def ask() -> None:
        try:
            assert not client.lock(name).acquire(timeout=BRIEF / 2)
        except QuorumError:
            pass  # the last sign of the masters was silence

    faults = rig.until_asked(lambda line: fate(line, calls(name, "enqueue")), ask)
    release_all(faults)
    rig.until(lambda: all_done(faults), "the late requests and replies have come")
    rig.until(lambda: not any(rig.queued(name)), "no waiter is left")
    assert client.statistics().waiting == 0
    assert rig.holders(name) == before
    holder.release()
    rig.until_free(name, "a request with that fate")


@pytest.mark.several
def test_a_master_that_gives_the_lock_only_after_it_was_told_a_new_count_gets_that_count(rig: Rig, name: str) -> None:
    """A releaser has passed the lock on, and its request reaches one master late."""
    others, client = rig.client(), rig.client()
    rig.warm_up(client)
    rig.warm_up(others)
    holder, lock = others.lock(name), client.lock(name, owner="job")
    rig.take_everywhere(holder, 1)
    waiting = rig.start(lambda: take(lock, 2))
    rig.until(lambda: rig.queues_are(name, 1), "the waiter is queued everywhere")
    fault = rig.lines[0].hold_request(calls(name, "release"))
    holder.release()
    rig.until(fault.struck.is_set, "the request is under way")
    waiting.result()
    fault.release()
    rig.until(lambda: rig.counts(name) == [2] * rig.masters, "every master has both levels")
