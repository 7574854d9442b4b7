"""Quarantine of a master whose clock stepped: it loses its vote, because it may have ended leases too early.

A step that a quorum of the masters shows at the same moment is a step of the client's own clock: its machine was
suspended, say. Then no master loses its vote.
"""

from collections import defaultdict
from collections.abc import Sequence, Set

from relock._core.clocks import ClockStep
from relock._core.effects import Ask
from relock._core.quorum import quorum_of
from relock._keys import lock_keys
from relock._scripts import load

SAME_SECONDS = 0.1  # steps that differ by less than this, or by less than a tenth, are the same step
NOBODY = "relock clocks"  # the name of a lock that no owner takes


def sample(prefix: str, until: float) -> Ask:
    """Return a request whose replies carry each master's time, which the driver compares with the bounds it knows."""
    return Ask((load("inspect").call(lock_keys(prefix, NOBODY), limit=1),), until)


def is_own_step(shown: ClockStep, steps: Sequence[ClockStep], masters: int) -> bool:
    """Return whether a quorum of the masters shows the step that one of them has shown.

    `steps` are the recent steps of all masters. Only those that may have happened at the same moment count. If the
    client's machine stood still twice, some masters may show that in two steps, and others in one. So sums of steps are
    compared as well, among the masters with a step that may have happened at the moment of this one.
    """
    own = [step for step in steps if step.master == shown.master]
    sums: defaultdict[int, float] = defaultdict(float)
    for step in steps:
        if any(map(step.may_be_one_with, own)):
            sums[step.master] += step.seconds
    alike = [(step.master, step.seconds) for step in steps if step.may_be_one_with(shown)]
    summed = [(master, sums[master]) for master in {shown.master, *(master for master, _ in alike)}]
    return _is_shown(shown.seconds, alike, masters) or _is_shown(sums[shown.master], summed, masters)


def _is_shown(seconds: float, steps: Sequence[tuple[int, float]], masters: int) -> bool:
    near = SAME_SECONDS + abs(seconds) / 10
    return len({master for master, other in steps if abs(other - seconds) <= near}) >= quorum_of(masters)


def is_undecided(unheard: Set[int], steps: Sequence[ClockStep], masters: int) -> bool:
    """Return whether a step may turn out to be our own: some masters were not heard, and all others show steps too.

    `unheard` are the masters that have not answered since; `steps` are as for `is_own_step`.
    """
    return bool(unheard) and len(unheard | {step.master for step in steps}) == masters


def quarantine(prefix: str, client: str, incarnation: bytes, until: float) -> Ask:
    """Return the request that takes the vote of the master with this `incarnation`, for all clients and one guard."""
    call = load("quarantine").call(lock_keys(prefix, NOBODY), accused=incarnation, client=client)
    return Ask((call,), until)
