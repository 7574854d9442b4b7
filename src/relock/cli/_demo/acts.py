"""The acts of the demo, one after the other; each leaves in the record what was counted in it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from attrs import field, frozen

from relock import Client, LockInfo, QuorumError
from relock.cli._demo.crew import Crew
from relock.cli._demo.history import (
    History,
    HolderKilled,
    Kept,
    MastersKilled,
    Record,
    Update,
    WaiterKilled,
    longest_gap,
    lost_updates,
)
from relock.cli._demo.ledger import Ledger
from relock.cli._demo.masters import Masters
from relock.cli._demo.show import (
    HOLDER_KILLED,
    MASTERS_KILLED,
    WAITER_KILLED,
    WITH_THE_LOCK,
    WITHOUT_A_LOCK,
    Score,
    Stage,
    View,
    process_of,
)

POLL_SECONDS = 0.005
SETTLE_SECONDS = 0.05
RECENT = 6


class WorkersFailedError(Exception):
    """A worker or the masters failed. The record says which, and why."""


@frozen(kw_only=True)
class DemoPlan:
    """Who takes part, and how long each part takes. All of it is about 12 seconds.

    Attributes:
        locked: False plays the acts without the lock: the control of the verdict.
        patience_seconds: how long to wait for what should happen at once.
    """

    processes: tuple[str, ...] = ("alder", "birch", "cedar", "maple")
    threads: int = 3
    ttl: float = 2.0
    locked: bool = True
    without_seconds: float = 1.5
    without_seconds_max: float = 4.0
    under_seconds: float = 2.0
    stay_seconds: float = 2.5
    short_stay_seconds: float = 0.7
    down_seconds: float = 0.8
    after_seconds: float = 0.7
    patience_seconds: float = 3.0


class Stay(NamedTuple):
    """A worker that stays inside: its process, and the update that it is in the middle of."""

    process: str
    update: Update


@frozen
class Director:
    """Leads the crew through the acts, and keeps the stage up to date while something is waited for."""

    crew: Crew
    client: Client
    name: str
    plan: DemoPlan
    stage: Stage
    folder: Path
    record: Record = field(factory=Record)
    masters: Masters = field(factory=Masters)

    def play(self) -> None:
        """All acts.

        Raises:
            WorkersFailedError: the rest makes no sense.
        """
        if self.masters.count:
            self._await_votes()
        self._without_the_lock()
        self._under_the_lock()

    def _await_votes(self) -> None:
        """Masters that relock has never seen have no vote until every lease that they may have forgotten is over."""
        plan, masters = self.plan, self.masters
        self.stage.look_at("before", self._view(Ledger(self.folder / "before")))
        self._wait(lambda: sum(view.up for view in masters.views) >= masters.quorum, plan.patience_seconds)
        self._ask_for_votes()
        if not masters.all_vote():
            self.stage.say(
                f"waits, once, for the votes of {masters.count} masters that nobody has seen before: {plan.ttl:g} s"
            )
        if not self._wait(self._all_vote, plan.ttl + plan.patience_seconds):
            self.crew.failures.append("no quorum of the masters has a vote")
            raise WorkersFailedError

    def _all_vote(self) -> bool:
        """Whether all do; asks those that nobody has asked before."""
        if any(view.up and view.vote_in == float("inf") for view in self.masters.views):
            self._ask_for_votes()
        return self.masters.all_vote()

    def _ask_for_votes(self) -> None:
        """The first script that asks a master for its vote starts its guard."""
        lock = self.client.lock(self.name)
        try:
            if lock.acquire(blocking=False):
                lock.release()
        except QuorumError:
            return

    # The acts -------------------------------------------------------------------------------------------------------

    def _without_the_lock(self) -> None:
        plan, crew = self.plan, self.crew
        total = len(plan.processes) * plan.threads
        self.stage.act(
            WITHOUT_A_LOCK,
            f"{total} threads in {len(plan.processes)} processes read a file, think and write it back; "
            f"{plan.processes[0]}.1 is a thread of {plan.processes[0]}.",
        )
        self._wait(lambda: crew.ready >= set(crew.alive), 2 * plan.patience_seconds)
        ledger = self._begin("without", locked=False)
        self._pause(plan.without_seconds)
        # Chance might have it that nobody came between another's reading and writing yet.
        self._wait(lambda: ledger.count() < len(crew.updates()), plan.without_seconds_max - plan.without_seconds)
        self.record.without = self._end(ledger)
        self.stage.say(self._tally("without the lock", self.record.without))

    def _under_the_lock(self) -> None:
        self.stage.act(
            WITH_THE_LOCK, "The same code, but for `with client.lock(name)` around it, and nested in it once more."
        )
        ledger = self._begin("under", locked=self.plan.locked)
        self._pause(self.plan.under_seconds)
        if self.record.kills_masters:
            self._kill_masters()
        self._kill_a_holder()
        self._kill_a_waiter()
        self.record.under = self._end(ledger)
        self.stage.say(self._tally("with the lock", self.record.under))

    def _kill_masters(self) -> None:
        """The largest minority dies at once and comes back empty; the workers notice nothing."""
        crew, plan, masters = self.crew, self.plan, self.masters
        count = masters.count - masters.quorum
        victims, watches = masters.servers[-count:], masters.watches[-count:]
        ports = " and ".join(str(server.port) for server in victims)
        self.stage.act(MASTERS_KILLED, f"{ports} are down: the other {masters.quorum} of {masters.count} are a quorum.")
        killed_at = time.monotonic()
        for server in victims:
            server.crash()
        self.stage.say(f"{count} of {masters.count} masters are killed (SIGKILL): {ports}")
        self._pause(plan.down_seconds)
        for server in victims:
            server.restart()
        back_at = time.monotonic()
        self.stage.say(f"they are started again, empty: no vote while leases that they forgot may run, {plan.ttl:g} s")
        self.stage.act(
            MASTERS_KILLED, "They are back, and remember nothing. They have no vote until that does no harm."
        )
        have_all = self._wait(lambda: all(view.votes for view in masters.views), plan.ttl + plan.patience_seconds)
        votes_at = [watch.votes_from for watch in watches if watch.view.votes]
        until = time.monotonic()
        self._pause(plan.after_seconds)
        turns = [update.entered for update in crew.updates() if killed_at < update.entered < until]
        gap = longest_gap(turns, killed_at, until)
        votes = [vote_at - killed_at for vote_at in votes_at]
        self.record.masters = MastersKilled(
            count, masters.count, plan.ttl, back_at - killed_at, votes, len(turns), gap
        )  # fmt: skip
        if have_all:
            self.stage.say(f"all vote again, {until - killed_at:.2f} s after the kill; {len(turns):,} turns meanwhile")

    def _lease_left(self, process: str) -> float:
        """Seconds before which nobody else can have the lock of `process`, which has ended."""
        if self.masters.count:
            return self.masters.lease_left(lambda owner: process_of(owner) == process)
        info = self._info()
        return info.ttl if process_of(info.owner) == process else 0.0

    def _kill_a_holder(self) -> None:
        """A hold outlasts its lease, because it is renewed; then its process dies, and nobody renews it."""
        crew, plan = self.crew, self.plan
        self.stage.act(
            HOLDER_KILLED,
            f"First a holder is renewed and stays inside for longer than its lease of {plan.ttl:g} s. Then it dies.",
        )
        stay = self._stay()
        if stay is None:
            return
        victim, entered = stay.process, stay.update.entered
        self._pause(plan.stay_seconds)
        killed_at = crew.kill(victim)
        looked_at = time.monotonic()
        lease_left = self._lease_left(victim)
        self.stage.say(f"{victim} is killed (SIGKILL) inside; its lease has {lease_left:.2f} s left")
        self.stage.act(HOLDER_KILLED, "It was killed. Nobody renews its lease now: when that ends, the queue goes on.")
        self._wait(lambda: crew.first_after(killed_at), lease_left + plan.patience_seconds)
        self._pause(plan.after_seconds)
        successor = crew.first_after(killed_at)
        intruders = sum(entered < update.entered < killed_at for update in crew.updates())
        self.record.kept = Kept(plan.ttl, killed_at - entered, intruders)
        self.record.holder = HolderKilled(lease_left, None if successor is None else successor.entered - looked_at)
        if successor is not None:
            self.stage.say(f"{successor.worker} had the lock {successor.entered - looked_at:.2f} s after that")

    def _kill_a_waiter(self) -> None:
        """The next waiter dies while it waits: the one after it must not wait for it."""
        crew, plan = self.crew, self.plan
        self.stage.act(WAITER_KILLED, "A holder is inside, the others queue. The first of them is about to be killed.")
        stay = self._stay()
        if stay is None:
            return
        holder, worker = stay.process, stay.update.worker
        self._pause(plan.short_stay_seconds)
        victim = process_of(self._live_queue()[0])
        crew.kill(victim)
        queue = [process_of(waiter) for waiter in self._info().queue]
        dead = next((i for i, process in enumerate(queue) if process not in crew.killed), len(queue))
        self.stage.say(
            f"{victim} is killed (SIGKILL) as first in the queue, with all its threads: {dead} dead waiters there now"
        )
        self._pause(plan.short_stay_seconds)
        caption = "It was killed. The holder leaves: the next waiter that lives must have the lock at once."
        self.stage.act(WAITER_KILLED, caption)
        told = len(crew.updates())
        crew.order([holder], do="go_on")
        self._wait(lambda: holder not in crew.inside, plan.patience_seconds)
        released_at = next((update.left for update in crew.updates()[told:] if update.worker == worker), None)
        if released_at is not None:
            self._wait(lambda: crew.first_after(released_at), plan.patience_seconds)
        self._pause(plan.after_seconds)
        successor = None if released_at is None else crew.first_after(released_at)
        seconds = None if successor is None or released_at is None else successor.entered - released_at
        self.record.waiter = WaiterKilled(dead, seconds)
        if successor is not None and seconds is not None:
            self.stage.say(f"{successor.worker} had the lock {1000 * seconds:.1f} ms after it was released")

    # Their parts ----------------------------------------------------------------------------------------------------

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
        is the death of one holder, or of one waiter, and not of both. Where the head is another thread of the same
        process, that one stays next.
        """
        crew, plan = self.crew, self.plan
        process, last = crew.alive[0], ""
        everybody = plan.threads * len(crew.alive) - 1
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
        return "stays inside" if process in self.crew.inside else "works"

    @staticmethod
    def _tally(how: str, history: History) -> str:
        return f"{how}: {lost_updates(history):,} of {len(history.updates):,} updates lost"
