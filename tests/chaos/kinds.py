"""What a kind of fault is, and the book of all of them: each module of faults enters its own, see `chaos.catalogue`."""

import random
from collections.abc import Callable

from attrs import frozen

from chaos.field import Blow, Field, FieldPlan

Strike = Callable[[Field, random.Random, Blow], object]

FIND_SECONDS = 1.0  # how long a fault looks for what it is to strike


@frozen
class Kind:
    """One kind of fault.

    Attributes:
        bound: within how many seconds of its `anchor` somebody has to be granted the lock, while all is as planned;
            a function of the ttl and of the guard.
        anchor: ``begin`` where the lock is to go on under the fault, ``end`` where it may stand still until then.
        forgets: masters that it strikes have no vote for a while afterwards.
        keeps: where there is no guard, it takes no hold away nevertheless.
        needs_replicas: it moves masters, so there must be somewhere to move them to.
        lonely: no other fault of masters may come with it: only of a minority is it promised that it does no harm.
        minority: it strikes a minority of several masters only.
        is_network: it is the proxies that strike.
        is_inside: it is what else a process does that strikes it.
        weight: how often it is chosen.
    """

    name: str
    strike: Strike
    bound: Callable[[float, float], float]
    anchor: str = "end"
    whom: str = "masters"
    forgets: bool = False
    keeps: bool = False
    needs_replicas: bool = False
    lonely: bool = False
    minority: bool = False
    is_network: bool = False
    is_inside: bool = False
    weight: float = 1.0

    def may_come_with(self, other: "Kind") -> bool:
        """Whether another fault may strike at the same time, chosen after this one."""
        return not other.lonely and not (self.lonely and other.whom == "masters")

    def is_possible(self, plan: FieldPlan) -> bool:
        """Whether there is what it strikes."""
        return not (self.is_network and plan.is_direct) and (plan.has_replicas or not self.needs_replicas)

    def is_borne(self, plan: FieldPlan) -> bool:
        """Whether all that is promised holds under it."""
        return plan.guard > 0 or self.keeps or not self.forgets


KINDS: dict[str, Kind] = {}

# T = the lease, G = the guard. A heartbeat is sent every 3 s; a waiter that sends none for 10 s is passed over.
POLL_SECONDS = 3.0
DEAF_SECONDS = 10.0


def lease_bound(ttl: float, guard: float) -> float:
    """T and a heartbeat."""
    return ttl + POLL_SECONDS


def poll_bound(ttl: float, guard: float) -> float:
    """A heartbeat."""
    return POLL_SECONDS


def guard_bound(ttl: float, guard: float) -> float:
    """G, with what it takes for clocks that run fast, and a heartbeat."""
    return 1.02 * guard + POLL_SECONDS


def step_bound(ttl: float, guard: float) -> float:
    """As for the guard, and for leases that are longer by as much as a clock was set."""
    return 2 * ttl + 1.02 * guard + POLL_SECONDS


def deaf_bound(ttl: float, guard: float) -> float:
    """Until a waiter that says nothing is passed over, and a heartbeat."""
    return DEAF_SECONDS + POLL_SECONDS


def kind(name: str, bound: Callable[[float, float], float], **options: object) -> Callable[[Strike], Strike]:
    """Makes a function a kind of fault."""

    def keep(strike: Strike) -> Strike:
        KINDS[name] = Kind(name, strike, bound, **options)  # type: ignore[arg-type]
        return strike

    return keep


def network(name: str) -> Callable[[Strike], Strike]:
    """Makes a function a kind of fault of the network."""
    return kind(name, poll_bound, is_network=True)
