"""The floor of a hand-off on one master: one hop, over bare sockets.

Each worker has two sockets, one for its commands and one for the messages to it. A queue decides which worker is next.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import partial
from importlib.resources.abc import Traversable
from secrets import token_hex

from relock.cli._bench.floor.masters import bare_sockets, floor_keys
from relock.cli._bench.floor.sockets import FOLDER, packed
from relock.cli._bench.work import Job

LEASE_MS = 10_000


class OneHop:
    """Lock that a release gives to the head of the queue, with a message that says so."""

    LEAVE = FOLDER / "grant.lua"

    def __init__(self, job: Job) -> None:
        self._keys = floor_keys(job)
        self.me = f"{self._keys.channel}-{token_hex(8)}"
        (self._commands,), (self._messages,) = bare_sockets(job), bare_sockets(job, timeout=None)
        self._messages.call(packed("SUBSCRIBE", self.me))
        self._enter, self._leave = self._packed(FOLDER / "enter.lua"), self._packed(self.LEAVE)

    def _packed(self, script: Traversable) -> bytes:
        sha = self._commands.load(script.read_bytes())
        return packed("EVALSHA", sha, 2, self._keys.lock, self._keys.queue, self.me, LEASE_MS)

    def close(self) -> None:
        """Close both sockets."""
        self._commands.close()
        self._messages.close()

    def enter(self) -> bool:
        """Take the lock if it is free and nobody waits, else a place in the queue; return whether it took the lock."""
        return bool(self._commands.call(self._enter))

    def acquire(self) -> None:
        """Take the lock at once if it is free, else wait for the message."""
        if not self.enter():
            self._messages.receive()

    def release(self) -> None:
        """Release the lock with one script."""
        self._commands.call(self._leave)


def site(job: Job, kind: type[OneHop] = OneHop) -> AbstractContextManager[Callable[[], OneHop]]:
    """Return a function that makes a lock for one more worker. The sockets end with their process."""
    return nullcontext(partial(kind, job))


def rehearse(job: Job) -> None:
    """Play one hand-off, with each command of the scripts, so that a master that refuses one does so here.

    Raises:
        relock.cli._bench.floor.masters.FLOOR_ERRORS: the master refuses a command, or can't be reached.
    """
    with closing(OneHop(job)) as holder, closing(OneHop(job)) as waiter:
        holder.acquire()
        waiter.enter()
        holder.release()
        waiter.release()
