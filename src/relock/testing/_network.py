"""The network between virtual clients and virtual masters: connections that delay, break, and go silent.

Bytes arrive in the order in which they were sent on one connection, as with TCP, after a delay that chance draws; on
two connections anything may pass anything. What the masters are sent is RESP, as redis-py and relock write it.

Something between the two may repeat what passes it: a script then runs twice, and a published message comes twice. The
reply to a repeated request reaches nobody.

An address may lead to another server than before: what is open stays as it is.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from math import log
from typing import Any

import hiredis
from attrs import define
from redis import exceptions as redis_errors

from relock._runtime.net.channel import Channel
from relock._runtime.net.node import Node
from relock._runtime.net.raw_connection import RawConnection
from relock._scripts import load
from relock.testing._master import ReplyError, VirtualMaster
from relock.testing._process import Parking, Process
from relock.testing._world import World

SCRIPTS = (
    "acquire", "count", "enqueue", "extend", "fence", "force_release", "give_back", "heal", "inspect", "leave",
    "quarantine", "release", "heartbeat",
)  # fmt: skip


BREAKS_LATE = 0.5  # of the connections that break take along what is under way
SPLITS = 0.2  # of the replies that a server writes at once arrive one after the other


@define
class Conditions:
    """How the network is, as chances and seconds.

    Attributes:
        delay: seconds that a message takes on average.
        straggles: the part of the messages that take much longer,
        straggle: up to so many seconds.
        cuts: the part of the messages with which their connection breaks.
        drops: the part of the published messages that are lost.
        lags: the part of the published messages that take much longer, as those that straggle.
        repeats: the part of the scripts, and of the published messages, that arrive twice;
        repeated_after: how many seconds later; it is drawn from these.
    """

    delay: float = 0.0003
    straggles: float = 0.0
    straggle: float = 0.0
    cuts: float = 0.0
    drops: float = 0.0
    lags: float = 0.0
    repeats: float = 0.0
    repeated_after: tuple[float, ...] = (0.0,)


class Server:
    """A virtual master with its sockets.

    Attributes:
        number: of the address behind which it is.
        is_up: whether it takes connections; False from a crash to its restart.
        is_stopped: as by SIGSTOP: the kernel still takes what is sent.
        accused_at: the true time at which a client has last taken its vote, because its clock had stepped.
        accused_by: the process of that client.
        asked_at: the true time at which each client has last had a script run.
        repeated: how many requests and messages came twice.
        tell: is told of each script that has run.
    """

    def __init__(
        self, world: World, number: int, conditions: Conditions, *, rate: float, offset: float, name: str = "master"
    ) -> None:
        self.world = world
        self.number = number
        self.name = f"{name}-{number}"
        self.conditions = conditions
        self.is_up = True
        self.is_stopped = False
        self.accused_at = float("-inf")
        self.accused_by = ""
        self.asked_at: dict[str, float] = {}
        self.repeated = 0
        self.unreachable: set[str] = set()  # processes between which and this server nothing arrives
        self.rate = rate
        self.offset = offset
        self.connections: dict[VirtualConnection, None] = {}
        self.master = VirtualMaster(self.clock_us, self._new_incarnation())
        self.tell: Callable[[Any], object] | None = None
        self._known: set[bytes] = set()
        self._held_up: deque[Callable[[], object]] = deque()

    def _new_incarnation(self) -> str:
        return f"{self.world.random.getrandbits(160):040x}"

    def clock(self) -> float:
        """What its clock shows, in seconds."""
        return self.offset + self.rate * self.world.now

    def clock_us(self) -> int:
        """What its clock shows, in microseconds."""
        return int((self.offset + self.rate * self.world.now) * 1e6)

    # What happens to it ---------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """It is gone, with all connections."""
        self.is_up = False
        self.is_stopped = False
        self._held_up.clear()
        self._break_all()

    def restart(self, snapshot: Any = None) -> None:
        """It is there again, empty or with old data, and has another name."""
        self.is_up = True
        self._known.clear()
        self.master.restart(self._new_incarnation(), snapshot)

    def stop(self) -> None:
        """As SIGSTOP."""
        self.is_stopped = True

    def go_on(self) -> None:
        """As SIGCONT: it does all that it has been sent meanwhile."""
        self.is_stopped = False
        held_up, self._held_up = self._held_up, deque()
        while held_up:
            held_up.popleft()()

    def step(self, seconds: float) -> None:
        """Its clock is set."""
        self.offset += seconds

    def set_rate(self, rate: float) -> None:
        """From now on its clock runs at another rate."""
        self.offset += (self.rate - rate) * self.world.now
        self.rate = rate

    def forget_scripts(self) -> None:
        """As SCRIPT FLUSH."""
        self._known.clear()

    def kill_connections(self) -> None:
        """As CLIENT KILL."""
        self._break_all()

    def kill_normal(self) -> None:
        """As CLIENT KILL TYPE normal: whoever has subscribed to something stays."""
        for raw in list(self.connections):
            if not raw.subscriptions:
                raw.end()

    def drop(self, process: Process) -> None:
        """The connections of one process break."""
        for raw in list(self.connections):
            if raw.process is process:
                raw.end()

    def reach(self, process: Process) -> None:
        """Messages arrive again; connections on which some were lost break."""
        if process.name in self.unreachable:
            self.unreachable.discard(process.name)
            for raw in list(self.connections):
                if raw.process is process:
                    raw.end()

    def _break_all(self) -> None:
        for raw in list(self.connections):
            raw.end()

    # Commands -------------------------------------------------------------------------------------------------------

    def receive(self, raw: "VirtualConnection", commands: Sequence[Sequence[bytes]]) -> None:
        """What has arrived on a connection is done now, or when it goes on."""
        if not self.is_up:
            return
        if self._is_held_up(raw, commands):
            self._held_up.append(partial(self.receive, raw, commands))
            return
        replies = [self._execute(raw, command) for command in commands]
        if len(replies) > 1 and self.world.chance() < SPLITS:
            first = 1 + (commands[0][0] == b"CLIENT")  # that a connection has a name changes no run
            raw.send_back(replies[:first])
            for reply in replies[first:]:
                raw.send_back([reply])
        else:
            raw.send_back(replies)

    def _is_held_up(self, raw: "VirtualConnection", commands: Sequence[Sequence[bytes]]) -> bool:  # noqa: ARG002
        """Whether what has arrived has to wait until it goes on."""
        return self.is_stopped

    def _execute(self, raw: "VirtualConnection", command: Sequence[bytes]) -> Any:
        word = command[0].upper()
        if raw.subscriptions and word not in _SUBSCRIBED:
            return redis_errors.ResponseError(f"ERR Can't execute '{word.decode().lower()}': only (P|S)SUBSCRIBE")
        if word in SCRIPTED:
            self.asked_at[raw.process.name] = self.world.now
            reply = self._run(word, command, raw.process)
            if self.conditions.repeats and self.world.chance() < self.conditions.repeats:
                self.repeat(partial(self._run_again, self.master.incarnation, command, raw.process))
            return reply
        if word == b"SUBSCRIBE":
            channel = command[1]
            self.master.subscribe(channel, raw.publish)
            raw.subscriptions.append(channel)
            return [b"subscribe", channel, 1]
        return self._look(word, command)

    def _run(self, word: bytes, command: Sequence[bytes], asker: Process) -> Any:
        if word == b"EVAL":
            sha = _SHAS[command[1]]
            self._known.add(sha)
        else:
            sha = command[1]
            if sha not in self._known:
                return redis_errors.ResponseError("NOSCRIPT No matching script.")
        keys = int(command[2])
        try:
            reply = self.master.run(_SCRIPTS[sha], command[3 : 3 + keys], command[3 + keys :])
        except ReplyError as error:
            return redis_errors.ResponseError(str(error))
        finally:
            if self.tell is not None:
                self.tell(self)
        if sha == _QUARANTINE and isinstance(reply, list) and reply[0] == b"quarantined":
            self.accused_at, self.accused_by = self.world.now, asker.name
        return reply

    def repeat(self, action: Callable[[], object]) -> None:
        """Has something done a second time: at once, or later."""
        self.repeated += 1
        seconds = self.world.random.choice(self.conditions.repeated_after)
        if seconds:
            self.world.after(seconds, action)
        else:
            action()

    def _run_again(self, incarnation: str, command: Sequence[bytes], asker: Process) -> None:
        """A request arrives once more, on whatever connection, unless the server has ended since.

        Not the end by force: it means no hold in particular, so nothing protects whom it finds the second time.
        """
        if self.is_up and not self.is_stopped and self.master.incarnation == incarnation and command[1] not in _BLUNT:
            self._run(command[0].upper(), command, asker)

    def _look(self, word: bytes, command: Sequence[bytes]) -> Any:
        if word == b"TIME":
            now_us = self.clock_us()
            return [b"%d" % (now_us // 1_000_000), b"%d" % (now_us % 1_000_000)]
        if word == b"INFO":
            return self.master.info(*command[1:])
        if word == b"HMGET":
            return [self.master.read("HGET", command[1], field) for field in command[2:]]
        if word == b"SCAN":  # all at once: whoever asks looks at each name himself
            return [b"0", self.master.keys()]
        if word in _ALWAYS_SO:
            return _ALWAYS_SO[word]
        return redis_errors.ResponseError(f"ERR unknown command {word!r}")


_SCRIPTS = {load(name).sha.encode(): load(name) for name in SCRIPTS}
_SHAS = {script.source: sha for sha, script in _SCRIPTS.items()}
_QUARANTINE = load("quarantine").sha.encode()
_BLUNT = frozenset({load("force_release").sha.encode(), load("force_release").source})
SCRIPTED = frozenset({b"EVALSHA", b"EVAL"})
_ALWAYS_SO = {b"PING": [b"pong", b""], b"CLIENT": b"OK"}
_SUBSCRIBED = frozenset({b"SUBSCRIBE", b"UNSUBSCRIBE", b"PING", b"RESET", b"QUIT"})


class VirtualConnection(RawConnection):
    """A connection of one process to one server, in place of redis-py's."""

    def __init__(self, process: Process, server: Server, **options: Any) -> None:
        self.process = process
        self.server = server
        self.world = process.world
        self.timeout: float = options["socket_timeout"]
        self.fileno = self.world.fileno()
        self.subscriptions: list[bytes] = []
        self.copies = 1  # of its socket, in this process and in forked children
        self.is_open = False
        self.is_broken = False
        self._inbox: deque[Any] = deque()
        self._watching: list[Parking] = []
        self._arrives_at = 0.0  # the last message that was sent
        self._comes_back_at = 0.0  # the last reply
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets

    # What redis-py's connections do -----------------------------------------------------------------------------

    def connect(self) -> None:
        """See `RawConnection`."""
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
        """See `RawConnection`."""
        if self.is_open:
            self.is_open = False
            self.process.connections.pop(self, None)
            self.close_copy()
        self._wake()

    def close_copy(self) -> None:
        """One copy of the socket is closed; the server sees the end when there is no other one."""
        self.copies -= 1
        if not self.copies:
            self._end_at_server()

    def let_go(self) -> None:
        """The process is dead, and with it its copy of the socket."""
        self.copies -= 1
        if not self.copies:
            self.end()

    def _end_at_server(self) -> None:
        """The end arrives after all that was sent before, which is done although nobody waits for it any more."""
        world = self.world
        world.at(max(self._arrives_at, world.now + self._delay()), self._server_sees_the_end)

    def _server_sees_the_end(self) -> None:
        self.server.connections.pop(self, None)
        for channel in self.subscriptions:
            self.server.master.unsubscribe(channel, self.publish)
        self.subscriptions.clear()

    def end(self) -> None:
        """It breaks; both sides notice, after a while. What is under way may arrive, or not."""
        self.is_broken = True
        world = self.world
        if world.chance() < BREAKS_LATE:
            self._end_at_server()
        else:
            world.after(self._delay(), self._server_sees_the_end)
        world.after(self._delay(), self._wake)

    def pack_commands(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[bytes]:
        """See `RawConnection`."""
        return [b"".join(_pack(tuple(words)) for words in commands)]

    def send_command(self, *words: str | int | bytes, check_health: bool = True) -> None:  # noqa: ARG002
        """See `RawConnection`."""
        self.send(_pack(words))

    def send_packed_command(self, command: Sequence[bytes], check_health: bool = True) -> None:  # noqa: ARG002
        """See `RawConnection`."""
        self.send(b"".join(command))

    def read_response(self, *, disconnect_on_error: bool = True) -> Any:  # noqa: ARG002
        """See `RawConnection`."""
        if not self.can_read(self.timeout):
            raise redis_errors.TimeoutError("Timeout reading from socket")
        reply = self._take()
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def can_read(self, timeout: float) -> bool:
        """See `RawConnection`."""
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
        """The connection as a `Channel`."""
        return VirtualChannel(self, timeout)

    def is_readable(self) -> bool:
        """Whether a reply is there, or the end."""
        return bool(self._inbox) or self.is_broken or not self.is_open

    def watch(self, parking: Parking) -> None:
        """Wakes whoever waits for something to be readable."""
        self._watching.append(parking)

    def take_all(self) -> list[Any]:
        """All replies that are there."""
        replies = [self._take(), *self._inbox]
        self._inbox.clear()
        return replies

    def _take(self) -> Any:
        if self._inbox:
            return self._inbox.popleft()
        raise redis_errors.ConnectionError("the server closed the connection")

    def send(self, packed: bytes) -> None:
        """Bytes for the server."""
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
            return  # and nothing that comes later on this connection arrives either
        if self in server.connections:
            server.receive(self, commands)

    def send_back(self, replies: Sequence[Any]) -> None:
        """Replies for the client, in one message."""
        world = self.world
        self._comes_back_at = max(self._comes_back_at, world.now + self._delay())
        world.at(self._comes_back_at, partial(self._come_back, replies))
        self._cut()

    def publish(self, channel: bytes, payload: bytes) -> None:
        """A published message for the client."""
        conditions = self.server.conditions
        if conditions.drops and self.world.chance() < conditions.drops:
            return
        if conditions.lags and self.world.chance() < conditions.lags:
            self._comes_back_at = max(self._comes_back_at, self.world.now + self.world.chance() * conditions.straggle)
        message = [[b"message", channel, payload]]
        self.send_back(message)
        if conditions.repeats and self.world.chance() < conditions.repeats:
            self.server.repeat(partial(self.send_back, message))

    def _cut(self) -> None:
        """With some messages the connection breaks."""
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
        """Of one message; most are exponentially distributed."""
        conditions, chance = self.server.conditions, self.world.chance
        seconds = -conditions.delay * log(1.0 - chance())
        if conditions.straggles and chance() < conditions.straggles:
            seconds += chance() * conditions.straggle
        return seconds


class VirtualChannel(Channel):
    """See `Channel`."""

    def __init__(self, raw: VirtualConnection, timeout: float) -> None:
        self._raw = raw
        self._timeout = timeout
        self.fileno = raw.fileno
        self.send = raw.send
        self.ready = self._ready
        self.take = self._take

    def parse(self, taken: list[Any]) -> list[Any]:
        """See `Channel`; what is under way here are replies."""
        return taken

    def _take(self) -> list[Any]:
        if not self._raw.can_read(self._timeout):
            raise redis_errors.TimeoutError("Timeout reading from the master")
        return self._raw.take_all()

    def _ready(self, milliseconds: float) -> bool:
        return self._raw.can_read(milliseconds / 1000)


def node_of(process: Process, servers: Sequence[Server], number: int) -> Node:
    """How a process reaches whichever server stands there in `servers` when it connects."""

    def connect(**options: Any) -> VirtualConnection:
        return VirtualConnection(process, servers[number], **options)

    name = f"master-{number}"
    return Node(name, connect, {}, frozenset({name}))


@lru_cache(4096)
def _pack(words: tuple[str | int | bytes, ...]) -> bytes:
    """What redis-py makes of a command; those of a connection that opens are always the same."""
    packed = [b"*%d\r\n" % len(words)]
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode()
        packed.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(packed)
