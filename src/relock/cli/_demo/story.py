"""The acts of the demo, one after the other; each adds its counts to the findings."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, TypeVar

from attrs import define, evolve

from relock import Client, LockInfo, QuorumError, RelockError, SemaphoreInfo
from relock._doctor.marker import look_at_guard
from relock._runtime.net.parse import parse_nodes
from relock._servers.server import LocalServer
from relock.cli._demo import ledger as ledgers
from relock.cli._demo import verdict
from relock.cli._demo.crew import Crew, StoryEndedError
from relock.cli._demo.plan import Plan
from relock.cli._demo.screen import Screen
from relock.cli._demo.verdict import NEVER, Finding, History, Update
from relock.cli._signals import signals_put_off

T = TypeVar("T")
Judge = Callable[[History], list[Finding]]
POLL_SECONDS = 0.005
STATUS_SECONDS = 0.1
LOOK_SECONDS_MAX = 0.5


def process_of(owner: str | None) -> str:
    """Return the process in ``<client>:<uuid>``, without the suffix that makes a client's name unique."""
    return (owner or "").partition(":")[0].rpartition("-")[0]


def patiently(ask: Callable[[], T], seconds: float) -> T:
    """Ask the masters; ask again for so many seconds if they do not answer in time, as on a busy machine."""
    until = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except QuorumError:
            if time.monotonic() > until:
                raise


@define
class Story:
    """Director of the crew through the acts."""

    crew: Crew
    client: Client
    plan: Plan
    screen: Screen
    folder: Path
    servers: Sequence[LocalServer]  # that the demo has started; masters of the user are left alone
    findings: list[Finding]
    _ledgers: Sequence[Path] = ()
    _inside: str = ""
    _released_at: float = 0.0
    _status_at: float = 0.0

    def play(self) -> None:
        """Play all acts; raise `StoryEndedError` if a worker failed, or the masters did."""
        if len(self.plan.urls) > 1:
            self.screen.say(f"new masters have no vote for {self.plan.ttl:g} s: the demo waits, once")
            with self.client.lock(self.plan.name, timeout=self.plan.ttl + self.plan.patience_seconds):
                pass
        try:
            # Each process tells that it is ready.
            self._wait(lambda: len(self.crew.told) == len(self.crew.alive), self.plan.limit_seconds)
            self._without_the_lock()
            self._with_the_lock()
            self._with_two_locks()
            self._with_a_semaphore()
        except RelockError as error:
            raise StoryEndedError(f"the demo's own client: {error}") from error

    def _without_the_lock(self) -> None:
        plan = self.plan
        kind = "tasks" if plan.is_asyncio else "threads"
        workers = f"{plan.workers * len(plan.processes)} {kind} in {len(plan.processes)} processes"
        self.screen.act(f"without a lock: {workers} read a ledger, think, and write it back")
        with self._updates(["without"], verdict.of_no_lock, ""):
            self._pause(plan.act_seconds)
            self._wait(lambda: self._lost() > 0, plan.patience_seconds)  # by chance, none may have been lost yet

    def _with_the_lock(self) -> None:
        statement = "async with client.lock(name)" if self.plan.is_asyncio else "with client.lock(name)"
        self.screen.act(f"with the lock: the same code inside `{statement}`, and nested in it once more")
        with self._updates(["with"], verdict.of_lock, "lock"):
            self._pause(self.plan.act_seconds)
            if len(self.servers) > 1:
                self._kill_masters()
            self._kill_a_holder()
            if self.plan.is_asyncio:
                self._cancel_a_waiter()
            self._kill_a_waiter()

    def _with_two_locks(self) -> None:
        accounts = ["account 1", "account 2", "account 3", "account 4"]
        self.screen.act("two locks at once: transfers between accounts at random, inside `client.lock_all(names)`")
        with self._updates(accounts, verdict.of_transfers, "lock_all"):
            self._pause(self.plan.act_seconds)

    def _with_a_semaphore(self) -> None:
        """Let a few workers in at a time; kill the process of one, whose permit comes back when its lease has ended."""
        plan, limit = self.plan, self.plan.limit
        self.screen.act(f"a semaphore: at most {limit} at a time, inside `client.semaphore(name, {limit})`")
        judge = partial(verdict.of_holds, what="semaphore", limit=limit)
        with self._updates([f"permit {slot}" for slot in range(limit)], judge, "semaphore"):
            self._pause(plan.pause_seconds)
            _, lease_left, handoff = self._kill_inside(plan.pause_seconds)
            self.findings.append(verdict.of_killed_holder(lease_left, handoff, "holder of a permit"))

    def _kill_masters(self) -> None:
        """Kill the largest minority of the masters at once, and restart it empty; the workers notice nothing."""
        plan, count = self.plan, (len(self.servers) - 1) // 2
        victims = self.servers[-count:]
        self.screen.act(f"masters are killed: {count} of {len(self.servers)}; the others are a quorum")
        killed_at = time.monotonic()
        for server in victims:
            server.crash()
        self._pause(plan.pause_seconds)
        for server in victims:
            server.restart()
        back_at = time.monotonic()
        self.screen.say(f"they are back, empty: no vote while leases that they forgot may run, {plan.ttl:g} s")
        votes: dict[int, float] = {}

        def all_vote() -> bool:
            """Note when each master gets its vote, as its marker says; return whether all have it."""
            for server in victims:
                asked = time.monotonic() - killed_at
                if marker := look_at_guard(parse_nodes(server.url)[0], "lock", LOOK_SECONDS_MAX).marker:
                    votes.setdefault(server.port, asked + marker.vote_in)
            return len(votes) == count and time.monotonic() - killed_at > max(votes.values())

        self._wait(all_vote, plan.ttl + plan.patience_seconds)
        until = time.monotonic()
        self._pause(plan.pause_seconds)
        turns = [one.entered - killed_at for one in self.crew.history.updates if killed_at < one.entered < until]
        after = [votes.get(server.port, NEVER) for server in victims]
        self.findings += verdict.of_masters(plan.ttl, back_at - killed_at, after, turns, until - killed_at)
        self.screen.say(f"{len(votes)} of them vote again; {len(turns):,} updates were made meanwhile")

    def _kill_a_holder(self) -> None:
        """Let a hold outlast its lease, because it is renewed; then kill its process, so that nothing renews it."""
        plan = self.plan
        deed = "blocks its event loop" if plan.is_asyncio else "stays inside"
        self.screen.act(f"a holder {deed} for longer than its lease of {plan.ttl:g} s, then it is killed")
        stay, lease_left, handoff = self._kill_inside(plan.stay_seconds)
        intruders = sum(stay.entered < update.entered < stay.left for update in self.crew.history.updates)
        kept = verdict.of_long_hold(plan.ttl, stay.left - stay.entered, intruders, is_blocked=plan.is_asyncio)
        self.findings += [kept, verdict.of_killed_holder(lease_left, handoff)]

    def _kill_inside(self, seconds: float) -> tuple[Update, float, float]:
        """Kill the process of a worker that stays inside; return its update, the lease left, the next one's delay."""
        crew, victim = self.crew, self.crew.alive[0]
        crew.order("stay", to=[victim])
        stay: Update = self._told("inside", victim, f"no worker of {victim} gets in")
        self._pause(seconds)
        crew.kill(victim)
        stay = evolve(stay, left=time.monotonic())
        crew.history.unfinished.append(stay)
        holders = [one for one in self._info().holders if process_of(one.owner) == victim]
        lease_left = max([one.ttl for one in holders if getattr(one, "slot", 0) == stay.slot], default=0.0)
        self.screen.say(f"{victim} is killed (SIGKILL) inside; its lease has {lease_left:.2f} s left")
        return stay, lease_left, self._next_holder(stay.left, "the kill", lease_left, stay.slot)

    def _cancel_a_waiter(self) -> None:
        """Cancel a waiting task whose process goes on: its place in the queue must be gone at once."""
        crew, patience = self.crew, self.plan.patience_seconds
        with self._held("the first waiter is cancelled") as waiter:
            victim = process_of(waiter)
            crew.order("cancel", to=[victim])
            gone_at = time.monotonic() if self._wait(lambda: waiter not in self._queue(), patience) else NEVER
            at, call = self._told("cancelled", victim, f"the call that was cancelled did not end within {patience:g} s")
            self.screen.say(f"a task of {victim} is cancelled; its call ended after {1000 * call:.1f} ms")
        handoff = self._next_holder(self._released_at, "it was left")
        self.findings.append(verdict.of_cancelled_waiter(call, gone_at - at, handoff))

    def _kill_a_waiter(self) -> None:
        """Kill the first waiter with its process: the next living one must not wait for it."""
        with self._held("the first waiter is killed, with its process") as waiter:
            victim = process_of(waiter)
            self.crew.kill(victim)
            dead = len([*takewhile(lambda one: process_of(one) in self.crew.killed, self._info().queue)])
            self.screen.say(f"{victim} is killed (SIGKILL): {dead} dead waiters at the head of the queue")
        self.findings.append(verdict.of_killed_waiter(dead, self._next_holder(self._released_at, "it was left")))

    @contextmanager
    def _updates(self, names: list[str], judge: Judge, inside: str) -> Iterator[None]:
        """Let all workers update new ledgers during the block; then judge what was told, also after an exception."""
        crew, self._ledgers = self.crew, [self.folder / name for name in names]
        self._inside = inside if self.plan.locked else ""
        crew.history, crew.told = History(killed=crew.killed), {}
        crew.order("start", self._ledgers, self._inside, to=crew.alive)
        try:
            yield
            crew.order("stop", to=crew.alive)
            for process in crew.alive:
                self._told("stopped", process, "not all workers have stopped")
        except BaseException:
            crew.killed.update(crew.alive)
            raise
        finally:
            with signals_put_off():
                lost = self._lost()
                self.findings += judge(crew.history)
        self.screen.say(f"{lost:,} of {len(crew.history.updates):,} updates are lost")

    def _lost(self) -> int:
        """Read the ledgers; return how many updates are in none."""
        self.crew.history.entries = [entry for ledger in self._ledgers for entry in ledgers.entries(ledger)]
        return self.crew.history.lost()

    @contextmanager
    def _held(self, heading: str) -> Iterator[str]:
        """Begin an act with the lock held by the demo itself; give the first waiter once the queue has settled."""
        self.screen.act(heading)
        with self.client.lock(self.plan.name, timeout=self.plan.patience_seconds):
            self._pause(self.plan.pause_seconds)
            queue = self._queue()
            if not queue:
                raise StoryEndedError("nobody waits for the lock")
            yield queue[0]
            self._pause(self.plan.pause_seconds)
            self._released_at = time.monotonic()

    def _next_holder(self, since: float, event: str, lease_left: float = 0.0, slot: int = 0) -> float:
        """Return the seconds until the first update began; NEVER if none did. Wait some time for the message of it."""

        def later() -> list[Update]:
            return [one for one in self.crew.history.updates if one.entered > since and one.slot == slot]

        self._wait(later, lease_left + self.plan.patience_seconds)
        self._pause(self.plan.pause_seconds)
        if not later():
            return NEVER
        first = min(later(), key=lambda update: update.entered)
        what = "that permit" if self._inside == "semaphore" else "the lock"
        self.screen.say(f"{first.entry.worker} had {what} {1000 * (first.entered - since):,.1f} ms after {event}")
        return first.entered - since

    def _queue(self) -> list[str]:
        """Return the waiters whose processes live; dead ones keep their places for some seconds, and delay nobody."""
        return [waiter for waiter in self._info().queue if process_of(waiter) in self.crew.alive]

    def _info(self) -> LockInfo | SemaphoreInfo:
        """Look at what the workers enter: the semaphore in its act, else the lock."""
        plan = self.plan
        if self._inside == "semaphore":
            return patiently(self.client.semaphore(plan.name, plan.limit).info, plan.patience_seconds)
        return patiently(lambda: self.client.info(plan.name), plan.patience_seconds)

    def _told(self, word: str, process: str, or_else: str) -> Any:
        """Wait until a process has told `word`, which should happen at once, and return the value."""
        if not self._wait(lambda: (word, process) in self.crew.told, self.plan.patience_seconds):
            raise StoryEndedError(or_else)
        return self.crew.told[word, process]

    def _pause(self, seconds: float) -> None:
        self._wait(lambda: False, seconds)

    def _wait(self, condition: Callable[[], object], seconds: float) -> bool:
        """Take in messages until `condition` is true; return False if it is not within `seconds`."""
        until = time.monotonic() + seconds
        while not condition():
            if self.screen.seconds > self.plan.limit_seconds:
                raise StoryEndedError(f"stopped after {self.plan.limit_seconds:g} s")
            if time.monotonic() >= until:
                return False
            self.crew.hear(POLL_SECONDS)
            if time.monotonic() > self._status_at + STATUS_SECONDS:
                self._status_at = time.monotonic()
                self._show_status()
        return True

    def _show_status(self) -> None:
        made, info = len(self.crew.history.updates), self._info()
        held = ", ".join(f"{process_of(one.owner)} for {one.ttl:.1f} s" for one in info.holders) or "free"
        counts = f"ledger: {made:,} updates, {self._lost():,} lost · {info.kind}: {held}, {len(info.queue)} wait"
        self.screen.status = f"{self.screen.seconds:.0f} s · {counts}"
