"""The way of one event loop to one master: a connection that all tasks of the loop share.

Requests are pipelined on it, and answered in their order: so no release overtakes its acquire. A thread opens it, for
that may take long (TLS, Sentinel, a password); from then on the loop watches its socket.

A loop may be slow, and then replies lie unread in the socket although the master was fast. So no master is judged
before what has come from it is taken: see `Link.take`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from redis import exceptions as redis_errors

from relock._core.effects import Failure
from relock._errors import ConfigurationError
from relock._runtime.aio.loop_channel import LoopChannel
from relock._runtime.aio.loop_inbox import TIMER_SECONDS_MAX
from relock._runtime.aio.loop_round import LoopRound
from relock._runtime.masters.connections import PATIENT_PART, Connection
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.master import Master
from relock._runtime.masters.round import InFlight

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 128  # requests that one connection owes replies to, before tasks wait for those


class Link:
    """What one loop has of one master.

    Args:
        has_room: called when replies have come: others may send.

    Attributes:
        connection: the one that takes requests; None while there is none.
        config_error: why the master can't be used, if that was found when it was opened last.
    """

    connection: Connection | None
    config_error: ConfigurationError | None

    def __init__(self, master: Master, loop: asyncio.AbstractEventLoop, has_room: Callable[[], object]) -> None:
        self.master = master
        self.connection = None
        self.config_error = None
        self._loop = loop
        self._has_room = has_room
        self._waiting: deque[LoopRound] = deque()  # for a connection
        self._opening: asyncio.Future[Any] | None = None
        self._silence: asyncio.TimerHandle | None = None  # while requests are unanswered
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether it takes a request at once; one that leads to another server than the master's is given up."""
        connection = self.connection
        if connection is None:
            return False
        if connection.is_retired or connection.incarnation != self.master.known.incarnation:
            self._retire(connection)
            return False
        return True

    @property
    def room(self) -> int:
        """How many requests more it takes now; those that wait for a connection do not count."""
        return IN_FLIGHT_MAX - (0 if self.connection is None else len(self.connection.in_flight))

    # Asking ---------------------------------------------------------------------------------------------------------

    def ask(self, round_: LoopRound) -> None:
        """Sends it now, on the connection that there is."""
        connection = self.connection
        if connection is None:
            raise AssertionError("only one that is connected is asked")
        try:
            connection.request(round_)
        except NETWORK_ERRORS as error:
            self._broke(connection, error)
        else:
            if self._silence is None:
                self._listen_for(self.master.node_timeout)

    def ask_later(self, round_: LoopRound) -> None:
        """Sends it once there is a connection, if that is in time."""
        self._waiting.append(round_)
        self.open()

    def take(self) -> None:
        """Takes what has come by now: somebody's time is over, and the loop may only have been slow."""
        if self.connection is not None and self.connection.in_flight:
            self._readable(self.connection)

    def _listen_for(self, seconds: float) -> None:
        """Looks again in so many seconds whether the master has been silent for too long."""
        self._silence = self._loop.call_later(min(seconds, TIMER_SECONDS_MAX), self._judge)

    def _judge(self) -> None:
        """Gives the connection up if the master has been silent on it for too long."""
        self._silence = None
        self.take()
        connection, longest = self.connection, self.master.node_timeout
        if connection is None or not connection.in_flight:
            return
        silent = connection.silent_for(self.master.clock())
        if silent >= PATIENT_PART * longest:
            self._broke(connection, redis_errors.TimeoutError("Timeout waiting for a reply"))
        else:
            self._listen_for(longest - silent)

    def _readable(self, connection: Connection) -> None:
        """Takes what has come. Whatever is raised in the midst of it, what is half read is never read on."""
        try:
            connection.receive()
            while connection.channel.is_pending():
                connection.receive()
        except BlockingIOError:
            pass
        except NETWORK_ERRORS as error:
            self._broke(connection, error)
        except BaseException as error:
            self._broke(connection, redis_errors.ConnectionError(f"reading was interrupted: {error!r}"))
            raise
        if connection is not self.connection and not connection.in_flight:
            self._close(connection)  # it was retired, and owes nothing more
        self._has_room()

    # Opening --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Has a thread open a connection, unless one does."""
        if self._opening is None and not self._is_closed:
            self._opening = self._loop.run_in_executor(None, self._open)
            self._opening.add_done_callback(self._opened)

    def _open(self) -> Connection | Failure | ConfigurationError:
        """On a thread: a connection, or why there is none."""
        master = self.master
        try:
            return master.open_for_loop()
        except NETWORK_ERRORS as error:
            return master.failed(error, sent=False)
        except ConfigurationError as error:
            master.turned_out(error)
            return error

    def _opened(self, opening: "asyncio.Future[Connection | Failure | ConfigurationError]") -> None:
        self._opening = None
        if opening.cancelled():
            self._fail_waiting(Failure(self.master.address, "it was not connected in time", sent=False))
            return
        opened = opening.result()
        self.config_error = None
        if isinstance(opened, Failure):
            self._fail_waiting(opened)
        elif isinstance(opened, ConfigurationError):
            if not self.master.was_sound:
                self.config_error = opened
            self._fail_waiting(self.master.misconfigured(opened))
        elif self._is_closed:
            opened.close()
        else:
            self._watch(opened)
            self._send_waiting()

    def _watch(self, connection: Connection) -> None:
        def failed(error: BaseException) -> None:
            self._broke(connection, error)

        channel = connection.channel = LoopChannel(connection.channel, connection.raw._sock, self._loop, failed)  # type: ignore[attr-defined]
        channel.watch(lambda: self._readable(connection))
        self.connection = connection

    def _send_waiting(self) -> None:
        while self._waiting and self.is_connected:
            round_ = self._waiting.popleft()
            if round_.is_abandoned or round_.done.done():
                continue
            if self.master.clock() >= round_.until:
                round_.miss(self.master, self.master.asked_late)
            else:
                self.ask(round_)
        if self._waiting:
            self.open()

    def _fail_waiting(self, failure: Failure) -> None:
        while self._waiting:
            self._waiting.popleft().miss(self.master, failure)

    # The end of a connection ----------------------------------------------------------------------------------------

    def _retire(self, connection: Connection) -> None:
        """It takes no more requests; what it owes may come still, for a node timeout."""
        self.connection = None
        if connection.in_flight:
            replaced = Failure(self.master.address, "another server has taken its place")
            self._loop.call_later(self.master.node_timeout, self._end, connection, replaced)
        else:
            self._close(connection)

    def _broke(self, connection: Connection, error: BaseException) -> None:
        """It broke: what the master has not answered on it by now, it does not answer any more."""
        if connection is self.connection:
            self.connection = None
        self._unwatch(connection)  # before its socket is closed, whose number may be another one's then
        self._end(connection, self.master.broke(connection, error))

    def _end(self, connection: Connection, failure: Failure) -> None:
        """Closes it; whoever waits for an answer on it has this `failure`."""
        in_flight, connection.in_flight = connection.in_flight, deque()
        self._close(connection)
        for sent in in_flight:
            round_ = sent.round if isinstance(sent, InFlight) else sent
            if isinstance(round_, LoopRound):
                round_.miss(self.master, failure)
        self._has_room()

    def _close(self, connection: Connection) -> None:
        self._unwatch(connection)
        connection.close()

    def _unwatch(self, connection: Connection) -> None:
        if isinstance(connection.channel, LoopChannel):
            connection.channel.unwatch()

    def close(self) -> None:
        """Closes the connection; whoever waits for an answer gets none."""
        self._is_closed = True
        connection, self.connection = self.connection, None
        if connection is not None:
            self._end(connection, Failure(self.master.address, "the client was closed"))
        self._fail_waiting(Failure(self.master.address, "the client was closed", sent=False))
        if self._silence is not None and not self._loop.is_closed():
            self._silence.cancel()
