"""Quarantine of a master, which takes its vote: its clock stepped, so it may have forgotten leases before their time.

A step that a quorum of the masters shows at the same moment is the client's own (a machine that was suspended, say),
and no master is accused.
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
    """Return a request that has each master reply with its time: the driver compares that with the bounds it knew."""
    return Ask((load("inspect").call(lock_keys(prefix, NOBODY), limit=1),), until)


def is_own_step(shown: ClockStep, steps: Sequence[ClockStep], masters: int) -> bool:
    """Return whether a quorum of the masters shows the step that one of them has shown.

    `steps` are those of a short time. Only those that may have happened at the same moment count. Where the client's
    machine stood still twice, some masters may show that in two steps, and others in one. So the sums are compared as
    well, but only with those of masters that may have shown this step in one of theirs.
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
    """Return whether a step may yet turn out to be our own: no clock is known to be steady, and some are not heard.

    `unheard` are the masters of which nothing is known; `steps` are as for `is_own_step`.
    """
    return bool(unheard) and len(unheard | {step.master for step in steps}) == masters


def quarantine(prefix: str, client: str, incarnation: bytes, until: float) -> Ask:
    """Return the request that takes the vote of the master that `incarnation` names, for all and during its guard."""
    call = load("quarantine").call(lock_keys(prefix, NOBODY), accused=incarnation, client=client)
    return Ask((call,), until)
