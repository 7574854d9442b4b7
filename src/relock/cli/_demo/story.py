"""The acts of the demo, one after the other; each adds its counts to the findings."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

from attrs import define, evolve

from relock import Client, Lock, LockInfo, QuorumError, SemaphoreInfo
from relock._doctor.marker import look_at_guard
from relock._runtime.net.parse import parse_nodes
from relock._servers.server import LocalServer
from relock.cli._demo import verdict
from relock.cli._demo.crew import Crew, Plan, StoryEndedError
from relock.cli._demo.screen import Screen
from relock.cli._demo.verdict import NEVER, Entry, Finding, History, Update
from relock.cli._signals import signals_put_off

POLL_SECONDS = 0.005
STATUS_SECONDS = 0.1
LOOK_SECONDS_MAX = 0.5


def process_of(owner: str | None) -> str:
    """Return the process in ``<client>:<uuid>``, without the suffix that makes a client's name unique."""
    return (owner or "").partition(":")[0].rpartition("-")[0]


def patiently(ask: Callable[[], Any], seconds: float) -> Any:
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
    _awaited_at: float = 0.0  # when the first waiter was seen
    _released_at: float = 0.0
    _status_at: float = 0.0

    def play(self) -> None:
        """Play all acts; raise `StoryEndedError` if a worker failed, or `RelockError` if the masters did."""
        plan = self.plan
        if len(plan.urls) > 1:
            self.screen.say(f"new masters have no vote for {plan.ttl:g} s: the demo waits, once")
            with self.client.lock(plan.name, timeout=plan.ttl + plan.outcome_seconds):
                pass
        self._wait(plan.limit_seconds, lambda: len(self.crew.told) == len(self.crew.alive))  # all have told ``ready``
        self._play_locks()
        self._play_others()

    def _play_locks(self) -> None:
        plan, act = self.plan, self.screen.act
        kind, begin = ("tasks", "async with") if plan.is_asyncio else ("threads", "with")
        workers = f"{plan.workers * len(plan.processes)} {kind} in {len(plan.processes)} processes"
        act(f"without a lock: {workers} read a ledger, think, and write it back")
        with self._updates("", ["without"], History.of_no_lock):
            self._wait(plan.act_seconds)
            self._wait(plan.patience_seconds, lambda: self._lost() > 0)  # by chance, none may have been lost yet
        act(f"with the lock: the same code inside `{begin} client.lock(name)`, and nested in it once more")
        with self._updates("lock", ["with"], History.of_lock):
            self._wait(plan.act_seconds)
            if len(self.servers) > 1:
                self._kill_masters()
            deed = "blocks its event loop" if plan.is_asyncio else "stays inside"
            act(f"a holder {deed} for longer than its lease of {plan.ttl:g} s, then it is killed")
            stay, lease_left, handoff = self._kill_inside(plan.stay_seconds)
            intruders = sum(stay.entered < update.entered < stay.left for update in self.crew.history.updates)
            kept = verdict.of_long_hold(plan.ttl, stay.left - stay.entered, intruders, is_blocked=plan.is_asyncio)
            self.findings += [kept, verdict.of_killed_holder(lease_left, handoff)]
            if plan.is_asyncio:
                self._cancel_a_waiter()
            self._kill_a_waiter()

    def _play_others(self) -> None:
        plan, crew, act = self.plan, self.crew, self.screen.act
        act("two locks at once: transfers between accounts at random, inside `client.lock_all(names)`")
        names = [f"account {number}" for number in range(4)]
        with self._updates("lock_all", names, History.of_losses, "two locks at once: no transfer is lost"):
            self._wait(plan.act_seconds)
        act("a read-write lock: readers together or a writer alone, inside `client.rwlock(name)`")
        with self._updates("rwlock", ["catalogue"], History.of_readers):
            self._wait(plan.pause_seconds)
            self._wait(plan.patience_seconds, lambda: verdict.most_at_once(crew.history.reads) > 1)
            with self._held(self.client.rwlock(plan.name, timeout=plan.outcome_seconds).read):
                self.screen.say("the demo reads: a writer waits for it, and later readers wait behind the writer")
                self._wait(plan.patience_seconds, lambda: len(self._queue()) > len(crew.alive))
        self.findings.append(crew.history.of_queue(self._awaited_at, self._released_at))
        names = [f"{process}.{number + 1}" for process in crew.alive for number in range(plan.workers)]  # all workers
        act(f"a latch: nobody goes on before all have arrived, at `client.latch(name, {len(names)})`")
        with self._updates("latch", names, History.of_latch, len(names)):
            self._wait(plan.outcome_seconds, lambda: len(crew.history.updates) == plan.rounds * len(names))
        act("a deadlock: two processes take two locks in opposite orders, and wait for each other")
        with self._updates("deadlock", ["savings", "loans"], History.of_deadlock):
            self._wait(plan.outcome_seconds, lambda: len(crew.history.updates) == len(crew.alive))
            for one in crew.history.victims:
                self.screen.say(f"{one.entry.worker} got a DeadlockError after {one.entered - one.asked:.1f} s")
        act(f"a semaphore: at most {plan.limit} at a time, inside `client.semaphore(name, {plan.limit})`")
        names = [f"permit {slot}" for slot in range(plan.limit)]
        with self._updates("semaphore", names, History.of_holds, "semaphore", plan.limit):
            self._wait(plan.pause_seconds)
            _, lease_left, handoff = self._kill_inside(plan.pause_seconds)
            self.findings.append(verdict.of_killed_holder(lease_left, handoff, "holder of a permit"))

    def _kill_masters(self) -> None:
        plan, victims = self.plan, self.servers[-((len(self.servers) - 1) // 2) :]
        self.screen.act(f"masters are killed: {len(victims)} of {len(self.servers)}; the others are a quorum")
        killed_at = time.monotonic()
        for server in victims:
            server.crash()
        self._wait(plan.pause_seconds)
        for server in victims:
            server.restart()
        down = time.monotonic() - killed_at
        self.screen.say(f"they are back, empty: no vote while leases that they forgot may run, {plan.ttl:g} s")

        def vote(server: LocalServer) -> float:
            """Return when a master gets its vote, as its marker says; NEVER if it has none."""
            asked = time.monotonic() - killed_at
            marker = look_at_guard(parse_nodes(server.url)[0], "lock", LOOK_SECONDS_MAX).marker
            return max(0.0, asked + marker.until - marker.now) if marker else NEVER

        self._wait(plan.ttl + plan.patience_seconds, lambda: max(map(vote, victims)) < time.monotonic() - killed_at)
        votes = [*map(vote, victims)]
        until = time.monotonic()
        self._wait(plan.pause_seconds)
        turns = [one.entered - killed_at for one in self.crew.history.updates if killed_at < one.entered < until]
        self.findings += verdict.of_masters(plan.ttl, down, votes, turns, until - killed_at)
        self.screen.say(f"{len(votes) - votes.count(NEVER)} of them vote again; {len(turns):,} updates meanwhile")

    def _kill_inside(self, seconds: float) -> tuple[Update, float, float]:
        """Kill the process of a worker that stays inside; return its update, the lease left, the next one's delay."""
        crew, victim = self.crew, self.crew.alive[0]
        crew.order("stay", to=[victim])
        stay: Update = self._told("inside", victim, f"no worker of {victim} gets in")
        self._wait(seconds)
        crew.kill(victim)
        stay = evolve(stay, left=time.monotonic())
        crew.history.reads.append(stay)
        holders = [one for one in self._info().holders if process_of(one.owner) == victim]
        lease_left = max([one.ttl for one in holders if getattr(one, "slot", 0) == stay.slot], default=0.0)
        self.screen.say(f"{victim} is killed (SIGKILL) inside; its lease has {lease_left:.2f} s left")
        return stay, lease_left, self._next_holder(stay.left, "the kill", lease_left, stay.slot)

    def _cancel_a_waiter(self) -> None:
        crew, patience = self.crew, self.plan.patience_seconds
        self.screen.act("the first waiter is cancelled")
        with self._held(self.client.lock(self.plan.name, timeout=self.plan.outcome_seconds)) as waiter:
            victim = process_of(waiter)
            crew.order("cancel", to=[victim])
            gone_at = time.monotonic() if self._wait(patience, lambda: waiter not in self._queue()) else NEVER
            at, call = self._told("cancelled", victim, f"the call that was cancelled did not end within {patience:g} s")
            self.screen.say(f"a task of {victim} is cancelled; its call ended after {1000 * call:.1f} ms")
        handoff = self._next_holder(self._released_at, "it was left")
        self.findings.append(verdict.of_cancelled_waiter(call, gone_at - at, handoff))

    def _kill_a_waiter(self) -> None:
        self.screen.act("the first waiter is killed, with its process")
        with self._held(self.client.lock(self.plan.name, timeout=self.plan.outcome_seconds)) as waiter:
            victim = process_of(waiter)
            self.crew.kill(victim)
            dead = len([*takewhile(lambda one: process_of(one) not in self.crew.alive, self._info().queue)])
            self.screen.say(f"{victim} is killed (SIGKILL): {dead} dead waiters at the head of the queue")
        self.findings.append(verdict.of_killed_waiter(dead, self._next_holder(self._released_at, "it was left")))

    @contextmanager
    def _updates(self, inside: str, names: list[str], judge: Callable[..., list[Finding]], *by: Any) -> Iterator[None]:
        """Let all workers update new ledgers during the block; then judge what was told, also after an exception."""
        crew, self._ledgers, self._inside = self.crew, [self.folder / name for name in names], inside
        crew.history, crew.told = History(copies=2 if inside in {"lock_all", "deadlock"} else 1), {}
        over = False
        for ledger in self._ledgers:
            ledger.touch()
        try:
            for process in crew.alive:
                turned = inside == "deadlock" and process == crew.alive[0]
                crew.order("start", self._ledgers[::-1] if turned else self._ledgers, inside, to=[process])
            yield
            over = True
            crew.order("stop", to=crew.alive)
            for process in crew.alive:
                self._told("stopped", process, "not all workers have stopped")
        finally:
            with signals_put_off():
                lost = self._lost()
                if over or crew.history.updates:  # else the act was broken off before it had an outcome
                    self.findings += judge(crew.history, *by)
        self.screen.say(f"{lost:,} of {len(crew.history.updates):,} updates are lost")

    def _lost(self) -> int:
        """Read the ledgers; return how many updates are in none."""
        rows = [line.split() for ledger in self._ledgers for line in ledger.read_text().splitlines()]
        self.crew.history.entries = [Entry(worker, int(serial), int(token)) for worker, serial, token in rows]
        return self.crew.history.lost()

    @contextmanager
    def _held(self, lock: Lock) -> Iterator[str]:
        """Hold the lock in the demo itself; give the first waiter once the queue has settled."""
        with lock:
            self._wait(self.plan.patience_seconds, lambda: any("&" not in one for one in self._queue()))  # no reader
            self._awaited_at = time.monotonic()
            self._wait(self.plan.pause_seconds)
            queue = self._queue()
            if not queue:
                raise StoryEndedError("nobody waits for the lock")
            yield queue[0]
            self._wait(self.plan.pause_seconds)
            self._released_at = time.monotonic()

    def _next_holder(self, since: float, event: str, lease_left: float = 0.0, slot: int = 0) -> float:
        """Return the seconds until the first update began; NEVER if none did. Wait some time for the message of it."""

        def delays() -> list[tuple[float, str]]:
            turns = [one for one in self.crew.history.updates if one.slot == slot]
            return [(one.entered - since, one.entry.worker) for one in turns if one.entered > since]

        self._wait(lease_left + self.plan.patience_seconds, delays)
        self._wait(self.plan.pause_seconds)
        delay, worker = min(delays(), default=(NEVER, "nobody"))
        what = "that permit" if self._inside == "semaphore" else "the lock"
        self.screen.say(f"{worker} had {what} {1000 * delay:,.1f} ms after {event}")
        return delay

    def _queue(self) -> list[str]:
        """Return the waiters whose processes live; dead ones keep their places for some seconds, and delay nobody."""
        return [waiter for waiter in self._info().queue if process_of(waiter) in self.crew.alive]

    def _info(self) -> LockInfo | SemaphoreInfo:
        """Look at what the workers enter: the semaphore in its act, else the lock."""
        plan, client, permits = self.plan, self.client, self._inside == "semaphore"
        lock = client.semaphore(plan.name, plan.limit) if permits else client.rwlock(plan.name)
        info: LockInfo | SemaphoreInfo = patiently(lock.info, plan.patience_seconds)
        return info

    def _told(self, word: str, process: str, or_else: str) -> Any:
        """Wait until a process has told `word`, which should happen at once, and return the value."""
        if not self._wait(self.plan.outcome_seconds, lambda: (word, process) in self.crew.told):
            raise StoryEndedError(or_else)
        return self.crew.told[word, process]

    def _wait(self, seconds: float, condition: Callable[[], object] = lambda: False) -> bool:
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
