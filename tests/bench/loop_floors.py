"""The floors of tasks: sockets that an event loop watches, and futures. They stay as they are when relock changes.

No streams and no protocols are between: the loop reports that bytes have come, hiredis reads them, and the first caller
in line gets the reply.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import Any

import hiredis

from bench.floors import BareSocket, ports_of, with_own_scripts
from relock._core.quorum import quorum_of
from relock.cli._bench.floor.hops import LEASE_MS
from relock.cli._bench.floor.sockets import CHUNK_BYTES, FOLDER, RefusedError, packed
from relock.cli._bench.work import Job

Take = Callable[[Any], object]


class LoopSocket:
    """A socket to a port of this machine. Replies go to the callers in the order in which they asked."""

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        self._loop = loop
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._reader = hiredis.Reader()
        self._owed: deque[Take] = deque()
        loop.add_reader(self._socket.fileno(), self._readable)

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

    def __init__(self, loop: asyncio.AbstractEventLoop, port: int) -> None:
        super().__init__(loop, port)
        self.waiting: dict[bytes, Take] = {}

    def _has_come(self, reply: Any) -> None:
        kind, channel, message = reply
        if kind == b"message":
            self.waiting.pop(channel)(message)
        else:
            super()._has_come(reply)


# Pairs ----------------------------------------------------------------------------------------------------------------


class OwnScripts:
    """relock's two scripts over sockets that the loop watches: no lock with these scripts is faster."""

    def __init__(self, job: Job) -> None:
        self._loop, self._sockets = asyncio.get_running_loop(), list[LoopSocket]()
        ports = ports_of(job)
        asked = [with_own_scripts(port, guarded=len(ports) > 1) for port in ports]
        for one, port in zip(asked, ports, strict=True):
            one.bare.close()
            self._sockets.append(LoopSocket(self._loop, port))
        takes, gives = [one.take for one in asked], [one.give for one in asked]
        call = self._sockets[0].call
        self.acquire: Callable[[], Awaitable[object]] = partial(call, takes[0])
        self.release: Callable[[], Awaitable[object]] = partial(call, gives[0])
        if len(asked) > 1:
            self.acquire, self.release = partial(self._at_the_quorum, takes), partial(self._at_the_quorum, gives)

    async def _at_the_quorum(self, commands: Sequence[bytes]) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        missing = quorum_of(len(commands))

        def has_come(_reply: Any) -> None:  # counts the replies after the quorum, too
            nonlocal missing
            missing -= 1
            if missing == 0:
                done.set_result(None)

        for bare, command in zip(self._sockets, commands, strict=True):
            bare.ask(command, has_come)
        await done

    async def locker(self) -> "OwnScripts":
        """Return this object, which is the only lock."""
        return self

    async def close(self) -> None:
        """Close the sockets."""
        for bare in self._sockets:
            bare.close()


# Hand-offs ------------------------------------------------------------------------------------------------------------


class LoopHops:
    """The scripts of one hop, over the two sockets that the tasks of a loop share."""

    def __init__(self, job: Job) -> None:
        loop, (port,) = asyncio.get_running_loop(), ports_of(job)
        bare = BareSocket(port)
        self._shas = [bare.load((FOLDER / f"{name}.lua").read_bytes()) for name in ("enter", "grant")]
        bare.close()
        self._name = job.name
        self._commands, self._messages = LoopSocket(loop, port), LoopMessages(loop, port)

    async def locker(self) -> "LoopHop":
        """Subscribe to the channel of one more task."""
        me = f"{self._name}-{token_hex(8)}"
        await self._messages.call(packed("SUBSCRIBE", me))
        enter, leave = (
            packed("EVALSHA", sha, 2, self._name, f"{self._name}:queue", me, LEASE_MS) for sha in self._shas
        )
        return LoopHop(self._commands, self._messages, me.encode(), (enter, leave))

    async def close(self) -> None:
        """Close the sockets."""
        self._commands.close()
        self._messages.close()


class LoopHop:
    """The lock of one task: a release gives the lock to the head of the queue, and tells it by a message."""

    def __init__(self, commands: LoopSocket, messages: LoopMessages, me: bytes, scripts: tuple[bytes, bytes]) -> None:
        self._call, self._waiting, self._me = commands.call, messages.waiting, me
        self._enter, self._leave = scripts
        self._loop = asyncio.get_running_loop()

    async def acquire(self) -> None:
        """Take the lock at once if it is free, else when the message comes, which may be before the reply."""
        granted = self._loop.create_future()
        self._waiting[self._me] = granted.set_result
        if not await self._call(self._enter):
            await granted

    async def release(self) -> None:
        """Send one script."""
        await self._call(self._leave)
