"""A virtual master with its sockets: the faults that a test can give it, and its replies to commands.

The server knows a connection only as a `Peer`: the network itself is in `relock.testing._network`.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, Protocol

from redis import exceptions as redis_errors
from redis.crc import key_slot

from relock._scripts import load, load_for_redisson, probe_source, script_names
from relock.testing._arguments import ReplyError
from relock.testing._channels import PLAIN, SHARDED
from relock.testing._conditions import Conditions
from relock.testing._master import VirtualMaster
from relock.testing._process import Process
from relock.testing._world import World

SPLITS = 0.2  # the part of the writes with several replies that arrive one reply after the other


class Peer(Protocol):
    """Connection, as a server sees it.

    Attributes:
        process: the one that opened it.
        subscriptions: the channels that it has subscribed to, each with its kind.
    """

    process: Process
    subscriptions: list[tuple[bytes, bytes]]

    def end(self) -> None:
        """Break the connection."""

    def send_back(self, replies: Sequence[Any]) -> None:
        """Send replies to the client, in one message."""

    def publish(self, channel: bytes, payload: bytes) -> None:
        """Send a published message to the client."""

    def spublish(self, channel: bytes, payload: bytes) -> None:
        """Send a message of a sharded channel to the client."""


class Server:
    """A virtual master with its sockets.

    Attributes:
        number: the number of the server's address.
        is_up: whether it takes connections; False from a crash to its restart.
        is_stopped: whether it is stopped, as by SIGSTOP; the kernel still takes what clients send.
        accused_at: the true time at which a client last took its vote, because its clock had stepped.
        accused_by: the name of that client's process.
        asked_at: the true time of the last script of each process, by its name.
        repeated: how many requests and messages came twice.
        tell: is called with this server after each script.
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
        self.unreachable: set[str] = set()  # processes that this server can neither hear nor reach
        self.rate = rate
        self.offset = offset
        self.connections: dict[Peer, None] = {}
        self.master = VirtualMaster(self.clock_us, self._new_incarnation())
        self.tell: Callable[[Any], object] | None = None
        self._known: set[bytes] = set()
        self._held_up: deque[Callable[[], object]] = deque()

    def _new_incarnation(self) -> str:
        return f"{self.world.random.getrandbits(160):040x}"

    def clock(self) -> float:
        """Return the time (s) on the server's clock."""
        return self.offset + self.rate * self.world.now

    def clock_us(self) -> int:
        """Return the time (µs) on the server's clock."""
        return int((self.offset + self.rate * self.world.now) * 1e6)

    # What happens to it ---------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """End the server, and break all its connections."""
        self.is_up = False
        self.is_stopped = False
        self._held_up.clear()
        self._break_all()

    def restart(self, snapshot: Any = None) -> None:
        """Start the server again, empty or with old data, as a new incarnation."""
        self.is_up = True
        self._known.clear()
        self.master.restart(self._new_incarnation(), snapshot)

    def stop(self) -> None:
        """Stop the server, as SIGSTOP does."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Let the server go on, as SIGCONT does: it carries out the commands that have arrived meanwhile."""
        self.is_stopped = False
        held_up, self._held_up = self._held_up, deque()
        while held_up:
            held_up.popleft()()

    def step(self, seconds: float) -> None:
        """Set the clock by so many seconds forward, or back if they are negative."""
        self.offset += seconds

    def set_rate(self, rate: float) -> None:
        """Let the clock run at another rate from now on."""
        self.offset += (self.rate - rate) * self.world.now
        self.rate = rate

    def forget_scripts(self) -> None:
        """Forget the scripts, as SCRIPT FLUSH does."""
        self._known.clear()

    def kill_connections(self) -> None:
        """Break all connections, as CLIENT KILL does."""
        self._break_all()

    def kill_normal(self) -> None:
        """Break the connections without a subscription, as CLIENT KILL TYPE normal does."""
        for raw in list(self.connections):
            if not raw.subscriptions:
                raw.end()

    def drop(self, process: Process) -> None:
        """Break the connections of one process."""
        for raw in list(self.connections):
            if raw.process is process:
                raw.end()

    def reach(self, process: Process) -> None:
        """End a process's isolation: messages arrive again. Its connections break, because some were lost on them."""
        if process.name in self.unreachable:
            self.unreachable.discard(process.name)
            for raw in list(self.connections):
                if raw.process is process:
                    raw.end()

    def _break_all(self) -> None:
        for raw in list(self.connections):
            raw.end()

    # Commands -------------------------------------------------------------------------------------------------------

    def receive(self, raw: Peer, commands: Sequence[Sequence[bytes]]) -> None:
        """Execute the commands that have arrived on a connection: now or, if they are held up, in `go_on`."""
        if not self.is_up:
            return
        if self._is_held_up(raw, commands):
            self._held_up.append(partial(self.receive, raw, commands))
            return
        replies = [self._execute(raw, command) for command in commands]
        if len(replies) > 1 and self.world.chance() < SPLITS:
            first = 1 + (commands[0][0] == b"CLIENT")  # a connection's name must draw no delay, and so change no run
            raw.send_back(replies[:first])
            for reply in replies[first:]:
                raw.send_back([reply])
        else:
            raw.send_back(replies)

    def _is_held_up(self, raw: Peer, commands: Sequence[Sequence[bytes]]) -> bool:  # noqa: ARG002
        """Return whether these commands must wait until the server goes on."""
        return self.is_stopped

    def _execute(self, raw: Peer, command: Sequence[bytes]) -> Any:
        word = command[0].upper()
        if raw.subscriptions and word not in _SUBSCRIBED:
            return redis_errors.ResponseError(f"ERR Can't execute '{word.decode().lower()}': only (P|S)SUBSCRIBE")
        if word == b"EVAL" and command[1] == _PROBE:
            return []  # it refuses no command
        if word in SCRIPTED:
            self.asked_at[raw.process.name] = self.world.now
            reply = self._run(word, command, raw.process)
            if self.conditions.repeats and self.world.chance() < self.conditions.repeats:
                self.repeat(partial(self._run_again, self.master.incarnation, command, raw.process))
            return reply
        if word in _BEGINNING or word in _ENDING:
            return self._change_subscription(raw, word, command[1])
        return self._look(word, command)

    def _change_subscription(self, raw: Peer, word: bytes, channel: bytes) -> Any:
        """Begin or end a subscription; a node of a Cluster refuses a sharded channel in a slot of another node."""
        kind = _BEGINNING.get(word) or _ENDING[word]
        try:
            if kind == SHARDED:
                self.master.slot_of([channel], are_keys=False)
            if word in _BEGINNING:
                self.master.subscribe(channel, _publisher(raw, kind), kind)
                raw.subscriptions.append((kind, channel))
            else:
                self.master.unsubscribe(channel, _publisher(raw, kind), kind)
                if (kind, channel) in raw.subscriptions:
                    raw.subscriptions.remove((kind, channel))
        except ReplyError as error:
            return redis_errors.ResponseError(str(error))
        return [word.lower(), channel, 1]

    def forget(self, raw: Peer) -> None:
        """Drop a connection that has ended, and its subscriptions."""
        self.connections.pop(raw, None)
        for kind, channel in raw.subscriptions:
            self.master.unsubscribe(channel, _publisher(raw, kind), kind)
        raw.subscriptions.clear()

    def end_channels(self, slots: Collection[int]) -> None:
        """End the subscriptions to the sharded channels of slots that this node of a Cluster no longer serves."""
        for raw in list(self.connections):
            for kind, channel in list(raw.subscriptions):
                if kind == SHARDED and key_slot(channel) in slots:
                    self.master.unsubscribe(channel, raw.spublish, kind)
                    raw.subscriptions.remove((kind, channel))
                    raw.send_back([[b"sunsubscribe", channel, 1]])

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
        """Do `action` once more, at once or later, and count it."""
        self.repeated += 1
        seconds = self.world.random.choice(self.conditions.repeated_after)
        if seconds:
            self.world.after(seconds, action)
        else:
            action()

    def _run_again(self, incarnation: str, command: Sequence[bytes], asker: Process) -> None:
        """Run a request once more, unless the server is stopped, or has ended since.

        `force_release` is never repeated: it names no hold, so a second one may end a hold that came after the first.
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
        if word == b"SCAN":  # the caller filters the keys, so all are given at once
            return [b"0", self.master.keys()]
        if word in _ALWAYS_SO:
            return _ALWAYS_SO[word]
        return redis_errors.ResponseError(f"ERR unknown command {word!r}")


_LOADED = (*map(load, script_names()), *load_for_redisson())
_SCRIPTS = {one.sha.encode(): one for script in _LOADED for one in (script, script.on_cluster)}
_SHAS = {script.source: sha for sha, script in _SCRIPTS.items()}
_PROBE = probe_source()
_QUARANTINE = load("quarantine").sha.encode()
_BLUNT = frozenset(
    word for one in _SCRIPTS.values() if one.name == "force_release" for word in (one.sha.encode(), one.source)
)
SCRIPTED = frozenset({b"EVALSHA", b"EVAL"})
_ALWAYS_SO = {b"PING": [b"pong", b""], b"CLIENT": b"OK"}
_BEGINNING = {b"SUBSCRIBE": PLAIN, b"SSUBSCRIBE": SHARDED}
_ENDING = {b"UNSUBSCRIBE": PLAIN, b"SUNSUBSCRIBE": SHARDED}
_SUBSCRIBED = frozenset({*_BEGINNING, *_ENDING, b"PING", b"RESET", b"QUIT"})


def _publisher(raw: Peer, kind: bytes) -> Callable[[bytes, bytes], None]:
    return raw.spublish if kind == SHARDED else raw.publish
