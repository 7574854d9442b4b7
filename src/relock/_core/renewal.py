"""The watchdog as a state machine: which holds to renew, which are lost, and when to look again.

It owns nothing and sleeps nowhere: a driver calls `take_stock` whenever the moment has come that the last call named,
or when a hold is granted that is due before that moment.
"""

from collections.abc import Iterable
from typing import NamedTuple

from relock._core.hold import Hold

FOREVER = float("inf")


class Stock(NamedTuple):
    """What is to be done now, and when to look again.

    Attributes:
        renew: holds whose renewal is due.
        lost: holds that are over, each with the reason.
        look_at: when to take stock again; infinity when nothing is held.
    """

    renew: tuple[Hold, ...]
    lost: tuple[tuple[Hold, str], ...]
    look_at: float


def due_at(hold: Hold) -> float:
    """When the watchdog has to look at this hold: at its renewal, and at its deadline at the latest."""
    return FOREVER if hold.loss is not None else min(hold.renew_at, hold.deadline)


def take_stock(holds: Iterable[Hold], now: float) -> Stock:
    """Sorts `holds` by what is to be done with them at `now`."""
    renew: list[Hold] = []
    lost: list[tuple[Hold, str]] = []
    look_at = FOREVER
    for hold in holds:
        if hold.loss is not None:
            continue
        reason = hold.reason_for_loss(now)
        if reason is not None:
            lost.append((hold, reason))
        elif hold.wants_renewal(now):
            renew.append(hold)
        else:
            look_at = min(look_at, due_at(hold) if hold.renew_at > now else hold.deadline)
    return Stock(tuple(renew), tuple(lost), look_at)
