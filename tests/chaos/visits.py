"""Visits of a worker, a thread or a task, to a latch: it arrives, waits, or both, and then the next round begins."""

import asyncio
import random
from typing import TYPE_CHECKING, Any

from chaos.history import clock
from chaos.records import Kind
from chaos.resource import StoreClient
from relock import RelockError

if TYPE_CHECKING:
    from chaos.worker import Process

ARRIVES_PART = 0.8  # of the visits; the others only wait
WAITS_PART = 0.9
LONG_PART = 0.4  # of the waits; the others end soon, and their workers come back as other parties
LONG_SECONDS = 11.0  # longer than `chaos.latches` lets a worker wait at an open latch
SHORT_SECONDS = 0.3


class Visitor:
    """Part of a worker that knows no lock. `ThreadTurns` and `chaos.loop_worker.TaskTurns` define how it waits."""

    def __init__(self, process: "Process[Any]", number: int) -> None:
        self._process = process
        self._recorder = process.recorder
        self._number = number
        self._worker = f"p{process.job.process}.t{number}"
        self._dice = random.Random(f"{process.job.seed} {number}")
        self._store = StoreClient(process.job.store)
        self._visits = 0

    async def _result(self, call: Any) -> Any:
        """Return the result of a call of relock."""
        raise NotImplementedError

    async def _sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def _visit(self) -> None:
        """Arrive at the latch of the round, each time as another party, wait, and begin the next once it opens."""
        parties, rounds = self._process.job.parties, self._process.rounds
        number = rounds.read()
        latch = self._process.client.latch(f"latch-{number}", parties)
        if self._dice.random() < ARRIVES_PART:
            self._visits += 1
            await self._call_latch(latch, "arrive", f"party-{(self._number + self._visits) % parties}")
        if self._dice.random() < WAITS_PART:
            is_long = self._dice.random() < LONG_PART
            passed = await self._call_latch(latch, "wait", LONG_SECONDS if is_long else self._short())
            if passed and rounds.read() == number:
                rounds.write(number + 1)

    def _short(self) -> float:
        return self._dice.uniform(0.0, SHORT_SECONDS)

    async def _call_latch(self, latch: Any, kind: Kind, argument: Any) -> bool:
        """Record a call of a latch; return whether it found the latch open."""
        what = {"party": argument} if kind == "arrive" else {}
        number = self._recorder.call(self._number, latch.name, kind, 0, **what)
        try:
            found = await self._result(latch.arrive(argument) if kind == "arrive" else latch.wait(argument))
        except (RelockError, asyncio.CancelledError) as error:
            self._recorder.returned(number, clock(), "failed", why=type(error).__name__)
            if isinstance(error, asyncio.CancelledError):
                raise
            return False
        missing = found if kind == "arrive" else int(not found)
        self._recorder.returned(number, clock(), "ok" if kind == "arrive" or found else "refused", count=missing)
        return missing == 0
