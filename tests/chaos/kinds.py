"""The kinds of fault, and the book of them: each module of faults enters its own, see `chaos.catalogue`."""

import random
from collections.abc import Callable

from attrs import frozen

from chaos.field import Blow, Field, FieldPlan

Strike = Callable[[Field, random.Random, Blow], object]

FIND_SECONDS = 1.0  # for which a fault looks for a target


@frozen
class Kind:
    """One kind of fault.

    Attributes:
        bound: the seconds from its `anchor` within which a worker must get the lock; a function of the ttl and the
            guard.
        anchor: ``begin`` if the lock must go on under the fault, ``end`` if it may stand still until then.
        forgets: the masters that it strikes have no vote for a while afterwards.
        keeps: it takes no hold away, even without a guard.
        needs_replicas: it moves masters, so each needs a replica.
        lonely: no other fault of masters may come with it: relock promises only for a minority that it does no harm.
        minority: it strikes only a minority of several masters.
        is_network: the proxies carry it out.
        needs_loops: it strikes a process whose workers are tasks of an event loop.
        mutes: the workers of its process can take no lock while it lasts, so a lock that only they want stays free.
        is_inside: it happens inside a process, which must go on with its locks.
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
    needs_loops: bool = False
    mutes: bool = False
    is_inside: bool = False
    weight: float = 1.0

    def may_come_with(self, other: "Kind") -> bool:
        """Return whether another fault may strike at the same time, chosen after this one."""
        return not other.lonely and not (self.lonely and other.whom == "masters")

    def is_possible(self, plan: FieldPlan) -> bool:
        """Return whether the field has what the fault strikes."""
        if (self.is_network and plan.is_direct) or (self.needs_loops and not plan.has_loops):
            return False
        return plan.has_replicas or not self.needs_replicas

    def is_borne(self, plan: FieldPlan) -> bool:
        """Return whether relock keeps all its promises under the fault."""
        return plan.guard > 0 or self.keeps or not self.forgets


KINDS: dict[str, Kind] = {}

# T = the lease, G = the guard. Heartbeats make up for a lost wake-up within 3 s, and for a stopped waiter within 10 s.
POLL_SECONDS = 3.0
DEAF_SECONDS = 10.0
HANDED_SECONDS = 3.0  # the lease of a grant that its waiter may not be able to take
HEARTBEAT_SECONDS = 2.5


def lease_bound(ttl: float, guard: float) -> float:
    """Bound of T and a heartbeat."""
    return ttl + POLL_SECONDS


def poll_bound(ttl: float, guard: float) -> float:
    """Bound of one heartbeat."""
    return POLL_SECONDS


def guard_bound(ttl: float, guard: float) -> float:
    """Bound of G, which is longer for clocks that run fast, and a heartbeat."""
    return 1.02 * guard + POLL_SECONDS


def step_bound(ttl: float, guard: float) -> float:
    """Bound as for the guard, and 2 T more: leases last longer if a clock was set back."""
    return 2 * ttl + 1.02 * guard + POLL_SECONDS


def deaf_bound(ttl: float, guard: float) -> float:
    """Bound until releases pass over a silent waiter, and a heartbeat."""
    return DEAF_SECONDS + POLL_SECONDS


def stuck_bound(ttl: float, guard: float) -> float:
    """Bound until a client whose loop stands still loses its turn."""
    return HANDED_SECONDS + HEARTBEAT_SECONDS


def kind(name: str, bound: Callable[[float, float], float], **options: object) -> Callable[[Strike], Strike]:
    """Make a function a kind of fault."""

    def keep(strike: Strike) -> Strike:
        KINDS[name] = Kind(name, strike, bound, **options)  # type: ignore[arg-type]
        return strike

    return keep


def network(name: str) -> Callable[[Strike], Strike]:
    """Make a function a kind of fault of the network."""
    return kind(name, poll_bound, is_network=True)
