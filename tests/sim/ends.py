"""The end of holds, of clients and of runs: the referee checks that nothing is left that must be gone."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from attrs import define, field

from relock._keys import LockKeys
from relock._runtime.session.session import Session
from relock.testing._process import Process
from relock.testing._server import Server
from relock.testing._world import World
from sim import leftovers
from sim.beliefs import Belief
from sim.idle import Idle
from sim.stuck import Stuck

RELEASED_SECONDS = 0.6  # from a release until no master has that hold, when all is well
ABANDONED_SECONDS = 0.7  # from the end of its lease until no master has a hold whose owner never goes on
LATE_SECONDS = 0.5  # from the return of `close` until nothing that was sent before can arrive


@define
class Ends:
    """The holds and clients that must be gone from the masters, and by when.

    Attributes:
        accuse: is called with each violation.
        closing: the processes whose clients are closed, or are being closed, and the holds of their threads.
    """

    world: World
    servers: Sequence[Server]
    idle: Idle
    stuck: Stuck
    sessions: list[tuple[Process, Session]]
    accuse: Callable[[str], None]
    closing: dict[Process, set[bytes]] = field(factory=dict)
    keys: LockKeys = leftovers.LOCK_KEYS

    def released(self, belief: Belief) -> None:
        """Expect that no master has a hold soon after its release, which has just been called."""
        seconds = max(0.0, self.stuck.until(belief.process) - self.world.now) + RELEASED_SECONDS
        self.world.after(seconds, partial(self._check_released, belief))

    def abandoned(self, process: Process, beliefs: Iterable[Belief]) -> None:
        """Note that the loop of a process was closed: its tasks never go on, and their holds end with their leases."""
        left = [one for one in beliefs if one.process is process and not (one.is_released or one.is_abandoned)]
        for belief in left:
            belief.is_abandoned = belief.is_over = belief.has_left = True
            belief.kept_until = self.world.now + belief.hold.ttl + ABANDONED_SECONDS
            self.world.at(belief.kept_until, partial(self._check_released, belief))
        self.idle.died(process, [belief.hold.ttl + ABANDONED_SECONDS for belief in left])

    def closes(self, process: Process, beliefs: Iterable[Belief]) -> None:
        """Note that the client of a process is about to be closed: its threads' holds, also later ones, expire."""
        self.closing.setdefault(process, set())
        for belief in beliefs:
            self.granted(belief)

    def granted(self, belief: Belief) -> None:
        """Note a hold of a thread, perhaps of a client that is being closed: then its release reaches no master."""
        kept = self.closing.get(belief.process)
        if kept is not None and not belief.has_left:
            kept.add(belief.hold.owner)
            belief.kept_until = self.world.now + belief.hold.ttl + ABANDONED_SECONDS
            self.idle.left([belief.hold.ttl + ABANDONED_SECONDS])

    def closed(self, process: Process, session: Session) -> None:
        """Check that nothing of a client is left when its `close` returns, and that nothing arrives later."""
        self._check_closed(process, session)
        self.world.after(LATE_SECONDS, partial(self._check_closed, process, session))

    def _check_closed(self, process: Process, session: Session) -> None:
        self._accuse_all(leftovers.of_client(self.servers, process, session, self.closing[process], self.keys))

    def _check_released(self, belief: Belief) -> None:
        """Check that no master has a hold that was released, or abandoned, some time ago."""
        if not belief.process.is_dead and self.world.now >= belief.kept_until:
            self._accuse_all(leftovers.released(self.servers, belief))

    def check_undone(self) -> None:
        """Check that attempts are undone when all have released the lock, before their leases end."""
        self._accuse_all(leftovers.undone(self.servers, self.sessions, self.keys))

    def check_nothing_left(self) -> None:
        """Check that the masters have nothing left in the end, when every lease is over."""
        self._accuse_all(leftovers.in_the_end(self.servers))

    def _accuse_all(self, problems: Iterable[str]) -> None:
        for problem in problems:
            self.accuse(problem)
