"""The acts of the demo, one after the other; each adds its counts to the findings."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from attrs import define, field

from relock import Client, LockInfo, QuorumError, RelockError
from relock._doctor.marker import look_at_guard
from relock._runtime.net.parse import parse_nodes
from relock._servers.server import LocalServer
from relock.cli._demo import ledger as ledgers
from relock.cli._demo import verdict
from relock.cli._demo.crew import Crew
from relock.cli._demo.plan import Plan
from relock.cli._demo.screen import Screen
from relock.cli._demo.verdict import Finding, Update

T = TypeVar("T")
POLL_SECONDS = 0.005
STATUS_SECONDS = 0.1
LOOK_SECONDS_MAX = 0.5


class StoryEndedError(Exception):
    """The story can't go on; the crew's failures say why."""


def process_of(owner: str | None) -> str:
    """Return the process in ``<client>:<uuid>``, without the suffix that makes a client's name unique."""
    return (owner or "").partition(":")[0].rpartition("-")[0]


def patiently(ask: Callable[[], T], seconds: float) -> T:
    """Ask the masters; ask again for so many seconds where they do not answer in time, as on a busy machine."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except QuorumError:
            if time.monotonic() > until:
                raise


@define
class Story:
    """Director of the crew through the acts.

    Attributes:
        servers: the masters that the demo has started; none with masters of the user, which are left alone.
        findings: the findings of the acts that are over.
        ledger: the ledger of the present act.
        judge: the function that judges the present act.
    """

    crew: Crew
    client: Client
    name: str
    plan: Plan
    screen: Screen
    folder: Path
    servers: Sequence[LocalServer] = ()
    findings: list[Finding] = field(factory=list)
    ledger: Path | None = None
    judge: Callable[[verdict.History], list[Finding]] = verdict.of_no_lock
    _released_at: float = 0.0
    _status_at: float = 0.0

    def play(self) -> None:
        """Play all acts.

        Raises:
            StoryEndedError: a worker failed, or the masters did.
        """
        if len(self.client.statistics().masters) > 1:
            self.screen.say(f"new masters have no vote for {self.plan.ttl:g} s: the demo waits, once")
            with self.client.lock(self.name, timeout=self.plan.ttl + self.plan.patience_seconds):
                pass
        self._wait(lambda: self.crew.all_told("ready"), self.plan.limit_seconds)
        self._without_the_lock()
        self._with_the_lock()

    def counted_so_far(self) -> None:
        """Judge the present act by the updates that were told so far; unfinished ones count for nothing."""
        self.crew.history.killed.update(self.crew.alive)
        self._judge()

    # The acts -------------------------------------------------------------------------------------------------------

    def _without_the_lock(self) -> None:
        plan = self.plan
        kind = "tasks" if plan.is_asyncio else "threads"
        workers = f"{plan.workers * len(plan.processes)} {kind} in {len(plan.processes)} processes"
        self.screen.act(f"without a lock: {workers} read a ledger, think, and write it back")
        self._begin("without", verdict.of_no_lock, locked=False)
        self._pause(plan.without_seconds)
        # By chance, no update may have been lost yet.
        self._wait(lambda: self._lost() > 0, plan.without_seconds_max - plan.without_seconds)
        self._end()

    def _with_the_lock(self) -> None:
        statement = "async with client.lock(name)" if self.plan.is_asyncio else "with client.lock(name)"
        self.screen.act(f"with the lock: the same code inside `{statement}`, and nested in it once more")
        self._begin("with", verdict.of_lock, locked=self.plan.locked)
        self._pause(self.plan.under_seconds)
        if len(self.servers) > 1:
            self._kill_masters()
        self._kill_a_holder()
        if self.plan.is_asyncio:
            self._cancel_a_waiter()
        self._kill_a_waiter()
        self._end()

    def _kill_masters(self) -> None:
        """Kill the largest minority of the masters at once, and restart it empty; the workers notice nothing."""
        plan, count = self.plan, (len(self.servers) - 1) // 2
        victims = self.servers[-count:]
        self.screen.act(f"masters are killed: {count} of {len(self.servers)}; the others are a quorum")
        killed_at = time.monotonic()
        for server in victims:
            server.crash()
        self._pause(plan.down_seconds)
        for server in victims:
            server.restart()
        back_at = time.monotonic()
        self.screen.say(f"they are back, empty: no vote while leases that they forgot may run, {plan.ttl:g} s")
        votes: dict[int, float] = {}
        self._wait(lambda: self._note_votes(victims, votes), plan.ttl + plan.patience_seconds)
        until = time.monotonic()
        self._pause(plan.after_seconds)
        turns = [update.entered for update in self.crew.history.updates if killed_at < update.entered < until]
        ends = [votes[one.port] - killed_at if one.port in votes else None for one in victims]
        gap = verdict.longest_gap(turns, killed_at, until)
        self.findings += verdict.of_masters(plan.ttl, back_at - killed_at, ends, len(turns), gap)
        self.screen.say(f"{len(votes)} of them vote again; {len(turns):,} updates were made meanwhile")

    @staticmethod
    def _note_votes(masters: Sequence[LocalServer], votes: dict[int, float]) -> bool:
        """Note when each master gets its vote, as its marker says; return whether all have it."""
        for server in masters:
            asked_at = time.monotonic()
            if marker := look_at_guard(parse_nodes(server.url)[0], "lock", LOOK_SECONDS_MAX).marker:
                votes.setdefault(server.port, asked_at + marker.vote_in)
        return len(votes) == len(masters) and time.monotonic() > max(votes.values())

    def _kill_a_holder(self) -> None:
        """Let a hold outlast its lease, because it is renewed; then kill its process, so that nothing renews it."""
        crew, plan, victim = self.crew, self.plan, self.crew.alive[0]
        deed = "blocks its event loop" if plan.is_asyncio else "stays inside"
        self.screen.act(f"a holder {deed} for longer than its lease of {plan.ttl:g} s, then it is killed")
        crew.order(victim, "stay")
        if not self._wait(lambda: ("inside", victim) in crew.told, plan.patience_seconds):
            raise self._failure(f"no worker of {victim} gets in")
        stay: Update = crew.told["inside", victim]
        self._pause(plan.stay_seconds)
        if plan.is_asyncio:
            stood = time.monotonic() - stay.entered
            self.screen.say(f"the event loop of {victim} has stood still for {stood:.2f} s; it still has the lock")
        killed_at = crew.kill(victim)
        looked_at, info = time.monotonic(), self._info()
        lease_left = info.ttl if process_of(info.owner) == victim else 0.0
        self.screen.say(f"{victim} is killed (SIGKILL) inside; its lease has {lease_left:.2f} s left")
        successor = self._first_after(killed_at, lease_left + plan.patience_seconds)
        intruders = sum(stay.entered < update.entered < killed_at for update in crew.history.updates)
        held = killed_at - stay.entered
        self.findings.append(verdict.of_long_hold(plan.ttl, held, intruders, is_blocked=plan.is_asyncio))
        seconds = None if successor is None else successor.entered - looked_at
        self.findings.append(verdict.of_killed_holder(lease_left, seconds))
        if successor is not None:
            self.screen.say(f"{successor.worker} had the lock {seconds:.2f} s after that")

    def _cancel_a_waiter(self) -> None:
        """Cancel a waiting task whose process goes on: its place in the queue must be gone at once."""
        crew, patience = self.crew, self.plan.patience_seconds
        self.screen.act("the first waiter is cancelled")
        with self._held() as queue:
            victim = process_of(queue[0])
            crew.order(victim, "cancel")
            gone_at = time.monotonic() if self._wait(lambda: queue[0] not in self._queue(), patience) else None
            if not self._wait(lambda: ("cancelled", victim) in crew.told, patience):
                raise self._failure(f"the call that was cancelled did not end within {patience:g} s")
            at, call = crew.told["cancelled", victim]
            self.screen.say(f"a task of {victim} is cancelled; its call ended after {1000 * call:.1f} ms")
        place = None if gone_at is None else gone_at - at
        self.findings.append(verdict.of_cancelled_waiter(call, place, self._handed_over()))

    def _kill_a_waiter(self) -> None:
        """Kill the first waiter with its process: the next living one must not wait for it."""
        crew = self.crew
        self.screen.act("the first waiter is killed, with its process")
        with self._held() as queue:
            victim = process_of(queue[0])
            crew.kill(victim)
            left = [process_of(waiter) for waiter in self._info().queue]
            dead = next((i for i, process in enumerate(left) if process not in crew.killed), len(left))
            self.screen.say(f"{victim} is killed (SIGKILL): {dead} dead waiters at the head of the queue")
        self.findings.append(verdict.of_killed_waiter(dead, self._handed_over()))

    # Parts of acts --------------------------------------------------------------------------------------------------

    def _begin(self, name: str, judge: Callable[[verdict.History], list[Finding]], *, locked: bool) -> None:
        self.ledger, self.judge = self.folder / name, judge
        self.crew.begin(self.ledger, locked=locked)

    def _end(self) -> None:
        crew = self.crew
        for process in crew.alive:
            crew.order(process, "stop")
        if not self._wait(lambda: crew.all_told("stopped"), self.plan.patience_seconds):
            raise self._failure("not all workers have stopped")
        self._judge()
        self.screen.say(f"{crew.history.lost():,} of {len(crew.history.updates):,} updates are lost")

    def _judge(self) -> None:
        """Judge the present act, once."""
        if self.ledger is not None:
            self._lost()
            self.ledger = None
            self.findings += self.judge(self.crew.history)

    def _lost(self) -> int:
        """Read the ledger; return how many updates are not in it."""
        history = self.crew.history
        if self.ledger is not None:
            history.entries = ledgers.entries(self.ledger)
        return history.lost()

    @contextmanager
    def _held(self) -> Iterator[list[str]]:
        """Hold the lock in the demo itself, so that everybody else waits; give the queue once its order stays."""
        try:
            with self.client.lock(self.name, timeout=self.plan.patience_seconds):
                self._pause(self.plan.after_seconds)
                queue = self._queue()
                if not queue:
                    raise self._failure("nobody waits for the lock")
                yield queue
                self._pause(self.plan.after_seconds)
                self._released_at = time.monotonic()
        except RelockError as error:
            raise self._failure(f"the demo's own hold: {error}") from error

    def _handed_over(self) -> float | None:
        """Return the seconds from the release until a worker had the lock; None if none had."""
        successor = self._first_after(self._released_at, self.plan.patience_seconds)
        if successor is None:
            return None
        seconds = successor.entered - self._released_at
        self.screen.say(f"{successor.worker} had the lock {1000 * seconds:.1f} ms after it was left")
        return seconds

    def _queue(self) -> list[str]:
        """Return the waiters whose processes live; dead ones keep their places for some seconds, and delay nobody."""
        return [waiter for waiter in self._info().queue if process_of(waiter) in self.crew.alive]

    def _first_after(self, moment: float, seconds: float) -> Update | None:
        """Wait for the first update that began after `moment`; return it once workers have had time to tell of it."""
        self._wait(lambda: self.crew.history.first_after(moment), seconds)
        self._pause(self.plan.after_seconds)
        return self.crew.history.first_after(moment)

    def _info(self) -> LockInfo:
        """Look at the lock."""
        try:
            return patiently(lambda: self.client.info(self.name), self.plan.patience_seconds)
        except QuorumError as error:
            raise self._failure(f"the masters do not answer: {error}") from error

    def _failure(self, why: str) -> StoryEndedError:
        self.crew.failures.append(why)
        return StoryEndedError(why)

    def _pause(self, seconds: float) -> None:
        self._wait(lambda: False, seconds)

    def _wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Hear the crew until `condition` is true; return False where it is not within `seconds`."""
        until = time.monotonic() + seconds
        while not condition():
            if self.screen.seconds > self.plan.limit_seconds:
                raise self._failure(f"stopped after {self.plan.limit_seconds:g} s")
            if self.crew.failures:
                raise StoryEndedError
            if time.monotonic() >= until:
                return False
            self.crew.hear(POLL_SECONDS)
            if time.monotonic() > self._status_at + STATUS_SECONDS:
                self._status_at = time.monotonic()
                self._show_status()
        return True

    def _show_status(self) -> None:
        made, info = len(self.crew.history.updates), self._info()
        lock = f"{process_of(info.owner)} for {info.ttl:.1f} s more" if info.owner else "free"
        self.screen.status(
            f"{self.screen.seconds:.0f} s · ledger: {made:,} updates, {self._lost():,} lost · lock: {lock}, "
            f"{len(info.queue)} wait"
        )
