"""Room that a lock protects in tests of failovers: it notes which worker is inside, and whether two were at once."""

import threading
import time
from collections.abc import Sequence

from attrs import define, field

from relock import Client, Lock, LockLostError, QuorumError
from support.quorum import key_of
from support.servers import Server
from support.until import until

WORK_SECONDS = 0.01
WAIT_SECONDS = 60.0
TRY_SECONDS = 0.5


@define
class Room:
    """The inside of a lock.

    Attributes:
        together: the workers that were inside at the same moment.
        served: the number of turns.
        lost: the workers that found their hold lost on leaving, with the reason.
    """

    together: list[list[str]] = field(factory=list)
    served: int = 0
    lost: list[str] = field(factory=list)
    _inside: list[str] = field(factory=list)

    def work(self, who: str, lock: Lock) -> None:
        """Stay inside for a moment, and release the lock."""
        self._inside.append(who)
        if len(self._inside) > 1:
            self.together.append(self._inside.copy())
        self.served += 1
        time.sleep(WORK_SECONDS)
        self._inside.remove(who)
        try:
            lock.release()
        except LockLostError as error:
            self.lost.append(f"{who}: {error.reason}")


@define
class Crowd:
    """Threads that take a lock: some wait for one turn each, others come again and again."""

    room: Room
    name: str
    waiting: list[threading.Thread] = field(factory=list)
    _returning: list[threading.Thread] = field(factory=list)
    _stop: threading.Event = field(factory=threading.Event)

    def wait_for_a_turn(self, client: Client, count: int, queue_at: Server) -> None:
        """Let so many threads queue for one turn each."""
        self._add(self.waiting, client, count, queue_at, once=True)

    def come_again(self, client: Client, count: int, queue_at: Server) -> None:
        """Let so many threads queue again and again."""
        self._add(self._returning, client, count, queue_at, once=False)

    def _add(
        self, threads: list[threading.Thread], client: Client, count: int, queue_at: Server, *, once: bool
    ) -> None:
        for number in range(count):
            who = f"{'waiter' if once else 'other'} {number}"
            threads.append(threading.Thread(target=self._run, args=(client, who), kwargs={"once": once}, daemon=True))
            threads[-1].start()
        all_of_them = len(self.waiting) + len(self._returning)
        until(lambda: _queued(queue_at, self.name) == all_of_them, within=20, what=f"{all_of_them} are queued")

    def _run(self, client: Client, who: str, *, once: bool) -> None:
        while not self._stop.is_set():
            lock = client.lock(self.name)
            try:
                if not lock.acquire(timeout=WAIT_SECONDS if once else TRY_SECONDS):
                    continue
            except QuorumError:
                continue
            self.room.work(who, lock)
            if once:
                return

    def late(self, seconds: float) -> Sequence[int]:
        """Return the threads waiting for one turn that have not had it `seconds` after the turn before."""
        for thread in self.waiting:
            thread.join(seconds)
        return [number for number, thread in enumerate(self.waiting) if thread.is_alive()]

    def end(self) -> None:
        """Let no thread come again, and wait until all threads have ended."""
        self._stop.set()
        for thread in (*self.waiting, *self._returning):
            thread.join(WAIT_SECONDS)


def _queued(server: Server, name: str) -> int:
    return int(server.cli("ZCARD", f"{key_of(name)}:queue"))
