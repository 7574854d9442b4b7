"""Plans of the watchdog (which holds to renew, which are lost, when to plan again), and renewals for callers.

Planning neither keeps state nor sleeps: a driver calls `plan_renewals` at the moment that the last plan named, or
earlier if a hold is granted that is due before that moment.

Holds that were granted together stay due together. So their renewals are spread over the time by which a renewal may
come early. Each write renews a few holds, and keeps neither a master nor a thread of this process busy for long.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from relock._core.call_record import CallFlow
from relock._core.effects import Failure, Pause, Reply
from relock._core.flows.extend import extend, is_confirmed, needs_healing
from relock._core.hold import AHEAD_PART, FOREVER, Hold
from relock._core.host import Host
from relock._events import LossCode

BATCH_MIN = 50  # holds that one write renews: few enough to delay no other request by a millisecond
BATCH_MAX = 500  # bounds the size of a reply buffer, and the time that a thread is busy with the replies
CONNECTING_SECONDS_MIN = 0.005  # before asking again a master that was being connected; doubled each time
PAUSE_SECONDS = 0.002  # between two writes, at least, unless `BATCH_MAX` makes too many of them


class RenewalPlan(NamedTuple):
    """Plan of the watchdog: what to do now, and when to plan again.

    Attributes:
        renew: holds whose renewal is due, the shortest leases first.
        lost: holds that are over, each with the reason.
        look_at: when to plan again, for the other holds; infinity when there are none.
    """

    renew: tuple[Hold, ...]
    lost: tuple[tuple[Hold, LossCode], ...]
    look_at: float


class Pace(NamedTuple):
    """Pace at which renewals are sent.

    Attributes:
        holds: how many holds one write renews.
        seconds: the time from one write to the next.
        until: when to plan again, even if some holds are not renewed yet.
    """

    holds: int
    seconds: float
    until: float


def pace_of(due: Sequence[Hold], now: float, round_seconds: float) -> Pace:
    """Return the pace that spreads renewals of the `due` holds, each late by a thirtieth of its lease at most.

    The holds are in the order of a `RenewalPlan`, so a few short leases do not hurry the rest. A write renews more
    holds only if small writes, which take `round_seconds` each, would be too many for the time.
    """
    seconds = len(due) * min(hold.lease / number for number, hold in enumerate(due, 1)) / AHEAD_PART
    rounds = max(1, int(seconds / (round_seconds + PAUSE_SECONDS)))
    holds = min(max(math.ceil(len(due) / rounds), BATCH_MIN), BATCH_MAX)
    return Pace(holds, seconds / math.ceil(len(due) / holds), now + 2 * seconds)


def plan_renewals(holds: Iterable[Hold], now: float) -> RenewalPlan:
    """Sort `holds` by what must be done with them at `now`."""
    renew: list[Hold] = []
    lost: list[tuple[Hold, LossCode]] = []
    look_at = FOREVER
    for hold in holds:
        if hold.loss is not None:
            continue
        # Comparisons are faster than min(), and ten thousand holds may be looked at a few times in each period.
        due = hold.renew_at if hold.renew_at < hold.deadline else hold.deadline
        if now < due - hold.ttl / AHEAD_PART:  # the usual case first
            look_at = due if due < look_at else look_at
            continue
        reason = hold.reason_for_loss(now)
        if reason is not None:
            lost.append((hold, reason))
        elif hold.wants_renewal(now):
            renew.append(hold)
        else:
            look_at = min(look_at, due if hold.renew_at > now else hold.deadline)
    renew.sort(key=lambda hold: hold.lease)
    return RenewalPlan(tuple(renew), tuple(lost), look_at)


def renew_now(host: Host, hold: Hold, ttl: float | None) -> CallFlow[list[Failure] | None]:
    """Renew `hold` for its owner. Return the failures if no quorum confirmed the renewal, None if one did.

    Raises:
        LockLostError: the hold was lost, before or by now.
    """
    host.check_valid(hold)
    hold.ask_for(ttl or 0.0)
    answers = yield from _renew(host, hold)
    if needs_healing(hold, answers):
        host.heal((hold,))
    host.check_valid(hold)
    host.watchdog.watch(hold)
    if is_confirmed(hold, answers):
        return None
    return [answer for answer in answers if isinstance(answer, Failure)]


def _renew(host: Host, hold: Hold) -> CallFlow[Sequence[Reply | Failure]]:
    """Renew `hold`; return the masters' answers.

    A master that is not known to be down may not be asked because no connection to it is free. If no quorum confirms
    for that reason, ask all again, for a node timeout at most.
    """
    until, pause = host.clock() + host.node_timeout, CONNECTING_SECONDS_MIN
    while True:
        by_hold = yield from extend((hold,), host.clock, host.node_timeout)
        answers = by_hold[0]
        if is_confirmed(hold, answers) or not _is_connecting(host, answers) or host.clock() + pause > until:
            return answers
        yield Pause(pause)
        pause *= 2


def _is_connecting(host: Host, answers: Sequence[Reply | Failure]) -> bool:
    """Return whether one of the masters could not be asked, though it is not known to be down."""
    unasked = [i for i, answer in enumerate(answers) if isinstance(answer, Failure) and not answer.sent]
    return any(not host.is_down(master) for master in unasked)


def confirm_lease(host: Host, hold: Hold) -> CallFlow[float]:
    """Have the masters confirm the full lease of a hold that a releaser gave; return what then remains (s).

    A client that was closed asks no master any more.

    Raises:
        LockLostError: the hold was lost by now.
    """
    if not host.closed:
        yield from extend((hold,), host.clock, host.node_timeout, ends=True)
    host.check_valid(hold)
    return hold.remaining(host.clock())
