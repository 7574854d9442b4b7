"""The beginning of a connection: who the server is, its clock, and the marker that other clients have left."""

from abc import abstractmethod
from typing import Any

from redis import exceptions as redis_errors

from relock._errors import ConfigurationError
from relock._runtime.masters.errors import understood
from relock._runtime.masters.known import INTRODUCTION, NAMELESS, UNKNOWN, MasterState, as_guard_ms
from relock._runtime.net.channel import Channel
from relock._runtime.net.raw_connection import RawConnection
from relock._scripts import pack_argument


def numbers_of(reply: Any, count: int) -> list[int]:
    """Return the `count` numbers of a reply.

    Raises:
        redis.RedisError: an error, or something else.
    """
    if isinstance(reply, BaseException):
        raise reply
    if isinstance(reply, list) and len(reply) == count and all(isinstance(n, bytes) and n.isdigit() for n in reply):
        return [int(number) for number in reply]
    raise redis_errors.InvalidResponse(f"not {count} numbers: {reply!r:.100}")


def guard_of_others(master: MasterState, marker: Any, incarnation: bytes, guard_ms: int) -> int | None:
    """Return the guard (ms) that the marker of other clients names; None where there is no marker.

    Where another program has written the marker, return the caller's own guard: the scripts take such a marker for one
    that is missing, and begin that guard.

    Raises:
        redis.RedisError: the reply is an error, or no field.
        ConfigurationError: others use a guard, and this client can't.
    """
    if marker == [None]:
        return None
    found_ms = _guard_of(marker)
    if found_ms != 0 and incarnation == NAMELESS:
        raise ConfigurationError(
            f"{master.address} refuses INFO, and other clients use a restart guard there: allow the command",
            option="restart_guard",
        )
    if found_ms is None and guard_ms == 0:
        raise ConfigurationError(
            f"{master.address}: another program has written to {master.marker}, so that it is not known how long a "
            "guard other clients have: set theirs, or delete that key when no lease is left",
            option="restart_guard",
        )
    return guard_ms if found_ms is None else found_ms


def _guard_of(marker: Any) -> int | None:
    """Return the guard (ms) that a marker names; None where that can be no guard.

    Raises:
        redis.RedisError: it is an error, or no field.
    """
    if isinstance(marker, BaseException):
        raise marker
    if isinstance(marker, list) and len(marker) == 1 and isinstance(marker[0], bytes):
        return as_guard_ms(marker[0])
    raise redis_errors.InvalidResponse(f"no field of the marker: {marker!r:.100}")


class NamingMaster(MasterState):
    """A master, as a connection sees it while that is opened."""

    @property
    @abstractmethod
    def naming(self) -> tuple[tuple[str, ...], ...]:
        """Commands that give a new connection its name on the server; none without a name."""


class Introduced:
    """A connection, and what its socket has shown of the master when it was opened.

    Attributes:
        guard_ms: for how long the server must have no vote after it may have forgotten leases.
        guarded: whether there is such a guard.
        incarnation: of the server that its socket leads to.
    """

    channel: Channel
    guard_ms: int
    guarded: bool
    incarnation: bytes

    def __init__(self, master: NamingMaster, raw: RawConnection) -> None:
        self.master = master
        self.raw = raw
        self.guard_ms = master.guard_ms
        self.guarded = master.guard_ms > 0
        self.incarnation = UNKNOWN
        self._opened_us = 0  # the master's clock when its incarnation was learnt
        self._named_ms = 0  # the guard that scripts are told; below 0 at a first contact, see lua/_lib/vote.lua
        self._identity = b""  # what a vote says of the two, packed
        self._identity_head = self._identity_tail = b""  # with a guard: what the time of the last vote stands between

    def open(self) -> None:
        """Connect, and learn what a script must be told of this socket.

        Raises:
            redis.RedisError, OSError: the master can't be reached, or refuses.
            ConfigurationError: it is a replica, or lacks what the options ask for.
        """
        with understood():
            self._open()

    def _open(self) -> None:
        self.raw.connect()
        marker, naming = self.master.marker, self.master.naming
        commands: list[tuple[str, ...]] = [*naming, *INTRODUCTION, ("TIME",)]
        if marker is not None:
            commands.append(("HMGET", marker, "guard_ms"))
        sent_at = self.master.clock()
        self._send_plain(*commands)
        until = sent_at + self.master.node_timeout
        replies = [self._read_plain(until) for _ in commands][len(naming) :]
        self.incarnation = self.master.introduce(replies[:-2] if marker is not None else replies[:-1])
        time_reply = numbers_of(replies[len(INTRODUCTION)], 2)
        if marker is not None:
            self._learn_marker(replies[-1])
        self._identify()
        self._opened_us = time_reply[0] * 1_000_000 + time_reply[1]
        self._see_clock(sent_at)
        self.master.note_judged()
        self.channel = self.master.platform.open_channel(self.raw, self.master.node_timeout)

    def _see_clock(self, sent_at: float) -> None:
        """Take the first sample of the master's clock, unless another thread has found another server there since."""
        incarnation, offset = self.master.known
        if incarnation == self.incarnation:
            seconds, now = self._opened_us / 1e6, self.master.clock()
            step = offset.see(seconds - now, seconds - sent_at, now)
            if step:
                self.master.stepped(step, [b"time", self._opened_us])

    def _identify(self) -> None:
        """Take the largest guard that any master of this client has shown: one that restarted has forgotten it.

        At a first contact, a script may not begin it: the client may name masters that do not exist. Scripts are told
        that it is a guard of others, as which it stops nobody.
        """
        master = self.master
        self.guard_ms = max(self.guard_ms, master.guard_ms)
        self.guarded = self.guarded or self.guard_ms > 0
        self._named_ms = self.guard_ms if master.may_begin_guard else -self.guard_ms
        is_of_others = self._named_ms > master.options.guard_ms
        guard = pack_argument((b"+%d" if is_of_others else b"%d") % self._named_ms)
        self._identity = pack_argument(self.incarnation) + guard
        self._identity_head = b"$%d\r\n%b?" % (len(self.incarnation) + 17, self.incarnation)
        self._identity_tail = b"\r\n" + guard

    def _learn_marker(self, marker: Any) -> None:
        """Obey the marker that another client has left, and take the larger guard."""
        found_ms = guard_of_others(self.master, marker, self.incarnation, self.guard_ms)
        if found_ms is None:
            return
        self.guarded = self.master.has_shown_marker = True
        self.guard_ms = max(self.guard_ms, found_ms)
        if found_ms > self.master.guard_ms:  # else it was found on another master while this connection was opened
            self.master.larger_guard_found(found_ms)

    def _send_plain(self, *commands: tuple[str, ...]) -> None:
        packed = self.raw.pack_commands(commands)
        self.raw.send_packed_command(packed, check_health=False)

    def _read_plain(self, until: float) -> Any:
        if getattr(self.raw, "_sock", self) is None:  # closed by another thread: `can_read` would open it again
            raise redis_errors.ConnectionError("the connection was closed")
        if not self.raw.can_read(max(0.0, until - self.master.clock())):
            raise redis_errors.TimeoutError("Timeout reading from socket")
        try:
            return self.raw.read_response()
        except redis_errors.ResponseError as error:
            return error
