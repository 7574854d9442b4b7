"""What every act of the demo needs: to wait, to have somebody stay inside, and to look."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from attrs import field, frozen

from relock import Client, LockInfo, QuorumError
from relock.cli._demo.crew import Crew
from relock.cli._demo.history import History, Record, Update, lost_updates
from relock.cli._demo.ledger import Ledger
from relock.cli._demo.masters import Masters
from relock.cli._demo.plan import DemoPlan
from relock.cli._demo.show import Score, Stage, View, process_of

POLL_SECONDS = 0.005
SETTLE_SECONDS = 0.05
RECENT = 6


class WorkersFailedError(Exception):
    """A worker or the masters failed. The record says which, and why."""


class Stay(NamedTuple):
    """A worker that stays inside: its process, and the update that it is in the middle of."""

    process: str
    update: Update


@frozen
class Leader:
    """Who leads the crew, and keeps the stage up to date while something is waited for."""

    crew: Crew
    client: Client
    name: str
    plan: DemoPlan
    stage: Stage
    folder: Path
    record: Record = field(factory=Record)
    masters: Masters = field(factory=Masters)

    def _begin(self, name: str, *, locked: bool) -> Ledger:
        ledger = Ledger(self.folder / name)
        self.crew.begin(ledger.path, locked=locked)
        self.stage.look_at(name, self._view(ledger))
        return ledger

    def _end(self, ledger: Ledger) -> History:
        crew = self.crew
        crew.order(crew.alive, do="stop")
        if not self._wait(lambda: crew.stopped >= set(crew.alive), self.plan.patience_seconds):
            crew.failures.append(f"no end of {', '.join(sorted(set(crew.alive) - crew.stopped))}")
            raise WorkersFailedError
        crew.history.entries = ledger.entries()
        self.stage.settled(Score(len(crew.history.updates), ledger.count(), lost_updates(crew.history)))
        return crew.history

    def _stay(self) -> Stay | None:
        """Lets somebody stay inside, with everybody else in the queue and another process at its head.

        The head is another process, because a process that is killed takes its own waiters with it: what is measured
        is the death of one holder, or of one waiter, and not of both. Where the head is another worker of the same
        process, that one stays next.
        """
        crew, plan = self.crew, self.plan
        process, last = crew.alive[0], ""
        everybody = plan.workers * len(crew.alive) - len(crew.cancelled) - 1
        seen: list[Update] = []

        def somebody_else_is_inside() -> bool:
            update = crew.inside.get(process)  # one look: without a lock that locks, it may be gone at the next
            if update is None or update.worker == last:
                return False
            seen.append(update)
            return True

        until = time.monotonic() + plan.patience_seconds
        while time.monotonic() < until:
            crew.order([process], do="stay")
            if last:
                crew.order([process], do="go_on")
            if not self._wait(somebody_else_is_inside, plan.patience_seconds):
                return None
            queue = self._settled_queue(everybody)
            if queue and process_of(queue[0]) != process:
                return Stay(process, seen[-1])
            last = seen[-1].worker
        crew.order([process], do="go_on")
        return None

    def _hand_over(self, stay: Stay) -> float | None:
        """Lets the one that stays leave. Returns the seconds from its release until somebody else had the lock."""
        crew, plan = self.crew, self.plan
        told = len(crew.updates())
        crew.order([stay.process], do="go_on")
        self._wait(lambda: stay.process not in crew.inside, plan.patience_seconds)
        worker = stay.update.worker
        released_at = next((update.left for update in crew.updates()[told:] if update.worker == worker), None)
        if released_at is not None:
            self._wait(lambda: crew.first_after(released_at), plan.patience_seconds)
        self._pause(plan.after_seconds)
        successor = None if released_at is None else crew.first_after(released_at)
        if successor is None or released_at is None:
            return None
        seconds = successor.entered - released_at
        self.stage.say(f"{successor.worker} had the lock {1000 * seconds:.1f} ms after it was released")
        return seconds

    def _settled_queue(self, everybody: int) -> list[str]:
        """The waiters, once all wait in an order that stays: several masters take a moment to agree on places."""
        self._wait(lambda: len(self._live_queue()) >= everybody, 1.0)
        seen: list[list[str]] = [[]]

        def is_settled() -> bool:
            self._pause(SETTLE_SECONDS)
            seen.append(self._live_queue())
            return seen[-1] == seen[-2]

        self._wait(is_settled, 1.0)
        return seen[-1]

    def _live_queue(self) -> list[str]:
        """The waiters whose processes live: the dead keep their places for some seconds, and hinder nobody."""
        alive = set(self.crew.alive)
        return [waiter for waiter in self._info().queue if process_of(waiter) in alive]

    def _pause(self, seconds: float) -> None:
        self._wait(lambda: False, seconds)

    def _wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Whether `condition` came true within so many seconds.

        Raises:
            WorkersFailedError: it makes no sense to wait.
        """
        until = time.monotonic() + seconds
        while not condition():
            if self.crew.failures:
                raise WorkersFailedError
            if time.monotonic() >= until:
                return False
            self.stage.draw()
            time.sleep(POLL_SECONDS)
        return True

    # For the stage --------------------------------------------------------------------------------------------------

    def _view(self, ledger: Ledger) -> Callable[[], View]:
        """What makes a view of this moment."""

        def look() -> View:
            updates = self.crew.updates()
            recent = tuple((update.worker, update.token) for update in updates[-RECENT:])
            return View(
                info=self._info(),
                score=Score(len(updates), ledger.count(), None),
                processes=tuple((process, self._state_of(process)) for process in self.crew.processes),
                recent=recent,
                masters=self.masters.views,
            )

        return look

    def _info(self) -> LockInfo:
        """Who has the lock, and who waits. On a busy machine a master may not answer in time: it is asked again.

        Raises:
            WorkersFailedError: the masters did not answer at all.
        """
        until = time.monotonic() + self.plan.patience_seconds
        while True:
            try:
                return self.client.info(self.name)
            except QuorumError as error:
                if time.monotonic() > until:
                    self.crew.failures.append(f"nobody says who has the lock: {error}")
                    raise WorkersFailedError from error
            time.sleep(POLL_SECONDS)

    def _state_of(self, process: str) -> str:
        if process in self.crew.killed:
            return "killed"
        if process in self.crew.blocking:
            return "blocks its loop"
        return "stays inside" if process in self.crew.inside else "works"

    @staticmethod
    def _tally(how: str, history: History) -> str:
        return f"{how}: {lost_updates(history):,} of {len(history.updates):,} updates lost"
