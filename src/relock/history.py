"""History of locks: a recorder writes a client's events to a stream on a master, and `relock history` reads them."""

import json
import logging
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

from relock._core.hold import FOREVER
from relock._errors import ConfigurationError
from relock._events import (
    Deadlocked,
    Event,
    ForceReleased,
    Granted,
    Loss,
    Lost,
    Released,
    ReleaseUnconfirmed,
    fields_of,
)
from relock._holding import quorum_error
from relock._options import OnEvent, OnLost, check_utf8, wrong
from relock._runtime.masters.errors import NETWORK_ERRORS, protocol_errors
from relock._runtime.masters.master import Master, OwnConnection
from relock._runtime.session.session import Session
from relock.aio_client import AsyncClient
from relock.client import Client

logger: logging.Logger = logging.getLogger(__name__)

STREAM = "relock:history"
RECORDED = (Granted, Released, ReleaseUnconfirmed, Lost, Deadlocked, ForceReleased)
PAUSE_SECONDS = 5.0  # after a failure nothing is written for so long: each try may hold up `on_event`
SETTLE_SECONDS = 0.5  # `close` waits this long for events that are still to be written
ENTRIES_AT_ONCE = 1000
_READ: dict[str, Callable[[str], object]] = {
    "token": int,
    "waited": float,
    "held_for": float,
    "seconds_left": float,
    "cycle": json.loads,
}

Entry = dict[str, Any]


class Recorder:
    """Recorder of what a client's locks and semaphores went through, in a stream of Redis on one of its masters.

    It writes each grant, release, loss, deadlock and forced release of this client, on the thread that calls
    ``on_event``: after that, and never within a call. Nothing is promised of it: an event that can't be written is
    dropped, and a warning in the log says so once. If the reply to a write is lost, an entry may come twice.

    The recorder ends with its client, or with `close`. In a forked child it goes on for the child's copy of the client.

    Args:
        client: a `relock.Client` or a `relock.AsyncClient`, open. Both of one session have the same events.
        stream: the key of the stream, which has no time to live; all clients may share one. Default:
            ``"relock:history"``.
        maxlen: how many entries the stream keeps, from 1, and up to about a hundred more; default 10,000.

    Raises:
        TypeError: an argument of a wrong type.
        ConfigurationError: a value that can't work.
        ClientClosedError: the client is closed.
    """

    def __init__(self, client: Client | AsyncClient, stream: str = STREAM, maxlen: int = 10_000) -> None:
        if not isinstance(client, Client | AsyncClient):
            raise TypeError(f"client must be a Client or an AsyncClient, not {type(client).__name__}: {client!r}")
        self._client = client._client if isinstance(client, AsyncClient) else client
        self._stream = check_stream(stream)
        if not isinstance(maxlen, int) or isinstance(maxlen, bool):
            raise TypeError(f"maxlen must be an int, not {type(maxlen).__name__}: {maxlen!r}")
        if maxlen < 1:
            raise wrong("maxlen", maxlen, "1 or more entries")
        self._maxlen = maxlen
        self._connection: OwnConnection | None = None
        self._missed = 0
        self._resumes_at = -FOREVER
        self._session = self._client._session
        self._session.check_open()
        self._session.observe(self)

    def close(self) -> None:
        """Stop recording; wait half a second at most for the events before. May be called again."""
        session = self._client._session
        if self in session.observers and not session.closed:
            session.stop_observing(self)
            session.events.hand(self.end, None)
            session.events.settle(SETTLE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # What the session calls -----------------------------------------------------------------------------------------

    def note(self, event: Event) -> OnEvent | None:
        """Return the function that writes the event, if that is to be recorded."""
        return self._record if isinstance(event, RECORDED) else None

    def within(self, _loss: Loss, tell: OnLost) -> OnLost:
        """Return `tell` as it is: nothing is recorded around a callback."""
        return tell

    def end(self, _: object) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # On the thread of events ----------------------------------------------------------------------------------------

    def _record(self, event: Event) -> None:
        session = self._client._session
        if session is not self._session:  # a forked child has copies of the parent's connections
            self.end(None)
            self._session = session
        if session.clock() < self._resumes_at:
            self._missed += 1
            return
        fields = {**fields_of(event), "client": session.client_id}
        words = [word for name, value in fields.items() for word in (name, _as_text(value))]
        error = self._write(session, "XADD", self._stream, "MAXLEN", "~", self._maxlen, "*", *words)
        if error is not None:
            self._resumes_at = session.clock() + PAUSE_SECONDS
            if not self._missed:
                text = "events can't be recorded in %r: %s; they are dropped until they can"
                session.platform.log.warning(logger, text, self._stream, error)
            self._missed += 1
        elif self._missed:
            session.platform.log.warning(logger, "%r goes on; %d events are missing", self._stream, self._missed)
            self._missed = 0

    def _write(self, session: Session, *words: str | int) -> Exception | str | None:
        """Send the command to the master that the last one went to, or to the first that takes it; return the error."""
        error: Exception | str = "no master answers"
        if self._connection is not None:
            try:
                self._connection.ask(*words)
            except NETWORK_ERRORS as failure:
                self._connection, error = None, failure
            else:
                return None
        for master in session.masters:
            if master.facts.down is not None:
                continue
            try:
                connection = OwnConnection(master.server_of(self._stream))
                connection.ask(*words)
            except (*NETWORK_ERRORS, ConfigurationError) as failure:
                error = failure
            else:
                self._connection = connection
                return None
        return error


def check_stream(stream: object) -> str:
    """Return the key of a stream; or raise `TypeError`, or `ConfigurationError` if it can't be a key."""
    if not isinstance(stream, str):
        raise TypeError(f"stream must be a str, not {type(stream).__name__}: {stream!r}")
    if not stream:
        raise wrong("stream", stream, "a key, not empty")
    check_utf8("stream", stream)
    return stream


def _as_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, tuple) else str(value)


# Reading --------------------------------------------------------------------------------------------------------------


def find_entries(client: Client, stream: str, name: str, since: float | None) -> tuple[list[Entry], list[str]]:
    """Return what is recorded about the lock `name`, the oldest first, and the addresses of masters without an answer.

    Args:
        client: its masters are asked.
        stream: the key of the stream.
        name: the name of the lock or semaphore.
        since: how far back to look, in seconds, by the masters' clocks; None: as far as the stream goes.

    Raises:
        QuorumError: no master answered.
    """
    session, entries, failures = client._session, list[Entry](), []
    for master in session.masters:
        session.check_open()
        try:
            entries += master.ask_again(partial(_entries_on, master, stream, name, since))
        except NETWORK_ERRORS as error:
            failures.append(master.failed(error, sent=False))
    if len(failures) == len(session.masters):
        raise quorum_error(None, failures, 1, 0)
    return sorted(entries, key=lambda entry: float(entry["at"])), [failure.master for failure in failures]


def _entries_on(master: Master, stream: str, name: str, since: float | None) -> list[Entry]:
    connection, first, entries = OwnConnection(master.server_of(stream)), "-", list[Entry]()
    try:
        if since is not None:
            seconds, microseconds = connection.ask("TIME")
            first = str(max(0, int(seconds) * 1000 + int(microseconds) // 1000 - int(since * 1000)))
        while True:
            found = connection.ask("XRANGE", stream, first, "+", "COUNT", ENTRIES_AT_ONCE)
            with protocol_errors():
                entries += [entry for at, words in found if (entry := _entry(at, words, name)) is not None]
                if len(found) < ENTRIES_AT_ONCE:
                    return entries
                first = f"({found[-1][0].decode()}"
    finally:
        connection.close()


def _entry(at: bytes, words: list[bytes], name: str) -> Entry | None:
    """Return an entry about `name`, with the Unix time (s) at which the master got it as ``at``; else None."""
    texts = [word.decode(errors="replace") for word in words]
    entry: Entry = dict(zip(texts[::2], texts[1::2], strict=True))
    if entry.get("lock") != name:
        return None
    read = {field: _READ.get(field, str)(text) for field, text in entry.items()}
    return {"at": int(at.partition(b"-")[0]) / 1000, **read}
