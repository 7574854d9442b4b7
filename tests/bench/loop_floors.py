"""The floors of tasks: sockets that an event loop watches, and futures. They stay as they are when relock changes.

No streams and no protocols are between: the loop reports that bytes have come, hiredis reads them, and the first caller
in line gets the reply.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from secrets import token_hex
from types import SimpleNamespace
from typing import Any

import hiredis

from bench.floors import BareSocket, ports_of, with_own_scripts
from bench.tasks import TaskLock, TaskLocker
from relock._core.quorum import quorum_of
from relock.cli._bench.floor.hops import LEASE_MS
from relock.cli._bench.floor.sockets import CHUNK_BYTES, FOLDER, RefusedError, packed
from relock.cli._bench.work import Job

Take = Callable[[Any], object]


class LoopSocket:
    """The loop's use of a bare socket. Replies go to the callers in the order in which they asked."""

    def __init__(self, bare: BareSocket) -> None:
        self._loop, self._socket = asyncio.get_running_loop(), bare.socket
        self._socket.setblocking(False)
        self._reader = hiredis.Reader()
        self._owed: deque[Take] = deque()
        self._loop.add_reader(self._socket.fileno(), self._readable)

    def close(self) -> None:
        """Close it."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def call(self, command: bytes) -> "asyncio.Future[Any]":
        """Send a command; return a future of its reply."""
        reply: asyncio.Future[Any] = self._loop.create_future()
        self.ask(command, reply.set_result)
        return reply

    def ask(self, command: bytes, take: Take) -> None:
        """Send a command; `take` is called with its reply."""
        self._owed.append(take)
        if self._socket.send(command) != len(command):
            raise BlockingIOError("commands of a benchmark fit into the socket's buffer")

    def _readable(self) -> None:
        data = self._socket.recv(CHUNK_BYTES)
        if not data:
            raise ConnectionError("the master closed the connection")
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if isinstance(reply, hiredis.ReplyError):
                raise RefusedError(str(reply))
            self._has_come(reply)

    def _has_come(self, reply: Any) -> None:
        self._owed.popleft()(reply)


class LoopMessages(LoopSocket):
    """A subscription, whose messages go to the tasks that wait for their channels."""

    def __init__(self, bare: BareSocket) -> None:
        super().__init__(bare)
        self.waiting: dict[bytes, Take] = {}

    def _has_come(self, reply: Any) -> None:
        kind, channel, message = reply
        if kind == b"message":
            self.waiting.pop(channel)(message)
        else:
            super()._has_come(reply)


# Pairs ----------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def own_scripts(job: Job) -> AsyncIterator[TaskLocker]:
    """Open sockets that the loop watches, for relock's two scripts: no lock with these scripts is faster."""
    opened = [BareSocket(port) for port in ports_of(job)]
    asked = [with_own_scripts(bare, guarded=len(opened) > 1) for bare in opened]
    takes, gives = [one.take for one in asked], [one.give for one in asked]
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(LoopSocket(bare))) for bare in opened]

        def sending(commands: Sequence[bytes]) -> Callable[[], Awaitable[object]]:
            one = len(commands) == 1
            return partial(sockets[0].call, commands[0]) if one else partial(_at_the_quorum, sockets, commands)

        async def locker() -> TaskLock:
            return SimpleNamespace(acquire=sending(takes), release=sending(gives))

        yield locker


async def _at_the_quorum(sockets: Sequence[LoopSocket], commands: Sequence[bytes]) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    missing = quorum_of(len(commands))

    def has_come(_reply: Any) -> None:  # counts the replies after the quorum, too
        nonlocal missing
        missing -= 1
        if missing == 0:
            done.set_result(None)

    for bare, command in zip(sockets, commands, strict=True):
        bare.ask(command, has_come)
    await done


# Hand-offs ------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def loop_hops(job: Job) -> AsyncIterator[TaskLocker]:
    """Open the two sockets that the tasks of a loop share, for the scripts of one hop.

    A release gives the lock to the head of the queue, and tells it by a message.
    """
    loop, (port,) = asyncio.get_running_loop(), ports_of(job)
    bare, listener = BareSocket(port), BareSocket(port)
    shas = [bare.load((FOLDER / f"{name}.lua").read_bytes()) for name in ("enter", "grant")]
    with closing(LoopSocket(bare)) as commands, closing(LoopMessages(listener)) as messages:

        async def locker() -> TaskLock:
            me = f"{job.name}-{token_hex(8)}".encode()
            await messages.call(packed("SUBSCRIBE", me))
            enter, leave = (packed("EVALSHA", sha, 2, job.name, f"{job.name}:queue", me, LEASE_MS) for sha in shas)

            async def acquire() -> None:
                granted = loop.create_future()
                messages.waiting[me] = granted.set_result  # the message may come before the reply
                if not await commands.call(enter):
                    await granted

            async def release() -> None:
                await commands.call(leave)

            return SimpleNamespace(acquire=acquire, release=release)

        yield locker
