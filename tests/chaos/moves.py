"""The kinds of fault in which masters change their places with their replicas, most of them with connections open.

The planned ones lose nothing, so they must not cost anybody a hold, guard or not. The others lose what the replica had
not heard of; there the restart guard has to keep everybody out until the leases from before are over.

An old master never takes writes beside the new one here, as nothing is promised then: it is paused, and a replica, dead
or without connections that write before it goes on.
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

MOVE_SECONDS = 5.0  # by when a waiter that listens at an old master has found the new one
EARLY_SECONDS = 0.1
LATE_SECONDS = (0.2, 1.5)
ALONE_SECONDS = (0.3, 4.0)
BEHIND_SECONDS = (0.0, 1.0)
AWAY_SECONDS = (0.0, 0.2)
DOWN_SECONDS = (0.0, 0.5)


def move_bound(ttl: float, guard: float) -> float:
    """The move is found, and the new master's guard is over; its name may change once more as it gets a replica."""
    return MOVE_SECONDS + 2 * 1.02 * guard


@frozen
class Way:
    """How one move goes: drawn beforehand, as masters move at the same time, each in a thread of its own.

    Attributes:
        early: the address leads to the replica before that is a master.
        late: for so many seconds it still leads to the old master.
        kills: the old master's connections are ended, but for those that subscribe.
        dies: the old master is killed; else it becomes a replica with its connections open.
        behind: for so many seconds more the replica hears nothing, once it lacks something.
        quiet: processes that hold nothing are stopped while the master is a replica, so that they see nothing of it.
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
    """All there is to draw."""
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
    """Makes what is done with one pair a kind of fault: it is done to all that are struck at the same time.

    A move says when its master has moved; the last one's moment is what the time to the next grant counts from.
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
    """The servers see to it themselves; the address follows, before or after."""
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
    """Writes wait, the replica becomes the master, and the master its replica."""
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
    """The old master stays one, and answers whoever subscribed there; all who write are sent away."""
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
    """Whether the replica is the master now, with all that there was; writes still wait on the old one then."""
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
    """The replica that becomes the master lacks what was granted last."""
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
    """The master becomes the replica of its own replica, which lacks what was granted last, and the master again."""
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
    """The replica lacks a grant then, and for as long as what it knows of may end meanwhile it goes on lacking it."""
    wait_for_a_grant(field)
    time.sleep(way.behind)
