"""The program whose tasks take a lock in turn: ``python -m bench.task_worker``.

It plays jobs as the workers of `relock.cli._bench.work` do, on an event loop of its own for each: a job's threads are
tasks here.
"""

import asyncio
import gc
import json
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from bench.contestants import enter
from bench.tasks import TaskLock
from relock.cli._bench.figures import Turn
from relock.cli._bench.work import WARM_SECONDS, WARM_SECONDS_EACH, Job


async def play(job: Job) -> dict[str, Any]:
    """Play one job: print that it is ready, wait for the word to begin, work, and return its turns."""
    async with enter(job) as locker:
        lockers = [await locker() for _ in range(job.threads)]
        await _warm_up(lockers)
        print(json.dumps({"ready": True}), flush=True)
        hours = json.loads(sys.stdin.readline())  # blocks the loop, which has nothing else to do
        await asyncio.sleep(max(0.0, (hours["begin_ns"] - time.monotonic_ns()) / 1e9))
        turns: list[Turn] = []
        workers = [
            _take_turns(locker, job.first_worker + number, hours["until_ns"], job.section_seconds, turns)
            for number, locker in enumerate(lockers)
        ]
        await asyncio.gather(*workers)
        return {"turns": turns, "failed": None}


async def _warm_up(lockers: Sequence[TaskLock]) -> None:
    """Take the lock in turn until each task has had it once; for a while if turns are not shared out."""
    missing = set(range(len(lockers)))
    deadline = time.monotonic() + WARM_SECONDS + WARM_SECONDS_EACH * len(lockers)

    async def warm(locker: TaskLock, number: int) -> None:
        while missing and time.monotonic() < deadline:
            await locker.acquire()
            await locker.release()
            missing.discard(number)

    await asyncio.gather(*(warm(locker, number) for number, locker in enumerate(lockers)))


async def _take_turns(locker: TaskLock, worker: int, until_ns: int, section_seconds: float, turns: list[Turn]) -> None:
    """Take the lock again and again; the last turn is the first that ends when the working time does, or after."""
    acquire, release, now = locker.acquire, locker.release, time.monotonic_ns
    releasing_ns = 0
    while releasing_ns < until_ns:
        await acquire()
        acquired_ns = now()
        token = getattr(locker, "token", 0) or 0
        if section_seconds:
            await asyncio.sleep(section_seconds)
        releasing_ns = now()
        await release()
        turns.append(Turn(worker, acquired_ns, releasing_ns, token))


def main() -> None:
    gc.freeze()
    while line := sys.stdin.readline():
        try:
            told = asyncio.run(play(Job(**json.loads(line))))
        except Exception as error:  # tells every error; after one that was not expected, no worker goes on
            told = {"ready": False, "turns": [], "failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with suppress(BrokenPipeError):  # the parent has gone
        main()
