"""The marker of a master's restart guard: reading it, and ending the guard."""

import datetime
from collections.abc import Callable

from attrs import field, frozen

from relock._core.flows.quarantine import NOBODY
from relock._core.master_facts import as_guard_ms
from relock._doctor.asking import ask, close
from relock._keys import lock_keys, master_key
from relock._runtime.masters.errors import NETWORK_ERRORS, protocol_errors
from relock._runtime.net.failures import failure_of
from relock._runtime.net.node import Node
from relock._runtime.net.raw_connection import RawConnection
from relock._scripts import load

_END_OF_DATES = 253402300799.0  # `datetime` ends with the year 9999, and another program may have written a later time
FIELDS = ("incarnation", "no_vote_until_us", "guard_ms", "set_by", "set_us")


@frozen
class Marker:
    """The marker of a master.

    Attributes:
        incarnation: the server that the marker names.
        until: time (s, on the master's clock) from which the master has a vote.
        guard: for how long (s) the master has no vote after a restart; None if the marker is damaged.
        set_by: the client that has set this guard; empty if not known.
        set_at: when that client has set it (s, on the master's clock); None if not known.
        now: when the marker was read (s, on the master's clock).
        seen: the marker's text, as the script `lower_guard` compares it.
    """

    incarnation: str
    until: float
    guard: float | None
    set_by: str
    set_at: float | None
    now: float
    seen: bytes = field(repr=False)

    @property
    def vote_in(self) -> float:
        """Time (s) until the master has a vote, if it still is the server that the marker names."""
        return min(max(self.until - self.now, 0.0), self.guard or 0.0)

    @property
    def origin(self) -> str:
        """Text for the end of a sentence: the client that has set the guard, and when; empty if not known."""
        return f", set by {self.set_by} at {utc(self.set_at)}" if self.set_by and self.set_at is not None else ""


def read_marker(raw: RawConnection, prefix: str) -> Marker | None:
    """Return the marker; None where there is none: no client with a restart guard has used the master yet.

    Raises:
        redis.RedisError, OSError: the server refuses, or the connection breaks.
    """
    fields = ask(raw, "HMGET", master_key(prefix), *FIELDS)
    seconds, micros = ask(raw, "TIME")
    incarnation, until_us, guard_ms, set_by, set_us = fields
    if guard_ms is None:
        return None
    known_ms = as_guard_ms(guard_ms) if (until_us or b"0").isdigit() else None
    return Marker(
        _text(incarnation),
        float(until_us or 0) / 1e6 if known_ms is not None else 0.0,
        None if known_ms is None else known_ms / 1000,
        _text(set_by),
        int(set_us) / 1e6 if (set_us or b"").isdigit() else None,
        int(seconds) + int(micros) / 1e6,
        b" ".join(part or b"" for part in fields[:3]),
    )


def utc(moment: float) -> str:
    """Return a master's time as a date, to the second."""
    return datetime.datetime.fromtimestamp(min(moment, _END_OF_DATES), datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _text(part: bytes | None) -> str:
    return (part or b"").decode(errors="replace")


@frozen
class Look:
    """The result of looking at one master's guard, or of ending it.

    Attributes:
        marker: None if there is none, or the master did not answer.
        outcome: `lowered`, `changed` or `absent` after an attempt to end the guard; empty after a look.
        trouble: why the master did not answer; empty if it did.
    """

    address: str
    marker: Marker | None = None
    outcome: str = ""
    trouble: str = ""


def look_at_guard(node: Node, prefix: str, timeout: float) -> Look:
    """Read the marker of one master; the result says what failed."""
    return _on_connection(node, timeout, lambda raw: Look(node.address, read_marker(raw, prefix)))


def lower_guard(node: Node, prefix: str, timeout: float, marker: Marker) -> Look:
    """End the guard of one master, if it still has this `marker`; the result says what failed."""

    def lower(raw: RawConnection) -> Look:
        call = load("lower_guard").call(lock_keys(prefix, NOBODY), seen=marker.seen)
        raw.send_packed_command([call.pack(b"", guarded=True, source=True)], check_health=False)
        return Look(node.address, marker, raw.read_response()[0].decode())

    return _on_connection(node, timeout, lower)


def _on_connection(node: Node, timeout: float, do: Callable[[RawConnection], Look]) -> Look:
    raw = node.raw_connection(timeout)
    try:
        with protocol_errors():
            raw.connect()
            return do(raw)
    except NETWORK_ERRORS as error:
        return Look(node.address, trouble=failure_of(node.address, error, sent=False).why)
    finally:
        close(raw)
