"""The acts of the demo, one after the other; each leaves in the record what was counted in it."""

import time

from attrs import frozen

from relock import QuorumError
from relock.cli._demo.history import (
    Cancelled,
    HolderKilled,
    Kept,
    MastersKilled,
    WaiterCancelled,
    WaiterKilled,
    longest_gap,
    moved,
)
from relock.cli._demo.leading import Leader, WorkersFailedError
from relock.cli._demo.ledger import Ledger
from relock.cli._demo.show import (
    HOLDER_KILLED,
    MASTERS_KILLED,
    WAITER_CANCELLED,
    WAITER_KILLED,
    WITH_THE_LOCK,
    WITHOUT_A_LOCK,
    process_of,
)


@frozen
class Director(Leader):
    """Leads the crew through the acts."""

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
        kind, total = plan.kind, len(plan.processes) * plan.workers
        self.stage.act(
            WITHOUT_A_LOCK,
            f"{total} {kind.many} {kind.where} {len(plan.processes)} processes read a file, think and write it back; "
            f"{plan.processes[0]}.1 is a {kind.one} of {plan.processes[0]}.",
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
            WITH_THE_LOCK, f"The same code, but for `{self.plan.kind.statement}` around it, and nested in it once more."
        )
        ledger = self._begin("under", locked=self.plan.locked)
        self._pause(self.plan.under_seconds)
        if self.record.kills_masters:
            self._kill_masters()
        self._kill_a_holder()
        if self.plan.is_asyncio:
            self._cancel_a_waiter()
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
            f"First a holder {plan.kind.long_hold} for longer than its lease of {plan.ttl:g} s. Then it dies.",
        )
        stay = self._stay()
        if stay is None:
            return
        victim, entered = stay.process, stay.update.entered
        if plan.is_asyncio:
            crew.order([victim], do="block")
        self._pause(plan.stay_seconds)
        loop_stood = self._loop_stood(victim) if plan.is_asyncio else None
        killed_at = crew.kill(victim)
        looked_at = time.monotonic()
        lease_left = self._lease_left(victim)
        self.stage.say(f"{victim} is killed (SIGKILL) inside; its lease has {lease_left:.2f} s left")
        self.stage.act(HOLDER_KILLED, "It was killed. Nobody renews its lease now: when that ends, the queue goes on.")
        self._wait(lambda: crew.first_after(killed_at), lease_left + plan.patience_seconds)
        self._pause(plan.after_seconds)
        successor = crew.first_after(killed_at)
        intruders = sum(entered < update.entered < killed_at for update in crew.updates())
        self.record.kept = Kept(plan.ttl, killed_at - entered, intruders, loop_stood)
        self.record.holder = HolderKilled(lease_left, None if successor is None else successor.entered - looked_at)
        if successor is not None:
            self.stage.say(f"{successor.worker} had the lock {successor.entered - looked_at:.2f} s after that")

    def _loop_stood(self, holder: str) -> float | None:
        """For how long the event loop of `holder` has stood still, as a thread of that process says."""
        crew = self.crew
        crew.order([holder], do="measure")
        self._wait(lambda: holder in crew.stood, self.plan.patience_seconds)
        stood = crew.stood.get(holder)
        if stood is not None:
            has_it = process_of(self._info().owner) or "nobody"
            self.stage.say(f"the event loop of {holder} has stood still for {stood:.2f} s: {has_it} has the lock")
        return stood

    def _cancel_a_waiter(self) -> None:
        """A waiting task is cancelled, and its process goes on: its place must be gone at once."""
        crew, plan = self.crew, self.plan
        self.stage.act(
            WAITER_CANCELLED, "A holder is inside, the others queue. The first of them is about to be cancelled."
        )
        stay = self._stay()
        if stay is None:
            return
        self._pause(plan.short_stay_seconds)
        before = self._live_queue()
        looks: list[tuple[float, list[str]]] = []

        def is_gone() -> bool:
            queue = self._live_queue()
            looks.append((time.monotonic(), queue))
            return len(queue) < len(before)

        crew.order([process_of(before[0])], do="cancel")
        is_place_gone = self._wait(is_gone, plan.patience_seconds)
        if not self._wait(lambda: crew.cancelled, plan.patience_seconds):
            return
        cancelled = next(iter(crew.cancelled.values()))
        looked_at, after = looks[-1]
        place = looked_at - cancelled.at if is_place_gone else None
        self._say_cancelled(cancelled, place, was_first=before[0] not in after)
        self._pause(plan.short_stay_seconds)
        self.stage.act(
            WAITER_CANCELLED, "It was cancelled. The holder leaves: the next waiter must have the lock at once."
        )
        call, others = cancelled.ended - cancelled.at, moved(before, after)
        self.record.cancelled = WaiterCancelled(call, place, others, self._hand_over(stay))

    def _say_cancelled(self, cancelled: Cancelled, place: float | None, *, was_first: bool) -> None:
        stayed = f"its place is still there after {self.plan.patience_seconds:g} s"
        self.stage.say(
            f"{cancelled.worker} is cancelled{' as first in the queue' if was_first else ''}: its call ended after "
            f"{1000 * (cancelled.ended - cancelled.at):.1f} ms, "
            + (stayed if place is None else f"its place was gone after {1000 * place:.1f} ms")
        )

    def _kill_a_waiter(self) -> None:
        """The next waiter dies while it waits: the one after it must not wait for it."""
        crew, plan = self.crew, self.plan
        self.stage.act(WAITER_KILLED, "A holder is inside, the others queue. The first of them is about to be killed.")
        stay = self._stay()
        if stay is None:
            return
        self._pause(plan.short_stay_seconds)
        victim = process_of(self._live_queue()[0])
        crew.kill(victim)
        queue = [process_of(waiter) for waiter in self._info().queue]
        dead = next((i for i, process in enumerate(queue) if process not in crew.killed), len(queue))
        self.stage.say(
            f"{victim} is killed (SIGKILL) as first in the queue, with all its {plan.kind.many}: "
            f"{dead} dead waiters there now"
        )
        self._pause(plan.short_stay_seconds)
        caption = "It was killed. The holder leaves: the next waiter that lives must have the lock at once."
        self.stage.act(WAITER_KILLED, caption)
        self.record.waiter = WaiterKilled(dead, self._hand_over(stay))
