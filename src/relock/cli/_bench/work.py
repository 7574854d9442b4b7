"""The workers of a job: processes with threads that take a lock in turn, and record their times."""

import ctypes
import gc
import json
import mmap
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from attrs import evolve, frozen

from relock.cli._bench.figures import Turn

OVERDUE_SECONDS = 10.0  # workers that still wait so long after the end of a job are ended
READY_SECONDS = 60.0
WARM_SECONDS, WARM_SECONDS_EACH = 0.5, 0.02
PR_SET_PDEATHSIG = 1
T = TypeVar("T")
FORK = multiprocessing.get_context("fork")


@frozen
class Job:
    """The work of one program's workers, which the program is told in one line of JSON."""

    contestant: str  # the contestant whose lock is measured
    urls: Sequence[str]
    name: str  # the lock's name
    processes: int = 1
    threads: int = 1  # the number of threads in each process
    section_seconds: float = 0.0  # the time for which each worker has the lock
    prefix: str = "lock"
    ttl: float = 10.0
    limit: int = 1  # the number of workers that may have the lock at a time
    first_worker: int = 0  # the first worker's number; several programs may share a job


class Locker(Protocol):
    """One worker's lock; it may have a fencing token in `token`."""

    def acquire(self) -> object:
        """Wait for the lock."""

    def release(self) -> object:
        """Give the lock back."""


Enter = Callable[[Job], AbstractContextManager[Callable[[], Locker]]]
"""Opens a client for the workers of one process, and yields a function that returns a lock for one more worker."""


def serve(enter: Enter) -> None:
    """Play the jobs that come on stdin, a line each, until stdin is closed; call this in a process without threads.

    For each job, print ``{"ready": true}``, wait for ``{"begin_ns": …, "until_ns": …}``, and print the turns. If a
    worker fails, print ``{"failed": …}`` instead, and end the job. SIGTERM ends a job early: each worker ends with its
    next turn.
    """
    gc.freeze()  # the processes go on sharing the objects that exist now
    with suppress(BrokenPipeError):  # the program's parent may have ended
        while line := sys.stdin.readline():
            try:
                with ExitStack() as stack:
                    _play(Job(**json.loads(line)), enter, stack)
            except RuntimeError as error:
                _tell({"failed": str(error)})


def _tell(what: dict[str, Any]) -> None:
    text = json.dumps(what).encode() + b"\n"
    while text:
        text = text[os.write(sys.stdout.fileno(), text) :]


def _play(job: Job, enter: Enter, stack: ExitStack) -> None:
    """Play a job by processes of its own, which end with `stack`."""
    until_ns = memoryview(mmap.mmap(-1, 8)).cast("q")  # the processes share this memory, and `turned`
    turned = mmap.mmap(-1, job.processes * job.threads)  # a byte for each worker, which is 1 after its first turn
    pipes = []
    for first in range(job.first_worker, job.first_worker + len(turned), job.threads):
        pipe, end = FORK.Pipe()
        own = evolve(job, processes=1, first_worker=first)
        process = FORK.Process(target=_work, args=(own, enter, turned, until_ns, end), daemon=True)
        process.start()
        end.close()
        pipes.append(stack.enter_context(pipe))
        stack.callback(process.join)
        stack.callback(process.kill)  # only an overdue process still runs then
    _tell({"ready": not _turns(pipes, READY_SECONDS)})
    if not (line := sys.stdin.readline()):
        return
    order = json.loads(line)
    until_ns[0] = order["until_ns"]

    def end_early(*_: object) -> None:
        until_ns[0] = 0

    stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, end_early))
    for pipe in pipes:
        with suppress(OSError):  # a process that has ended tells no turns
            pipe.send(order["begin_ns"])
    _tell({"turns": _turns(pipes, max(order["until_ns"] / 1e9 - time.monotonic(), 0.0) + OVERDUE_SECONDS)})


def _turns(pipes: Sequence[Connection], seconds: float) -> list[Turn]:
    """Return the turns that all processes send within so many seconds; an empty list means that they are ready.

    Raises:
        RuntimeError: a process sent the reason of its failure, or nothing.
    """
    deadline = time.monotonic() + seconds
    told: list[Any] = ["a process ended without an answer, or did not end"] * len(pipes)
    for number, pipe in enumerate(pipes):
        with suppress(EOFError, OSError):
            if pipe.poll(max(0.0, deadline - time.monotonic())):
                told[number] = pipe.recv()
    if failed := [one for one in told if isinstance(one, str)]:
        raise RuntimeError(failed[0])
    return [turn for turns in told for turn in turns]


def _work(job: Job, enter: Enter, turned: mmap.mmap, until_ns: "memoryview[int]", pipe: Connection) -> None:
    """Run one process: send an empty list when it is ready, then the turns; or else the reason of a failure."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a worker must not outlive its program
    try:
        with enter(job) as locker:
            lockers = [(locker(), job.first_worker + number) for number in range(job.threads)]
            _in_threads(lockers, warm_up, turned)
            pipe.send([])
            time.sleep(max(0.0, (pipe.recv() - time.monotonic_ns()) / 1e9))
            turns = _in_threads(lockers, take_turns, until_ns, job.section_seconds)
            pipe.send([turn for of_one in turns for turn in of_one])
    except Exception as error:  # every error becomes the answer
        pipe.send(f"{type(error).__name__}: {error}")
    os._exit(0)


def _in_threads(lockers: list[tuple[Locker, int]], work: Callable[..., T], *arguments: object) -> list[T]:
    """Let all lockers of this process work, each in a thread of its own; raise the first error of any."""
    with ThreadPoolExecutor(len(lockers)) as threads:
        return list(threads.map(lambda one: work(*one, *arguments), lockers))


def warm_up(locker: Locker, worker: int, turned: mmap.mmap) -> None:
    """Take the lock in turn with the others until each has had it once, so that all are connected for waiting, too.

    With an unfair lock, some workers may never have a turn, so the time for this is limited.
    """
    deadline = time.monotonic() + WARM_SECONDS + WARM_SECONDS_EACH * len(turned)
    while 0 in turned[:] and time.monotonic() < deadline:
        locker.acquire()
        locker.release()
        turned[worker % len(turned)] = 1  # the workers of a program have consecutive numbers


def take_turns(locker: Locker, worker: int, until_ns: "memoryview[int]", section_seconds: float) -> list[Turn]:
    """Take the lock again and again; return the turns, the last of which is the first to end after `until_ns`."""
    acquire, release, now = locker.acquire, locker.release, time.monotonic_ns
    turns: list[Turn] = []
    releasing_ns = 0
    while releasing_ns < until_ns[0]:
        acquire()
        acquired_ns = now()
        token = getattr(locker, "token", 0) or 0
        if section_seconds:
            time.sleep(section_seconds)
        releasing_ns = now()
        release()
        turns.append(Turn(worker, acquired_ns, releasing_ns, token))
    return turns
