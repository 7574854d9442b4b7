"""The network between virtual clients and virtual masters: connections that delay, break, and go silent.

On one connection, bytes arrive in the order in which they were sent, as with TCP, after a delay that chance draws. On
two connections they may arrive in any order. The clients send RESP, as redis-py and relock write it.

The network may repeat a message: a script then runs twice, and a published message comes twice. The reply to a repeated
request reaches no client.

An address may come to lead to another server. Open connections stay with the old one.
"""

from collections import deque
from collections.abc import Sequence
from errno import EAGAIN
from functools import lru_cache, partial
from math import log
from typing import Any

import hiredis
from redis import exceptions as redis_errors

from relock._runtime.net.channel import Channel
from relock._runtime.net.node import Node
from relock._runtime.net.raw_connection import RawConnection
from relock.testing._channels import PLAIN, SHARDED
from relock.testing._process import Parking, Process
from relock.testing._server import Server

BREAKS_LATE = 0.5  # the part of the connections that break only after the server has got all that was sent


class VirtualConnection(RawConnection):
    """A connection of one process to one server, in place of redis-py's."""

    def __init__(self, process: Process, server: Server, **options: Any) -> None:
        self.process = process
        self.server = server
        self.world = process.world
        self.timeout: float = options["socket_timeout"]
        self.fileno = self.world.fileno()
        self.subscriptions: list[tuple[bytes, bytes]] = []
        self.copies = 1  # the copies of its socket in this process and in forked children
        self.is_open = False
        self.is_broken = False
        self._inbox: deque[Any] = deque()
        self._watching: list[Parking] = []
        self._arrives_at = 0.0  # the true time at which the last message that was sent arrives
        self._comes_back_at = 0.0  # the same for the last reply
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets

    # What redis-py's connections do -----------------------------------------------------------------------------

    def connect(self) -> None:
        """Open the connection, after a delay; raise redis-py's error if the server is down or out of reach."""
        process, server = self.process, self.server
        seconds = 2 * self._delay()
        process.sleep(min(seconds, self.timeout))
        if process.name in server.unreachable or seconds > self.timeout:
            process.sleep(self.timeout - seconds)
            raise redis_errors.TimeoutError("Timeout connecting to server")
        if not server.is_up:
            raise redis_errors.ConnectionError("Error 111 connecting. Connection refused.")
        self.is_open = True
        server.connections[self] = None
        process.connections[self] = None
        process.channels[self.fileno] = self

    def disconnect(self) -> None:
        """Close the connection, and wake the tasks that wait to read from it."""
        if self.is_open:
            self.is_open = False
            self.process.connections.pop(self, None)
            self.close_copy()
        self._wake()

    def close_copy(self) -> None:
        """Close one copy of the socket. The server sees the end once the last copy is closed."""
        self.copies -= 1
        if not self.copies:
            self._end_at_server()

    def let_go(self) -> None:
        """Drop the copy of a process that has died. The connection breaks with the last copy."""
        self.copies -= 1
        if not self.copies:
            self.end()

    def _end_at_server(self) -> None:
        """Let the server see the end, after all that was sent before: it does that, though no client waits for it."""
        world = self.world
        world.at(max(self._arrives_at, world.now + self._delay()), self._server_sees_the_end)

    def _server_sees_the_end(self) -> None:
        self.server.forget(self)

    def end(self) -> None:
        """Break the connection. Each side notices after a delay. Requests under way may still arrive, replies not."""
        self.is_broken = True
        world = self.world
        if world.chance() < BREAKS_LATE:
            self._end_at_server()
        else:
            world.after(self._delay(), self._server_sees_the_end)
        world.after(self._delay(), self._wake)

    def pack_commands(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[bytes]:
        """Return commands as bytes of the wire, in a list of one."""
        return [b"".join(_pack(tuple(words)) for words in commands)]

    def send_command(self, *words: str | int | bytes, check_health: bool = True) -> None:  # noqa: ARG002
        """Pack a command, and send it."""
        self.send(_pack(words))

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None:  # noqa: ARG002
        """Send a packed command."""
        self.send(b"".join(command))

    def read_response(self, *, disconnect_on_error: bool = True) -> Any:  # noqa: ARG002
        """Return the next reply, waiting for it until the timeout; raise the reply if it is an error."""
        if not self.can_read(self.timeout):
            raise redis_errors.TimeoutError("Timeout reading from socket")
        reply = self._take()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def can_read(self, timeout: float) -> bool:
        """Wait for a reply or the end, `timeout` seconds at most; return whether one of them is there."""
        until = self.process.local() + timeout
        while not self.is_readable():
            left = until - self.process.local()
            if left <= 0:
                return False
            parking = Parking(self.process)
            self.watch(parking)
            parking.wait(left)
        return True

    # What channels and pollers do -----------------------------------------------------------------------------------

    def open_channel(self, timeout: float) -> Channel:
        """Return a `Channel` of the connection."""
        return VirtualChannel(self, timeout)

    def is_readable(self) -> bool:
        """Return whether a reply is there, or the end."""
        return bool(self._inbox) or self.is_broken or not self.is_open

    def watch(self, parking: Parking) -> None:
        """Have `parking` woken when there is something to read."""
        self._watching.append(parking)

    def take_all(self) -> list[Any]:
        """Take all replies that are there; raise redis-py's `ConnectionError` if there are none."""
        replies = [self._take(), *self._inbox]
        self._inbox.clear()
        return replies

    def _take(self) -> Any:
        if self._inbox:
            return self._inbox.popleft()
        raise redis_errors.ConnectionError("the server closed the connection")

    def send(self, packed: bytes) -> None:
        """Send bytes to the server."""
        if self.process.is_dead:
            return
        if self.is_broken or not self.is_open:
            raise redis_errors.ConnectionError("the connection is broken")
        self._feed(packed)
        commands = []
        command = self._gets()
        while command is not False:
            commands.append(command)
            command = self._gets()
        world = self.world
        self._arrives_at = max(self._arrives_at, world.now + self._delay())
        world.at(self._arrives_at, partial(self._arrive, commands))
        self._cut()

    def _arrive(self, commands: Sequence[Sequence[bytes]]) -> None:
        server = self.server
        if self.process.name in server.unreachable:
            return  # later commands on this connection do not arrive either
        if self in server.connections:
            server.receive(self, commands)

    def send_back(self, replies: Sequence[Any]) -> None:
        """Send replies to the client, in one message."""
        world = self.world
        self._comes_back_at = max(self._comes_back_at, world.now + self._delay())
        world.at(self._comes_back_at, partial(self._come_back, replies))
        self._cut()

    def publish(self, channel: bytes, payload: bytes) -> None:
        """Send a published message to the client; by the `Conditions`, it may be lost, late, or sent twice."""
        self._publish(PLAIN, channel, payload)

    def spublish(self, channel: bytes, payload: bytes) -> None:
        """Send a message of a sharded channel to the client, as `publish` does."""
        self._publish(SHARDED, channel, payload)

    def _publish(self, kind: bytes, channel: bytes, payload: bytes) -> None:
        conditions = self.server.conditions
        if conditions.drops and self.world.chance() < conditions.drops:
            return
        if conditions.lags and self.world.chance() < conditions.lags:
            self._comes_back_at = max(self._comes_back_at, self.world.now + self.world.chance() * conditions.straggle)
        message = [[kind, channel, payload]]
        self.send_back(message)
        if conditions.repeats and self.world.chance() < conditions.repeats:
            self.server.repeat(partial(self.send_back, message))

    def _cut(self) -> None:
        """Break the connection by chance: with the part `cuts` of the messages."""
        cuts = self.server.conditions.cuts
        if cuts and self.world.chance() < cuts:
            self.end()

    def _come_back(self, replies: Sequence[Any]) -> None:
        if self.is_open and not self.is_broken and self.process.name not in self.server.unreachable:
            self._inbox.extend(replies)
            self._wake()

    def _wake(self) -> None:
        watching, self._watching = self._watching, []
        for parking in watching:
            parking.wake()

    def _delay(self) -> float:
        """Return the delay (s) of one message: exponentially distributed, and longer for those that straggle."""
        conditions, chance = self.server.conditions, self.world.chance
        seconds = -conditions.delay * log(1.0 - chance())
        if conditions.straggles and chance() < conditions.straggles:
            seconds += chance() * conditions.straggle
        return seconds


class VirtualChannel(Channel):
    """Channel of a virtual connection."""

    def __init__(self, raw: VirtualConnection, timeout: float) -> None:
        self._raw = raw
        self._timeout = timeout
        self.fileno = raw.fileno
        self.send = raw.send
        self.ready = self._ready
        self.take = self._take
        self.take_now = self._take_now

    def parse(self, taken: bytes | list[Any]) -> list[Any]:
        """Return the replies in `taken`, which is one string as bytes of the wire, or a list of replies."""
        return [taken.split(b"\r\n")[1]] if isinstance(taken, bytes) else taken

    def _take(self) -> bytes | list[Any]:
        """Wait for replies; return them as bytes of the wire if there is one string, the usual case, else as a list."""
        if not self._raw.can_read(self._timeout):
            raise redis_errors.TimeoutError("Timeout reading from the master")
        replies = self._raw.take_all()
        if len(replies) == 1 and isinstance(replies[0], bytes) and b"\r\n" not in replies[0]:
            return b"$%d\r\n%b\r\n" % (len(replies[0]), replies[0])
        return replies

    def _take_now(self) -> bytes | list[Any]:
        if not self._raw.can_read(0.0):
            raise BlockingIOError(EAGAIN, "nothing is there")
        return self._take()

    def _ready(self, milliseconds: float) -> bool:
        return self._raw.can_read(milliseconds / 1000)


def node_of(process: Process, servers: Sequence[Server], number: int) -> Node:
    """Return a process's node for the address `number`; each connection goes to the present server at that address."""

    def connect(**options: Any) -> VirtualConnection:
        return VirtualConnection(process, servers[number], **options)

    name = f"master-{number}"
    return Node(name, connect, {}, frozenset({name}))


@lru_cache(4096)
def _pack(words: tuple[str | int | bytes, ...]) -> bytes:
    """Return a command as redis-py packs it; cached, because each connection that opens sends the same commands."""
    packed = [b"*%d\r\n" % len(words)]
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(packed)
