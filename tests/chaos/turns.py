"""The turns that one worker takes, a thread or a task: each takes a lock, uses the protected resource, and releases it.

Some turns take two locks at once, by `lock_all`. The history then has a call for each lock. Or they take a second lock
while they have the first, in any order, and so run into deadlocks. Where the names are those
of semaphores, a turn takes a permit, and each slot has a protected resource of its own. Where there are readers, a turn
takes one side of a read-write lock; a reader leaves the protected resource as it is. A writer may read on afterwards:
by a downgrade, or by the read lock beside its own.

Every call that may wait is awaited. In a thread such a call blocks instead, and the coroutine of its turns never
suspends. So threads and tasks do the same, and one checker judges both. A task may be cancelled anywhere: then it gives
back its levels.
"""

import asyncio
import time
import traceback
from collections.abc import Coroutine, Sequence
from typing import Any

from attrs import define

import relock
from chaos.history import clock
from chaos.records import Outcome, place_of
from chaos.visits import Visitor
from relock import AsyncLock, AsyncMultiLock, AsyncPermit, Lock, LockLostError, MultiLock, Permit, RelockError

SAMPLE_SECONDS = 0.04
BACK_OFF_SECONDS = 0.02
LATE_SECONDS = 0.5
LONG_WAIT_SECONDS = 60.0
LONG_WAIT_FOR_SEVERAL_SECONDS = 40.0  # longer than `chaos.deadlocks` lets a call wait without a sign of life
LONG_WAIT_BESIDE_SECONDS = 30.0  # longer than it lets a ring stay
CROWDED_LOCKS = 4
VISITS_PART = 0.5  # of the turns, where there are latches
DOWNGRADED_PART = 0.5  # of the writers that read on; the others take the read lock as well
SEVERAL = 2

AnyLock = Lock | AsyncLock | Permit | AsyncPermit
AnyLocks = AnyLock | MultiLock | AsyncMultiLock


@define
class Taken:
    """Locks that a turn has taken by one call, with the grant and the token of each, and how they are given back."""

    together: Any
    locks: Sequence[Any]
    grants: Sequence[int]
    tokens: Sequence[int]
    reads: bool


class Turns(Visitor):
    """One worker."""

    _slot: int | None = None  # of the permit that the worker has
    _reads: bool = False
    _beside: Sequence[str] = ()  # the lock that the worker has already, and the name of its hold

    def _gives_back(self) -> bool:
        """Return whether a turn that ends now releases its lock: a killed or careless worker does not."""
        return True

    def _compute(self, called: float) -> None:
        """Keep the whole process from going on, if that was ordered before the worker asked for its present lock."""

    async def run(self) -> None:
        """Take turns until the process is told to stop."""
        try:
            while not self._process.stopping.is_set():
                await self.turn()
        except Exception:
            self._recorder.write("error", at=clock(), what=traceback.format_exc())
        finally:
            self._store.close()

    async def turn(self) -> None:
        """Take a lock, or several at once, or one side of a lock, or a permit, or visit a latch."""
        if self._process.job.parties and self._dice.random() < VISITS_PART:
            await self._visit()
        else:
            await self._take(self._choose())

    async def _take(self, names: Sequence[str]) -> None:
        """Take what has these names, use and release it, or give up."""
        client, limit = self._process.client, self._process.job.limit
        locks = [] if limit else [self._door(name) for name in names]
        together = client.semaphore(names[0], limit) if limit else client.lock_all(names) if names[1:] else locks[0]
        called = clock()
        grants = [self._note_acquire(name, names) for name in names]
        granted = await self._acquire(together, grants)
        if granted is None:
            await self._sleep(BACK_OFF_SECONDS)
            return
        at = clock()
        if limit and granted:
            together, locks, self._slot = granted, [granted], granted.slot  # the slot comes before a look at the token
        tokens = [lock.token for lock in locks]
        if not granted:
            self._note_return(grants, at, "refused")
            await self._sleep(self._dice.uniform(0.0, BACK_OFF_SECONDS))
            return
        kept = [Taken(together, locks, grants, [token or 0 for token in tokens], self._reads)]
        try:
            held = [self._note_grant(*one, at) for one in zip(locks, grants, tokens, strict=True)]
            if all(held):  # else a hold is lost already
                await self._section(list(zip(locks, grants, tokens, strict=True)), called)
                if self._process.job.reads and not self._reads and self._dice.random() < self._process.job.nested:
                    await self._read_on(kept)
        finally:
            if self._gives_back():
                await self._give_back(kept)

    async def _give_back(self, kept: list[Taken], left: int = 0) -> None:
        """Release what the worker has, the last first, until so much is left; all of it if it is cancelled."""
        while len(kept) > left:
            taken = kept.pop()
            self._reads = taken.reads
            try:
                await self._release(taken.together, taken.locks, taken.tokens)
                for number in taken.grants:
                    self._recorder.write("released", grant=number)
            except asyncio.CancelledError:
                await self._give_back(kept)
                raise

    def _door(self, name: str) -> Any:
        """Return the lock of this name; one of its sides, where there are readers."""
        client, part = self._process.client, self._process.job.reads
        self._reads = part > 0 and self._dice.random() < part
        if not part:
            return client.lock(name)
        both = client.rwlock(name)
        return both.read if self._reads else both.write

    def _note_acquire(self, name: str, names: Sequence[str], **what: Any) -> int:
        """Record that a call begins that takes the lock `name`, among `names`; return its number."""
        others = {"others": [other for other in names if other != name]} if len(names) > 1 else {}
        beside = {"beside": self._beside} if self._beside else {}
        return self._recorder.call(self._number, name, "acquire", 0, **others, **beside, **what, **self._side())

    def _note_return(self, numbers: Sequence[int], at: float, outcome: Outcome, **what: Any) -> None:
        for number in numbers:
            self._recorder.returned(number, at, outcome, **what)

    def _note_grant(self, lock: AnyLock, number: int, token: int | None, at: float) -> bool:
        """Record that the lock was granted; return whether its hold is still valid."""
        if token is None:
            self._recorder.returned(number, at, "failed", why="lost")
            return False
        what = self._slot_of_call()
        self._recorder.returned(number, at, "ok", token=token, count=levels(lock), until=believed(lock), **what)
        return True

    def _side(self) -> dict[str, bool]:
        """Return what the record of a call says of a reader."""
        return {"reads": True} if self._reads else {}

    def _slot_of_call(self) -> dict[str, int]:
        """Return what the record of a call says of the worker's slot: nothing of a lock, which has none."""
        return {} if self._slot is None else {"slot": self._slot}

    def _place(self, lock: AnyLock) -> str:
        """Return the name of what the lock, or the permit, protects."""
        return place_of(lock.name, self._slot)

    async def _acquire(self, door: Any, numbers: Sequence[int]) -> Any:
        """Return the permit, or whether all locks were granted; None if the call failed."""
        try:
            return await self._result(door.acquire(**self._patience(len(numbers)))) or False
        except RelockError as error:
            cycle = {"cycle": error.cycle} if isinstance(error, relock.DeadlockError) else {}
            self._note_return(numbers, clock(), "failed", why=type(error).__name__, **cycle)
            return None
        except asyncio.CancelledError:
            self._note_return(numbers, clock(), "failed", why="cancelled")  # a cancelled acquire leaves nothing
            raise

    def _choose(self) -> list[str]:
        """Return the name of a lock, or of several in any order: ones that many workers want, or any."""
        job = self._process.job
        names = job.locks[:CROWDED_LOCKS] if self._dice.random() < job.crowd else job.locks
        if job.several and self._dice.random() < job.several:
            return self._dice.sample(names, SEVERAL)
        return [self._dice.choice(names)]

    def _patience(self, number: int) -> dict[str, Any]:
        """Return how long an acquire of so many locks waits."""
        kind = self._dice.random()
        if kind < self._process.job.tries / 2:
            return {"blocking": False}
        if kind < self._process.job.tries:
            return {"timeout": self._dice.uniform(0.0, 0.5)}
        if self._beside:
            return {"timeout": LONG_WAIT_BESIDE_SECONDS}
        return {"timeout": LONG_WAIT_SECONDS if number == 1 else LONG_WAIT_FOR_SEVERAL_SECONDS}

    async def _release(
        self, together: AnyLocks, locks: Sequence[AnyLock], tokens: Sequence[int], level: int = 1
    ) -> None:
        """Leave a level of each lock; `together` is the only one, or takes all of them."""
        what = {**self._slot_of_call(), **self._side()}
        numbers = [self._recorder.call(self._number, lock.name, "release", level, **what) for lock in locks]
        lost: Sequence[str] = ()
        try:
            await self._result(together.release())
        except LockLostError as error:
            lost = [lock.name for lock in locks if is_about(error, lock.name)]
        finally:  # a release is done also if it is cancelled
            for lock, number, token in zip(locks, numbers, tokens, strict=True):
                if lock.name in lost:
                    self._recorder.returned(number, clock(), "failed", why="LockLostError")
                    self._process.found_lost.add((lock.name, token))
                else:
                    self._recorder.returned(number, clock(), "ok", count=levels(lock))

    # With the lock --------------------------------------------------------------------------------------------------

    async def _section(self, held: Sequence[tuple[AnyLock, int, Any]], called: float) -> None:
        """Use what the locks protect; each comes with the number of its grant, and its token."""
        if self._reads:
            await self._read(*held[0])
            return
        for one in held:
            self._write(*one, "enter")
            self._mark(*one[:2])
        try:
            self._compute(called)
            for one in held:
                await self._use(*one)
        finally:
            for one in held:
                self._write(*one, "leave")
                self._process.markers[self._place(one[0])].remove(one[1])

    async def _read(self, lock: AnyLock, grant: int, token: int) -> None:
        """Stay for as long as an update takes, or longer."""
        if self._dice.random() < self._process.job.nested:
            await self._nest(lock, grant, token)
        await self._sleep(self._dice.uniform(0.0, self._process.job.think))
        if self._dice.random() < self._process.job.long:
            await self._stay(lock, grant, self._dice.uniform(0.3, 2.5) * self._process.job.ttl)
        self._see(lock, grant)

    async def _use(self, lock: AnyLock, grant: int, token: int) -> None:
        await self._update(lock, grant)
        if not self._beside and self._dice.random() < self._process.job.crossed:
            await self._cross(lock.name, grant, token)
        if self._slot is None and self._dice.random() < self._process.job.nested:
            await self._nest(lock, grant, token)
        if self._dice.random() < self._process.job.long:
            await self._stay(lock, grant, self._dice.uniform(0.3, 2.5) * self._process.job.ttl)
        if not self._see(lock, grant):
            await self._sleep(self._dice.uniform(0.0, LATE_SECONDS))  # so that a newer holder has been here

    async def _cross(self, lock: str, grant: int, token: int) -> None:
        """Take another lock as well, unless the worker is to stop; others may take the same two in the other order."""
        if self._process.stopping.is_set():
            return
        self._beside = lock, self._process.hold_name(lock, token)
        self._process.watched[lock, token] = grant
        try:
            await self._take([self._dice.choice([name for name in self._process.job.locks if name != lock])])
        finally:
            self._beside = ()
            self._process.watched.pop((lock, token))

    def _see(self, lock: AnyLock, grant: int) -> bool:
        """Record until when the worker believes in its hold; return whether it does."""
        at, until = clock(), believed(lock)
        if until is None:
            self._recorder.write("gone", grant=grant, at=at)
        else:
            self._recorder.write("seen", grant=grant, until=until, at=at)
        return until is not None

    def _write(self, lock: AnyLock, grant: int, token: int, phase: str) -> None:
        called, place = clock(), self._place(lock)
        accepted, order = self._store.write(place, token, self._worker, phase)
        self._recorder.write("wrote", worker=self._worker, lock=place, grant=grant, token=token, called=called,
                             at=clock(), accepted=accepted, order=order)  # fmt: skip

    def _mark(self, lock: AnyLock, grant: int) -> None:
        called, place = clock(), self._place(lock)
        other = self._process.markers[place].put(grant)
        if other is not None:
            self._recorder.write("collided", worker=self._worker, lock=place, grant=grant, other=other,
                                 called=called, at=clock())  # fmt: skip

    async def _update(self, lock: AnyLock, grant: int) -> None:
        """Read, think and write, unless the worker knows by then that its hold is lost."""
        place = self._place(lock)
        counter = self._process.counters[place]
        read, read_at = counter.read(), clock()
        await self._sleep(self._dice.uniform(0.0, self._process.job.think))
        if not self._see(lock, grant):
            return
        self._recorder.write("updating", worker=self._worker, lock=place, grant=grant, read=read, read_at=read_at,
                             written=read + 1, at=clock())  # fmt: skip
        counter.write(read + 1)
        self._recorder.write("updated", grant=grant, at=clock())

    async def _nest(self, lock: Any, grant: int, grant_token: int) -> None:
        number = self._recorder.call(self._number, lock.name, "acquire", 1, **self._side())
        try:
            granted = await self._result(lock.acquire(timeout=LONG_WAIT_SECONDS))
        except LockLostError:
            self._recorder.returned(number, clock(), "failed", why="LockLostError")
            return
        except asyncio.CancelledError:
            self._recorder.returned(number, clock(), "failed", why="cancelled")
            raise
        at, token, count = clock(), lock.token, levels(lock)
        if not granted:
            self._recorder.returned(number, at, "refused")
        elif token is None:
            self._recorder.returned(number, at, "failed", why="lost")
        else:
            self._recorder.returned(number, at, "ok", token=token, count=count)
        if granted:
            self._see(lock, grant)
            await self._release(lock, [lock], [grant_token], level=2)

    # From a writer to a reader --------------------------------------------------------------------------------------

    async def _read_on(self, kept: list[Taken]) -> None:
        """Go on as a reader, by a downgrade, or with a hold beside that of the writer, which may end first or last."""
        self._reads, read = True, self._process.client.rwlock(kept[0].locks[0].name).read
        is_downgrade = self._dice.random() < DOWNGRADED_PART
        number = await (self._downgrade(kept, read) if is_downgrade else self._read_beside(read))
        if number is None:
            return
        at, token = clock(), read.token
        reading = Taken(read, [read], [number], [token or 0], reads=True)
        kept.insert(self._dice.randrange(len(kept) + 1), reading)
        if self._note_grant(read, number, token, at):
            if kept[0] is reading:
                await self._give_back(kept, left=1)
            self._reads = True
            await self._read(read, number, reading.tokens[0])

    async def _read_beside(self, read: Any) -> int | None:
        number = self._note_acquire(read.name, [read.name])
        granted = await self._acquire(read, [number])
        if granted is False:
            self._recorder.returned(number, clock(), "refused")
        return number if granted else None

    async def _downgrade(self, kept: list[Taken], read: Any) -> int | None:
        """Return the number of the reader's grant; None after an error, with no side left."""
        writing = kept.pop()
        write = writing.together
        leaves = self._recorder.call(self._number, write.name, "release", 1)
        number = self._note_acquire(read.name, [read.name], downgrades=True)
        try:
            await self._result(write.downgrade())
        except (RelockError, asyncio.CancelledError) as error:
            is_lost = isinstance(error, LockLostError)
            self._recorder.returned(leaves, clock(), "failed" if is_lost else "unknown")
            self._recorder.returned(number, clock(), "failed", why=type(error).__name__)
            if is_lost:
                self._process.found_lost.add((write.name, writing.tokens[0]))
            if self._gives_back():
                await self._leave_either(write, read)
            if isinstance(error, asyncio.CancelledError):
                raise
            return None
        self._recorder.returned(leaves, clock(), "ok", count=levels(write))
        self._recorder.write("released", grant=writing.grants[0])
        return number

    async def _leave_either(self, *sides: Any) -> None:
        """Release the side that the worker has, also if its hold was lost: exactly one, or it is an error."""
        owned = 0
        for side in sides:
            try:
                await self._result(side.release())
            except relock.NotOwnedError:
                continue
            except LockLostError:
                pass
            owned += 1
        if owned != 1:
            what = f"{self._worker} has {owned} sides of {sides[0].name} after a downgrade that failed"
            self._recorder.write("error", at=clock(), what=what)

    async def _stay(self, lock: AnyLock, grant: int, seconds: float) -> None:
        """Keep the lock so long that it must be renewed, or until it is lost."""
        end = clock() + seconds
        while clock() < end and self._see(lock, grant):
            await self._sleep(SAMPLE_SECONDS)


class ThreadTurns(Turns):
    """The turns of a thread, which blocks where a task would wait."""

    async def _result(self, call: Any) -> Any:
        return call

    async def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def run_here(turns: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never suspends to its end."""
    try:
        turns.send(None)
    except StopIteration:
        return
    raise AssertionError("a thread's turn waits for a loop")


def is_about(error: LockLostError, name: str) -> bool:
    """Return whether the error of a release says that the lock was lost, by itself or by one of its notes."""
    return error.lock == name or any(f"{name!r} " in note for note in getattr(error, "__notes__", ()))


def levels(lock: AnyLock) -> int | None:
    """Return the caller's levels; None once its hold is lost, maybe since the call before this look returned."""
    count = lock.hold_count
    return None if lock.lost else count


def believed(lock: AnyLock) -> float | None:
    """Return a time until which the caller's hold is surely valid, a bit early; None if the hold is not valid."""
    now = clock()
    left = lock.remaining()
    return now + left if left > 0 else None
