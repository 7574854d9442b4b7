"""The way of one event loop to one master: a connection that all tasks of the loop share.

Requests are pipelined on it, and answered in their order: so no release overtakes its acquire. A thread opens it, for
that may take long (TLS, Sentinel, a password); from then on the loop watches its socket.

A loop may be slow, and then replies lie unread in the socket although the master was fast. So no master is judged
before all that has come from it is taken: see `Link.take`. A master that answers something is not silent, however long
the others of many requests take.

While a loop stands still, it does not see either that the server closes a connection. So a link that was quiet for a
moment looks before it sends anything: see `Link.look`. A connection that ends while nothing is under way is no event,
and the next request has another one opened.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redis import exceptions as redis_errors

from relock._core.effects import Clock, Failure
from relock._errors import ConfigurationError
from relock._keys import LockKeys
from relock._runtime.aio.alarms import TIMER_SECONDS_MAX
from relock._runtime.aio.line import Line
from relock._runtime.aio.loop_reader import LoopReader
from relock._runtime.aio.loop_round import LoneRound, LoopRound
from relock._runtime.aio.on_thread import on_thread
from relock._runtime.masters.connections import PATIENT_PART, Connection
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.fan_out import GRACE_SECONDS
from relock._runtime.masters.master import Master
from relock._runtime.masters.round import InFlight
from relock._runtime.net.loop_channel import LoopChannel
from relock._scripts import Prepared

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 128  # requests that one connection owes replies to, before tasks wait for those
QUIET_SECONDS = 0.1  # after which a link looks whether its connection is open still, before it sends anything


class Link:
    """What one loop has of one master.

    Args:
        line: where those are that may send when replies have come.
        reader: hears for whom a release was.

    Attributes:
        connection: the one that takes requests; None while there is none.
        config_error: why the master can't be used, if that was found when it was opened last.
        waiting: for a connection, or for room on it.
    """

    connection: Connection | None
    config_error: ConfigurationError | None
    waiting: deque[LoopRound]

    def __init__(self, master: Master, loop: asyncio.AbstractEventLoop, line: Line, reader: LoopReader) -> None:
        self.master = master
        self.connection = None
        self.config_error = None
        self.waiting = deque()
        self._loop = loop
        self._line = line
        self._reader = reader
        self._opening: asyncio.Future[_Opened] | None = None
        self._silence: asyncio.TimerHandle | None = None  # while requests are unanswered
        self._quiet_since = 0.0  # since then nothing has come, and nothing was sent while nothing was unanswered
        self._retired: dict[Connection, asyncio.TimerHandle] = {}  # each owes replies still, until its timer fires
        self._is_closed = False
        self._alone = (self,)

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

    def look(self, now: float) -> None:
        """Finds out whether the connection has ended, where nothing has come for a moment until `now`.

        The loop may not have turned since then.
        """
        connection = self.connection
        if connection is None or now - self._quiet_since < QUIET_SECONDS:
            return
        while connection is self.connection and self._receive(connection):  # the end may be behind late replies
            pass

    @property
    def room(self) -> int:
        """How many requests more it takes now; while it is not connected, all may wait for that."""
        if self.connection is None:
            return IN_FLIGHT_MAX
        return IN_FLIGHT_MAX - len(self.connection.in_flight) - len(self.waiting)

    @property
    def load(self) -> int:
        """How many requests it owes replies to, or has to send."""
        return len(self.waiting) + (0 if self.connection is None else len(self.connection.in_flight))

    # Asking ---------------------------------------------------------------------------------------------------------

    def ask(self, round_: LoopRound) -> None:
        """Sends it as soon as there is a connection with room, if that is in time."""
        if self.is_connected and self.room > 0:
            self._send(round_)
            return
        self.waiting.append(round_)
        if self.connection is None:
            self.open()

    def exchange(
        self, request: Prepared, keys: LockKeys, owner: bytes, sent_at: float, until: float
    ) -> LoneRound | None:
        """Asks this master alone for what was prepared: the usual case, where it is well and nothing is in the way.

        Returns what the caller awaits; None where nothing was sent: take the general way.
        """
        if sent_at - self._quiet_since >= QUIET_SECONDS:
            self.look(sent_at)
        connection, master = self.connection, self.master
        if (
            connection is None
            or len(connection.in_flight) >= IN_FLIGHT_MAX
            or self.waiting
            or connection.is_retired
            or connection.incarnation != master.known.incarnation
        ):
            return None
        done = self._loop.create_future()
        round_ = LoneRound(
            request, keys, owner, sent_at, until, unanswered=master.no_reply_yet, done=done, links=self._alone
        )
        self._send(round_)
        return round_

    def _send(self, round_: LoopRound) -> None:
        connection = self.connection
        if connection is None:
            raise AssertionError("only one that is connected is asked")
        if not connection.in_flight:
            self._quiet_since = self.master.clock()
        try:
            if round_.asking:
                connection.request_asking(round_)
            else:
                connection.request(round_)
        except NETWORK_ERRORS as error:
            self._broke(connection, error)
        else:
            if self._silence is None:
                self._listen_for(self.master.node_timeout)

    def take(self) -> None:
        """Takes all that has come by now: somebody's time is over, and the loop may only have been slow."""
        connection = self.connection
        while connection is not None and connection is self.connection and connection.in_flight:
            if not self._receive(connection):
                break

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
        silent = self.master.clock() - self._quiet_since
        if silent >= PATIENT_PART * longest:
            self._broke(connection, redis_errors.TimeoutError("Timeout waiting for a reply"))
        else:
            self._listen_for(longest - silent)

    def _readable(self, connection: Connection) -> None:
        """Takes some of what has come: the loop calls again for the rest, after others had their turn."""
        while self._receive(connection) and connection.channel.is_pending():
            pass

    def _receive(self, connection: Connection) -> bool:
        """Whether something had come. Whatever is raised in its midst, what is half read is never read on."""
        if self._reader.sleepers and _is_release(connection):
            self._reader.hear_first()  # who has the lock now goes on before the task that has released it
        try:
            connection.receive()
        except BlockingIOError:
            return False
        except NETWORK_ERRORS as error:
            self._broke(connection, error)
            return False
        except BaseException as error:
            self._broke(connection, redis_errors.ConnectionError(f"reading was interrupted: {error!r}"))
            raise
        if connection is self.connection:
            self._quiet_since = self.master.clock()
            if self.waiting:
                self._send_waiting()
        elif not connection.in_flight:
            self._close(connection)  # it was retired, and owes nothing more
        if self._line.places:
            self._line.make_room()
        return True

    # Opening --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Has a thread open a connection, unless one does."""
        if self._opening is None and not self._is_closed:
            self._opening = on_thread(
                self.master.platform, self._loop, self._open, name="relock-opener", unheard=_close_opened
            )
            self._opening.add_done_callback(self._opened)

    def when_opened(self, look: Callable[[object], object]) -> None:
        """Have `look` called once the opening that is under way, if one is, has come to its end."""
        if self._opening is not None:
            self._opening.add_done_callback(look)

    def _open(self) -> "_Opened":
        """On a thread: a connection, or why there is none."""
        master = self.master
        try:
            return master.open_for_loop()
        except NETWORK_ERRORS as error:
            return master.failed(error, sent=False)
        except ConfigurationError as error:
            master.turned_out(error)
            return error

    def _opened(self, opening: "asyncio.Future[_Opened]") -> None:
        self._opening = None
        self.config_error = None
        error = opening.exception()
        if error is not None:  # whoever waits must hear of it, and so must whoever reads the log
            self._fail_waiting(Failure(self.master.address, f"it was not connected: {error!r}", sent=False))
            raise error
        opened = opening.result()
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
            self._line.make_room()

    def _watch(self, connection: Connection) -> None:
        def failed(error: BaseException) -> None:
            self._broke(connection, error)

        channel = self.master.platform.loop_channel(connection.channel, connection.raw, self._loop, failed)
        connection.channel = channel
        self._quiet_since = self.master.clock()
        channel.watch(partial(self._readable if channel.may_be_pending else self._receive, connection))
        self.connection = connection

    def _send_waiting(self) -> None:
        """Sends what waits, as far as there is room; what nobody awaits any more is not sent, unless it ends a hold."""
        waiting = self.waiting
        while waiting and self.is_connected and self.room + len(waiting) > 0:
            round_ = waiting.popleft()
            if (round_.is_awaited or round_.ends) and self.master.clock() < round_.until:
                self._send(round_)
            else:
                late = Failure(self.master.address, "there was no time to ask it", sent=False, no_time=True)
                round_.miss(self.master, late)
        if waiting and self.connection is None:
            self.open()

    def _fail_waiting(self, failure: Failure) -> None:
        waiting, self.waiting = self.waiting, deque()
        for round_ in waiting:
            round_.miss(self.master, failure)

    # The end of a connection ----------------------------------------------------------------------------------------

    def _retire(self, connection: Connection) -> None:
        """It takes no more requests; what it owes may come still, for a node timeout."""
        self.connection = None
        if connection.in_flight:
            replaced = Failure(self.master.address, "another server has taken its place")
            self._retired[connection] = self._loop.call_later(self.master.node_timeout, self._end, connection, replaced)
        else:
            self._close(connection)

    def _broke(self, connection: Connection, error: BaseException) -> None:
        """Give up a connection that broke: what the master owes on it has no answer any more.

        Where nothing is under way, that says nothing of the master: servers and load balancers close what is idle.
        """
        if connection is self.connection:
            self.connection = None
        self._unwatch(connection)  # before its socket is closed, whose number may be another one's then
        if connection.in_flight:
            self._end(connection, self.master.broke(connection, error))
        else:
            log = self.master.platform.log
            log.debug(logger, "an idle connection to %s has ended: %s", self.master.address, error)
            self._close(connection)
        if self.waiting:
            self.open()

    def _end(self, connection: Connection, failure: Failure) -> None:
        """Closes it; whoever waits for an answer on it has this `failure`."""
        in_flight, connection.in_flight = connection.in_flight, deque()
        self._close(connection)
        for sent in in_flight:
            round_ = sent.round if isinstance(sent, InFlight) else sent
            if isinstance(round_, LoopRound):
                round_.miss(self.master, failure)
        self._line.make_room()

    def _close(self, connection: Connection) -> None:
        timer = self._retired.pop(connection, None)
        if timer is not None:
            timer.cancel()
        self._unwatch(connection)
        connection.close()

    def _unwatch(self, connection: Connection) -> None:
        if isinstance(connection.channel, LoopChannel):
            connection.channel.unwatch()

    def close(self) -> None:
        """Closes the connections; whoever waits for an answer gets none. On its loop, or when that is closed."""
        self._is_closed = True
        connection, self.connection = self.connection, None
        connections = [*self._retired, *([] if connection is None else [connection])]
        if self._loop.is_closed():
            for one in connections:
                self._hear_last(one)
            self._give_up([*self.waiting], sent=False)
            return
        for one in connections:
            self._end(one, Failure(self.master.address, "the client was closed"))
        self._fail_waiting(Failure(self.master.address, "the client was closed", sent=False))
        if self._silence is not None:
            self._silence.cancel()

    def _hear_last(self, connection: Connection) -> None:
        """Take what has come by now, and close the connection, for tasks that have gone on: their loop is closed.

        What they have asked, and left to others to hear, would be in doubt else.
        """
        asked = [sent.round if isinstance(sent, InFlight) else sent for sent in connection.in_flight]
        rounds = [round_ for round_ in asked if isinstance(round_, LoopRound)]
        for round_ in rounds:
            round_.done = _NOBODY
        with suppress(*NETWORK_ERRORS, RuntimeError):
            connection.drain()
        connection.close()
        self._give_up(rounds, sent=True)

    def _give_up(self, rounds: list[LoopRound], *, sent: bool) -> None:
        """The master does not answer these rounds any more: nobody hears what it says."""
        failure = Failure(self.master.address, "its event loop was closed", sent=sent)
        for round_ in rounds:
            round_.done = _NOBODY
            round_.miss(self.master, failure)


class _Nobody:
    """Stands for the future of a task that no loop runs any more."""

    def done(self) -> bool:
        """There is nobody to be told."""
        return True


_NOBODY: Any = _Nobody()


def wait_for_others(
    round_: LoopRound, links: Sequence[Link], quorum: int, loop: asyncio.AbstractEventLoop, clock: Clock
) -> None:
    """Have a round wait until all of `links` are open, or for as long again as a quorum of them took to open.

    A connection takes longer to open than a master to answer. Without this, a quorum would have granted the first hold
    of a loop before the other masters could be asked, and they would get it only with its first renewal.
    """
    began, spared = clock(), round_.spare(0)

    def look(_opening: object) -> None:
        if sum(link.connection is not None for link in links) >= quorum:
            loop.call_later(clock() - began + GRACE_SECONDS, round_.spare, spared)

    for link in links:
        link.when_opened(look)


_Opened = Connection | Failure | ConfigurationError


def _is_release(connection: Connection) -> bool:
    """Whether the next reply is that to the straight release of a hold."""
    sent = connection.in_flight[0] if connection.in_flight else None
    return sent.__class__ is LoneRound and sent.script.name == "release"


def _close_opened(opened: _Opened) -> None:
    """The loop for which it was opened is closed."""
    if isinstance(opened, Connection):
        opened.close()
