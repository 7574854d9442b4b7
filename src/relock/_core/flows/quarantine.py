"""Taking a master's vote: its clock stepped, so it may have forgotten leases before their time.

A step that a quorum of the masters shows at the same moment is the client's own (a machine that was suspended, say),
and nobody is accused.
"""

from collections import defaultdict
from collections.abc import Generator, Sequence

from relock._core.effects import Answer, Ask, Clock, Effect, Failure
from relock._core.quorum import quorum_of
from relock._keys import lock_keys
from relock._scripts import load

SAME_SECONDS = 0.1  # steps that differ by less, or by a tenth, are the same one
NOBODY = "relock clocks"  # a lock that nobody takes

Flow = Generator[Effect, Sequence[Answer], Sequence[Answer]]


def sample(prefix: str, clock: Clock, node_timeout: float) -> Flow:
    """Has every master say what time it is there: the driver compares it with what it knew."""
    call = load("inspect").call(lock_keys(prefix, NOBODY), limit=1)
    return (yield Ask((call,), clock() + node_timeout))


def is_own_step(accused: int, seconds: float, steps: Sequence[tuple[int, float]], masters: int) -> bool:
    """Whether a quorum of the masters shows the step of `seconds` that the one with number `accused` has shown.

    `steps` are masters and seconds of a short time. A machine that stood still twice may show that to some masters in
    two steps and to others in one: so the sums are compared as well.
    """
    sums: defaultdict[int, float] = defaultdict(float)
    for master, other in steps:
        sums[master] += other
    return _is_shown(seconds, steps, masters) or _is_shown(sums[accused], list(sums.items()), masters)


def _is_shown(seconds: float, steps: Sequence[tuple[int, float]], masters: int) -> bool:
    near = SAME_SECONDS + abs(seconds) / 10
    return len({master for master, other in steps if abs(other - seconds) <= near}) >= quorum_of(masters)


def is_undecided(answers: Sequence[Answer], steps: Sequence[tuple[int, float]]) -> bool:
    """Whether it may yet turn out that a step was our own: no clock is known to be steady, and some are not heard.

    `answers` are those to a `sample`, and `steps` as above.
    """
    silent = {master for master, answer in enumerate(answers) if isinstance(answer[0], Failure)}
    return bool(silent) and len(silent | {master for master, _ in steps}) == len(answers)


def quarantine(prefix: str, incarnation: bytes, clock: Clock, node_timeout: float) -> Flow:
    """Takes the vote of the master that `incarnation` names, for everybody and for as long as its guard."""
    call = load("quarantine").call(lock_keys(prefix, NOBODY), accused=incarnation)
    return (yield Ask((call,), clock() + node_timeout))
