"""The workers of a job: processes with threads that take a lock in turn, and write down when."""

import contextlib
import ctypes
import gc
import json
import mmap
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any, Protocol, cast
from urllib.parse import urlsplit

from attrs import asdict, frozen

from relock.cli._bench.figures import Turn

READY, FAILED = b".", b"!"
OVERDUE_SECONDS = 10.0  # after the end of a job, until workers that still wait are ended
WARM_SECONDS, WARM_SECONDS_EACH = 0.5, 0.02
PR_SET_PDEATHSIG = 1


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
        """Read a line."""
        fields = json.loads(line)
        return cls(**{**fields, "urls": tuple(fields["urls"])})


class Locker(Protocol):
    """One worker's lock."""

    def acquire(self) -> int:
        """Waits for the lock; the fencing token, or 0 where there is none."""

    def release(self) -> None:
        """Gives it back."""


class Site(Protocol):
    """A client that the workers of one process share, or nothing."""

    def locker(self) -> Locker:
        """One for another worker, ready to go: connected."""

    def close(self) -> None:
        """The end."""


Enter = Callable[[Job], Site]


def serve(enter: Enter) -> None:
    """Plays the jobs that come on stdin, a line each, until it is closed; call it from a process without threads.

    To each it answers ``{"ready": true}``, waits for ``{"begin_ns": …, "until_ns": …}``, and answers with the turns,
    or with why it failed. SIGTERM ends a job early: each worker ends with its next turn.
    """
    gc.freeze()  # what is here now stays shared with the processes
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more
        while line := sys.stdin.readline():
            with Shift(Job.of(line)) as shift:
                shift.fork(enter)
                _tell(shift.assemble())
                if order := sys.stdin.readline():
                    _tell(shift.play(**json.loads(order)))


def _tell(what: dict[str, Any]) -> None:
    text = json.dumps(what).encode() + b"\n"
    while text:
        text = text[os.write(sys.stdout.fileno(), text) :]


class Shift:
    """The processes of one job; ended, whatever happens, when it is left."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stop = mmap.mmap(-1, 1)  # shared with the processes
        self._turned = mmap.mmap(-1, job.processes * job.threads)  # a byte for each worker that has had a turn
        self._pipes: dict[int, int] = {}  # of each process: where its turns come from
        self._ready_read, self._ready_write = os.pipe()
        self._go_read, self._go_write = os.pipe()

    def fork(self, enter: Enter) -> None:
        """Starts the processes."""
        for number in range(self._job.processes):
            read, write = os.pipe()
            pid = os.fork()
            if not pid:
                _be_a_worker(self._work, enter, number * self._job.threads, write)
            os.close(write)
            self._pipes[pid] = read
        os.close(self._ready_write)
        self._ready_write = -1

    def assemble(self) -> dict[str, Any]:
        """Waits until all are ready."""
        said = b""
        while len(said) < self._job.processes and (more := os.read(self._ready_read, 4096)):
            said += more
        return {"ready": FAILED not in said and len(said) == self._job.processes}

    def play(self, begin_ns: int, until_ns: int) -> dict[str, Any]:
        """Let the workers begin, and gather their turns."""
        before = signal.signal(signal.SIGTERM, self._on_stop)
        try:
            os.write(self._go_write, struct.pack("qq", begin_ns, until_ns) * self._job.processes)
            told = self._gather(max(until_ns / 1e9, time.monotonic()) + OVERDUE_SECONDS)
        finally:
            signal.signal(signal.SIGTERM, before)
        if len(told) < len(self._pipes):
            told.append({"turns": [], "failed": "a process ended without a word, or never"})
        failed = next((one["failed"] for one in told if one["failed"]), None)
        return {"turns": [turn for one in told for turn in one["turns"]], "failed": failed}

    def _on_stop(self, _signum: int, _frame: FrameType | None) -> None:
        self._stop[0] = 1

    def _gather(self, deadline: float) -> list[dict[str, Any]]:
        """Return the message of each process that has ended by the deadline."""
        texts = dict.fromkeys(self._pipes.values(), b"")
        poller = select.poll()
        for read in texts:
            poller.register(read, select.POLLIN)
        is_open = set(texts)
        while is_open and (left := deadline - time.monotonic()) > 0:
            for read, _ in poller.poll(left * 1000):
                more = os.read(read, 1 << 20)
                texts[read] += more
                if not more:
                    poller.unregister(read)
                    is_open.discard(read)
        return [json.loads(text) for read, text in texts.items() if text and read not in is_open]

    def _work(self, enter: Enter, first: int, write: int) -> None:
        """Say that this process is ready, work, and tell the turns."""
        told: dict[str, Any] = {"turns": [], "failed": None}
        try:
            site = enter(self._job)
            lockers = list(enumerate((site.locker() for _ in range(self._job.threads)), first))
            _in_threads(lockers, warm_up, self._turned)
            os.write(self._ready_write, READY)
            begin_ns, until_ns = struct.unpack("qq", os.read(self._go_read, 16))
            _sleep_until(begin_ns)
            turns: list[Turn] = []
            _in_threads(lockers, take_turns, Hours(until_ns, self._stop, self._job.section_seconds), turns)
            told["turns"] = [turn._replace(worker=turn.worker + self._job.first_worker) for turn in turns]
            site.close()
        except Exception as error:  # whatever it is, it is told
            os.write(self._ready_write, FAILED)
            told["failed"] = f"{type(error).__name__}: {error}"
        with os.fdopen(write, "w") as pipe:
            json.dump(told, pipe)

    def __enter__(self) -> "Shift":
        return self

    def __exit__(self, *_: object) -> None:
        for pid, read in self._pipes.items():
            os.kill(pid, signal.SIGKILL)  # it has ended, but for those that are overdue; it is not reaped before
            os.waitpid(pid, 0)
            os.close(read)
        for end in (self._ready_read, self._ready_write, self._go_read, self._go_write):
            if end >= 0:
                os.close(end)


def _be_a_worker(work: Callable[..., None], *arguments: object) -> None:
    """Work in a forked process, which dies with its parent and never comes back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        work(*arguments)
    finally:
        os._exit(0)


def _sleep_until(begin_ns: int) -> None:
    time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9))


@frozen
class Hours:
    """The end of the work, and the length of each turn."""

    until_ns: int
    stop: mmap.mmap  # its first byte ends the work at once
    section_seconds: float


def _in_threads(lockers: list[tuple[int, Locker]], work: Callable[..., None], *arguments: object) -> None:
    """Let all lockers of this process work, each in a thread of its own; raise the first error of any."""
    with ThreadPoolExecutor(len(lockers)) as threads:
        working = [threads.submit(work, locker, number, *arguments) for number, locker in lockers]
    for one in working:
        one.result()


def warm_up(locker: Locker, worker: int, turned: mmap.mmap) -> None:
    """Takes the lock in turn with the others until each has had it once, so that all are connected for waiting, too.

    Where turns are not shared out, some may never have one: nobody waits for that.
    """
    deadline = time.monotonic() + WARM_SECONDS + WARM_SECONDS_EACH * len(turned)
    while 0 in turned[:] and time.monotonic() < deadline:
        locker.acquire()
        locker.release()
        turned[worker] = 1


def take_turns(locker: Locker, worker: int, hours: Hours, turns: list[Turn]) -> None:
    """Takes the lock again and again; the last turn is the first that ends when work does, or after."""
    until_ns, stop, section_seconds = hours.until_ns, hours.stop, hours.section_seconds
    acquire, release, now = locker.acquire, locker.release, time.monotonic_ns
    releasing_ns = 0
    while releasing_ns < until_ns and not stop[0]:
        token = acquire()
        acquired_ns = now()
        if section_seconds:
            time.sleep(section_seconds)
        releasing_ns = now()
        release()
        turns.append(Turn(worker, acquired_ns, releasing_ns, token))


def turns_of(told: dict[str, Any]) -> list[Turn]:
    """The turns in an answer, which JSON has made lists of."""
    return [Turn(*turn) for turn in cast(list[list[int]], told["turns"])]
