"""The kinds of fault in which masters change their places with their replicas, most of them with connections open.

A planned move loses nothing, so it must cost no hold, with a guard or without. The other moves lose data that the
replica had not received. There the restart guard must grant nothing until the leases from before are over.

An old master never takes writes beside the new one here, because relock promises nothing then. The old master is
paused, and before it goes on it becomes a replica, dies, or loses the connections that write.
"""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack

from attrs import frozen

from chaos.faults import each, stopped, wait_for_a_grant
from chaos.field import Blow, Field
from chaos.history import clock
from chaos.kinds import Strike, kind
from chaos.pairs import Pair

MOVE_SECONDS = 5.0  # until a waiter that listens at an old master has found the new one
EARLY_SECONDS = 0.1
LATE_SECONDS = (0.2, 1.5)
ALONE_SECONDS = (0.3, 4.0)
BEHIND_SECONDS = (0.0, 1.0)
AWAY_SECONDS = (0.0, 0.2)
DOWN_SECONDS = (0.0, 0.5)


def move_bound(ttl: float, guard: float) -> float:
    """Bound until clients find the move and the new master's guard ends; a new replica may change its id once more."""
    return MOVE_SECONDS + 2 * 1.02 * guard


@frozen
class Way:
    """Course of one move, drawn beforehand because masters move at the same time, each in a thread of its own.

    Attributes:
        early: the address leads to the replica before that is a master.
        late: for so many seconds the address still leads to the old master.
        kills: the old master ends its connections, except those with a subscription.
        dies: the old master is killed; else it becomes a replica with its connections open.
        behind: once the replica lacks a grant, it hears nothing for so many seconds more.
        quiet: processes without a holder are stopped while the master is a replica, so that they do not see that.
    """

    early: bool
    late: float
    kills: bool
    dies: bool
    behind: float
    quiet: bool
    alone: float
    away: float
    down: float


Move = Callable[[Field, Pair, Way, Callable[[], None]], bool]


def draw(dice: random.Random) -> Way:
    """Draw how one move goes."""
    when = dice.choice(["early", "at once", "late"])
    return Way(
        early=when == "early",
        late=dice.uniform(*LATE_SECONDS) if when == "late" else 0.0,
        kills=dice.random() < 0.3,
        dies=dice.random() < 0.5,
        behind=dice.uniform(*BEHIND_SECONDS),
        quiet=dice.random() < 0.5,
        alone=dice.uniform(*ALONE_SECONDS),
        away=dice.uniform(*AWAY_SECONDS),
        down=dice.uniform(*DOWN_SECONDS),
    )


def move(name: str, *, keeps: bool = False) -> Callable[[Move], Strike]:
    """Make a move of one pair a kind of fault, which moves all pairs that it strikes at the same time.

    A move tells when its master has moved; the time to the next grant counts from the last of these moments.
    """

    def decorate(do: Move) -> Strike:
        def strike(field: Field, dice: random.Random, blow: Blow) -> None:
            way = draw(dice)
            moved: list[float] = []

            def one(number: int) -> bool:
                with field.own[number]:
                    pair = field.pair(number)
                    return pair.is_ready() and do(field, pair, way, lambda: moved.append(clock()))

            blow.hit(sum(each(blow, one)))
            blow.since = max(moved, default=None)

        return kind(name, move_bound, anchor="begin", forgets=True, keeps=keeps, needs_replicas=True, weight=2.0)(
            strike
        )

    return decorate


@move("FAILOVER", keeps=True)
def fail_over(field: Field, pair: Pair, way: Way, moved: Callable[[], None]) -> bool:
    """Let the servers move the master themselves, by FAILOVER; the address moves before or after that."""
    if way.early:
        pair.lead()
        time.sleep(EARLY_SECONDS)
    if not pair.fail_over():
        pair.lead_home()
        return False
    field.change_places(pair)
    _lead_late(pair, way)
    moved()
    return True


@move("REPLICAOF by hand", keeps=True)
def replicate_by_hand(field: Field, pair: Pair, way: Way, moved: Callable[[], None]) -> bool:
    """Let writes wait, make the replica the master, and the master its replica."""
    if way.early:
        pair.lead()
    if not _promote_in_step(field, pair):
        return False
    if not way.late:
        pair.lead()
    pair.demote()
    pair.write_again()
    _lead_late(pair, way)
    moved()
    return True


@move("old master left alone", keeps=True)
def leave_alone(field: Field, pair: Pair, way: Way, moved: Callable[[], None]) -> bool:
    """Leave the old master a master, which answers its subscribers; connections that write are ended."""
    if not _promote_in_step(field, pair):
        return False
    pair.lead()
    pair.kill_normal()
    pair.write_again()
    moved()
    time.sleep(way.alone)
    pair.demote()
    return True


def _lead_late(pair: Pair, way: Way) -> None:
    time.sleep(way.late)
    pair.lead()
    if way.kills:
        pair.kill_normal()


def _promote_in_step(field: Field, pair: Pair) -> bool:
    """Return whether the replica became the master, with all the data; writes still wait on the old master then."""
    pair.stop_writing()
    if not pair.is_in_step():
        pair.write_again()
        pair.lead_home()
        return False
    pair.promote()
    field.change_places(pair)
    return True


@move("failover with lag")
def fail_over_behind(field: Field, pair: Pair, way: Way, moved: Callable[[], None]) -> bool:
    """Make a replica the master that lacks the latest grants."""
    pair.cut()
    _fall_behind(field, way)
    if way.dies:
        pair.old.kill()
        time.sleep(way.down)
    else:
        pair.stop_writing()
    pair.promote()
    field.change_places(pair)
    pair.lead()
    moved()
    if way.dies:
        pair.old.restart(empty=True)
    pair.demote()
    pair.write_again()
    return True


@move("failing back")
def fail_back(field: Field, pair: Pair, way: Way, moved: Callable[[], None]) -> bool:
    """Make the master the replica of its own replica, which lacks the latest grants, and then the master again."""
    pair.promote()
    _fall_behind(field, way)
    with ExitStack() as stack:
        for process in field.outside() if way.quiet else []:
            stack.enter_context(stopped(field, process))
        pair.demote()
        time.sleep(way.away)
        pair.take_back()
    moved()
    return True


def _fall_behind(field: Field, way: Way) -> None:
    """Wait for a grant, which the replica then lacks, and so long that the leases that it knows may end."""
    wait_for_a_grant(field)
    time.sleep(way.behind)
