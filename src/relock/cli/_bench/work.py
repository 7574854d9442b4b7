"""The workers of a job: processes with threads that take a lock in turn, and write down when."""

import contextlib
import ctypes
import gc
import json
import mmap
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from attrs import asdict, frozen

from relock.cli._bench.figures import Turn

OVERDUE_SECONDS = 10.0  # after the end of a job, until workers that still wait are ended
READY_SECONDS = 60.0
WARM_SECONDS, WARM_SECONDS_EACH = 0.5, 0.02
PR_SET_PDEATHSIG = 1
T = TypeVar("T")
FORK = multiprocessing.get_context("fork")


@frozen
class Job:
    """The work of one program's workers, which the program is told in one line of JSON."""

    contestant: str  # whose lock it is
    urls: tuple[str, ...]
    name: str  # the lock's
    processes: int = 1
    threads: int = 1  # of each process
    section_seconds: float = 0.0  # for how long each has the lock
    prefix: str = "lock"
    ttl: float = 10.0
    first_worker: int = 0  # the number of the first one: a job may be spread over several programs

    @property
    def ports(self) -> list[int]:
        """The ports of the masters, for contestants that know no URLs."""
        return [urlsplit(url).port or 6379 for url in self.urls]

    def line(self) -> str:
        """Return the job as a line."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line: str) -> "Job":
        """Return the job that a line describes."""
        fields = json.loads(line)
        return cls(**{**fields, "urls": tuple(fields["urls"])})


class Locker(Protocol):
    """One worker's lock."""

    def acquire(self) -> int:
        """Wait for the lock; return the fencing token, or 0 where there is none."""

    def release(self) -> None:
        """Give the lock back."""


class Site(Protocol):
    """The client that the workers of one process share, or nothing."""

    def locker(self) -> Locker:
        """Return a lock for one more worker, connected."""

    def close(self) -> None:
        """Close the client."""


Enter = Callable[[Job], Site]


def serve(enter: Enter) -> None:
    """Play the jobs that come on stdin, a line each, until it is closed; call it from a process without threads.

    To each it answers ``{"ready": true}``, waits for ``{"begin_ns": …, "until_ns": …}``, and answers with the turns,
    or with why it failed. SIGTERM ends a job early: each worker ends with its next turn.
    """
    gc.freeze()  # what is here now stays shared with the processes
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        while line := sys.stdin.readline():
            with Shift(Job.of(line), enter) as shift:
                _tell({"ready": all(told == "ready" for told in shift.hear(READY_SECONDS))})
                if order := sys.stdin.readline():
                    _tell(shift.play(**json.loads(order)))


def _tell(what: dict[str, Any]) -> None:
    text = json.dumps(what).encode() + b"\n"
    while text:
        text = text[os.write(sys.stdout.fileno(), text) :]


class Shift:
    """The processes of one job; ended, whatever happens, when it is left."""

    def __init__(self, job: Job, enter: Enter) -> None:
        self._stop = mmap.mmap(-1, 1)  # shared with the processes, as is the next
        self._turned = mmap.mmap(-1, job.processes * job.threads)  # a byte for each worker that has had a turn
        self._workers = [
            self._start(job, enter, job.first_worker + number * job.threads) for number in range(job.processes)
        ]

    def _start(self, job: Job, enter: Enter, first: int) -> tuple[Any, Connection]:
        pipe, end = FORK.Pipe()
        process = FORK.Process(target=self._work, args=(job, enter, first, end), daemon=True)
        process.start()
        end.close()
        return process, pipe

    def hear(self, seconds: float) -> list[Any]:
        """Return what each process says within so many seconds; for a silent one, why it failed."""
        deadline = time.monotonic() + seconds
        heard = []
        for _, pipe in self._workers:
            told: Any = "a process ended without a word, or never"
            with contextlib.suppress(EOFError, OSError):
                if pipe.poll(max(0.0, deadline - time.monotonic())):
                    told = pipe.recv()
            heard.append(told)
        return heard

    def play(self, begin_ns: int, until_ns: int) -> dict[str, Any]:
        """Let the workers begin; return their turns, or why one of them failed."""
        before = signal.signal(signal.SIGTERM, self._end_early)
        try:
            for _, pipe in self._workers:
                with contextlib.suppress(OSError):  # it has failed, and has said why
                    pipe.send((begin_ns, until_ns))
            told = self.hear(max(until_ns / 1e9 - time.monotonic(), 0.0) + OVERDUE_SECONDS)
        finally:
            signal.signal(signal.SIGTERM, before)
        turns = [turn for turns in told if isinstance(turns, list) for turn in turns]
        return {"turns": turns, "failed": next((one for one in told if isinstance(one, str)), None)}

    def _end_early(self, *_: object) -> None:
        self._stop[0] = 1

    def _work(self, job: Job, enter: Enter, first: int, pipe: Connection) -> None:
        """Run one process: say that it is ready, work, and tell the turns, or why it failed."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it waits for nobody who is gone
        try:
            site = enter(job)
            lockers = [(first + number, site.locker()) for number in range(job.threads)]
            _in_threads(lockers, warm_up, self._turned)
            pipe.send("ready")
            begin_ns, until_ns = pipe.recv()
            time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9))
            turns = _in_threads(
                lockers, take_turns, lambda now_ns: now_ns >= until_ns or self._stop[0], job.section_seconds
            )
            pipe.send([turn for of_one in turns for turn in of_one])
            site.close()
        except Exception as error:  # whatever it is, it is told
            for _ in range(2):  # instead of its being ready, and instead of turns
                pipe.send(f"{type(error).__name__}: {error}")
        os._exit(0)

    def __enter__(self) -> "Shift":
        return self

    def __exit__(self, *_: object) -> None:
        for process, pipe in self._workers:
            process.kill()  # it has ended, but for those that are overdue
            process.join()
            pipe.close()


def _in_threads(lockers: list[tuple[int, Locker]], work: Callable[..., T], *arguments: object) -> list[T]:
    """Let all lockers of this process work, each in a thread of its own; raise the first error of any."""
    with ThreadPoolExecutor(len(lockers)) as threads:
        working = [threads.submit(work, locker, number, *arguments) for number, locker in lockers]
    return [one.result() for one in working]


def warm_up(locker: Locker, worker: int, turned: mmap.mmap) -> None:
    """Take the lock in turn with the others until each has had it once, so that all are connected for waiting, too.

    Where turns are not shared out, some workers may never have one, so the time for this is limited.
    """
    deadline = time.monotonic() + WARM_SECONDS + WARM_SECONDS_EACH * len(turned)
    while 0 in turned[:] and time.monotonic() < deadline:
        locker.acquire()
        locker.release()
        turned[worker % len(turned)] = 1  # the workers of a program have consecutive numbers


def take_turns(locker: Locker, worker: int, is_over: Callable[[int], bool], section_seconds: float) -> list[Turn]:
    """Take the lock again and again; the last turn is the first that ends when work does, or after."""
    acquire, release, now = locker.acquire, locker.release, time.monotonic_ns
    turns: list[Turn] = []
    releasing_ns = 0
    while not is_over(releasing_ns):
        token = acquire()
        acquired_ns = now()
        if section_seconds:
            time.sleep(section_seconds)
        releasing_ns = now()
        release()
        turns.append(Turn(worker, acquired_ns, releasing_ns, token))
    return turns
