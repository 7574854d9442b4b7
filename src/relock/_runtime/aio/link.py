"""Link of one event loop to one master: a connection that all tasks of the loop share.

Requests are pipelined on the connection, and answered in their order: so no release overtakes its acquire. A thread
opens the connection, because that may take long (TLS, Sentinel, a password). From then on the loop watches its socket.

If a loop is slow, replies lie unread in the socket although the master was fast. So `Link.take` reads all replies that
have come before the master is judged to be silent. A master that answers one of many requests is not silent, however
long the others take.

A loop that stands still does not see that the server closes a connection. So a link that was quiet for a moment checks
its connection before it sends anything, by `Link.look`. If a connection ends with no request under way, the master does
not count as down; the next request opens another connection.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from redis import exceptions as redis_errors

from relock._core.asking import PATIENT_PART, Panel, Round, grace_seconds
from relock._core.effects import Clock, Failure
from relock._errors import ConfigurationError
from relock._runtime.aio.alarms import TIMER_SECONDS_MAX
from relock._runtime.aio.line import Line
from relock._runtime.aio.loop_hub import LoopHub
from relock._runtime.aio.on_thread import on_thread
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.master import Master
from relock._runtime.masters.round import InFlight

logger = logging.getLogger("relock.masters")

QUIET_SECONDS = 0.1  # after so long without a reply, a link checks its connection before it sends anything


class Link:
    """Link of one loop to one master.

    Args:
        line: the tasks that wait until a link takes more requests.
        hub: the loop's hub, which reads its messages before the reply to a release is read.

    Attributes:
        in_flight_max: how many requests may be under way on one connection; further tasks wait.
        connection: the connection that takes requests; None while there is none.
        waiting: the rounds that wait for a connection, or for room on it.
    """

    in_flight_max = 128
    connection: Connection | None
    waiting: deque[Round]

    def __init__(self, master: Master, loop: asyncio.AbstractEventLoop, line: Line, hub: LoopHub) -> None:
        self.master = master
        self.connection = None
        self.waiting = deque()
        self.loop = loop
        self._line = line
        self._hub = hub
        self._opening: asyncio.Future[_Opened] | None = None
        self._silence: asyncio.TimerHandle | None = None  # runs while requests are unanswered
        self._quiet_since = 0.0  # when the last reply came, or the first unanswered request was sent
        self._retired: dict[Connection, asyncio.TimerHandle] = {}  # each still owes replies, until its timer fires
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """True if there is a connection that takes requests. First give up one that leads to another server."""
        connection = self.connection
        if connection is None:
            return False
        shown = connection.shown
        if shown.is_retired or shown.incarnation != self.master.facts.known.incarnation:
            self._retire(connection)
            return False
        return True

    def look(self, now: float) -> None:
        """Find out whether the connection has ended, if no reply has come for `QUIET_SECONDS`.

        The loop may have stood still for that time, and then has not seen the end.
        """
        connection = self.connection
        if connection is None or now - self._quiet_since < QUIET_SECONDS:
            return
        while connection is self.connection and self._receive(connection):  # the end may be behind late replies
            pass

    @property
    def room(self) -> int:
        """Number of further requests that the link takes now; without a connection, they wait for one."""
        return self.in_flight_max - (0 if self.connection is None else self.load)

    @property
    def load(self) -> int:
        """Number of requests that are unanswered, or wait to be sent."""
        return len(self.waiting) + (0 if self.connection is None else len(self.connection.in_flight))

    # Asking ---------------------------------------------------------------------------------------------------------

    def ask(self, round_: Round) -> None:
        """Send a round now, or as soon as there is a connection with room, if that is in time.

        The caller must have checked `is_connected` just before.
        """
        if self.connection is not None and self.room > 0:
            self._send(round_)
            return
        self.waiting.append(round_)
        if self.connection is None:
            self.open()

    def send_at_once(self, round_: Round) -> bool:
        """Send a round to a lone master, in the usual case; else send nothing, and return False.

        The case is not the usual one without a connection to the present master, or while requests wait.
        """
        if round_.sent_at - self._quiet_since >= QUIET_SECONDS:
            self.look(round_.sent_at)
        connection = self.connection
        if (
            connection is None
            or len(connection.in_flight) >= self.in_flight_max
            or self.waiting
            or connection.shown.is_retired
            or connection.shown.incarnation != self.master.facts.known.incarnation
        ):
            return False
        self._send(round_)
        return True

    def renew(self) -> None:
        """Authenticate with new credentials, behind the requests that are under way."""
        if self.connection is not None and not self.connection.is_settled:
            self._send(None)

    def _send(self, round_: Round | None) -> None:
        """Send a round; without one, the newest credentials."""
        connection = self.connection
        if connection is None:
            raise AssertionError("only one that is connected is asked")
        if not connection.in_flight:
            self._quiet_since = self.master.clock()
        try:
            connection.log_in() if round_ is None else connection.request(round_)
        except NETWORK_ERRORS as error:
            self._broke(connection, error)
        else:
            if self._silence is None:
                self._listen_for(self.master.node_timeout)

    def take(self) -> None:
        """Read all replies that have come: a caller's time is over, but perhaps only the loop was slow."""
        connection = self.connection
        while connection is not None and connection is self.connection and connection.in_flight:
            if not self._receive(connection):
                break

    def _listen_for(self, seconds: float) -> None:
        """Set a timer that judges in so many seconds whether the master has been silent for too long."""
        self._silence = self.loop.call_later(min(seconds, TIMER_SECONDS_MAX), self._judge)

    def _judge(self) -> None:
        """Give the connection up if the master has been silent on it for too long."""
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
        """Read some of the bytes that have come: the loop calls again for the rest, after other callbacks."""
        while self._receive(connection) and connection.channel.is_pending():
            pass

    def _receive(self, connection: Connection) -> bool:
        """Read some of the bytes that have come; return whether there were any. An exception ends the connection."""
        if self._hub.waiters and _is_release(connection):
            self._hub.hear()  # so that the next holder goes on before the task that has released the lock
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
            if connection.is_refused:
                connection.is_refused = False
                self.open()
            if self.waiting:
                self._send_waiting()
        elif not connection.in_flight:
            self._close(connection)  # it was retired, and its last reply has come
        if self._line.places:
            self._line.make_room()
        return True

    # Opening --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Have a thread open a connection, unless one does so already."""
        if self._opening is None and not self._is_closed:
            self._opening = on_thread(
                self.master.platform, self.loop, self._open, name="relock-opener", unheard=_close_opened
            )
            self._opening.add_done_callback(self._opened)

    def when_opened(self, look: Callable[[object], object]) -> None:
        """Have `look` called when the opening that is under way, if any, has ended."""
        if self._opening is not None:
            self._opening.add_done_callback(look)

    def _open(self) -> "_Opened":
        """Open a connection, on a thread; return the connection, or the `Failure`."""
        master = self.master
        try:
            return master.pool.open_for_loop()
        except (*NETWORK_ERRORS, ConfigurationError) as error:
            if self.connection is not None:  # new credentials were refused on it: the master itself answers
                return master.unconnected()
            if isinstance(error, ConfigurationError):
                return master.turned_out(error)
            return master.failed(error, sent=False)

    def _opened(self, opening: "asyncio.Future[_Opened]") -> None:
        self._opening = None
        error = opening.exception()
        if error is not None:  # unexpected: fail the waiting rounds, and let the loop log the error
            if self.connection is None:
                self._fail_waiting(Failure(self.master.address, f"it was not connected: {error!r}", sent=False))
            raise error
        opened = opening.result()
        if isinstance(opened, Failure):
            if self.connection is None:
                self._fail_waiting(opened)
        elif self._is_closed:
            opened.close()
        else:
            if self.connection is not None:
                self._retire(self.connection)
            self._watch(opened)
            self.renew()  # new credentials may have come while it was opened
            self._send_waiting()
            self._line.make_room()

    def _watch(self, connection: Connection) -> None:
        def failed(error: BaseException) -> None:
            self._broke(connection, error)

        channel = self.master.platform.loop_channel(connection.channel, connection.raw, self.loop, failed)
        connection.channel = channel
        self._quiet_since = self.master.clock()
        channel.watch(partial(self._readable if channel.may_be_pending else self._receive, connection))
        self.connection = connection

    def _send_waiting(self) -> None:
        """Send the waiting rounds while there is room; drop late ones, and those that end nothing for no asker."""
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
        """Send no more requests on a connection; wait a node timeout for the replies that it still owes."""
        self.connection = None
        if connection.in_flight:
            replaced = Failure(self.master.address, "another server has taken its place")
            self._retired[connection] = self.loop.call_later(self.master.node_timeout, self._end, connection, replaced)
        else:
            self._close(connection)

    def _broke(self, connection: Connection, error: BaseException) -> None:
        """Give up a connection that broke: requests under way on it fail.

        If none was under way, the master does not count as down: servers and load balancers close idle connections.
        """
        if connection is self.connection:
            self.connection = None
        connection.channel.unwatch()  # before its socket is closed, for then another socket may get its number
        if connection.owes_answers:
            self._end(connection, self.master.pool.broke(connection, error))
        else:
            log = self.master.platform.log
            log.debug(logger, "an idle connection to %s has ended: %s", self.master.address, error)
            self._close(connection)
        if self.waiting:
            self.open()

    def _end(self, connection: Connection, failure: Failure) -> None:
        """Close a connection; each request under way on it gets this `failure`."""
        rounds = _rounds_on(connection)
        connection.in_flight = deque()
        self._close(connection)
        for round_ in rounds:
            round_.miss(self.master, failure)
        self._line.make_room()

    def _close(self, connection: Connection) -> None:
        timer = self._retired.pop(connection, None)
        if timer is not None:
            timer.cancel()
        connection.channel.unwatch()
        connection.close()

    def close(self) -> None:
        """Close the connections; requests under way get no answer. Called on the loop, or when the loop is closed."""
        self._is_closed = True
        connection, self.connection = self.connection, None
        connections = [*self._retired, *([] if connection is None else [connection])]
        why = "the client was closed"
        if self.loop.is_closed():
            why = "its event loop was closed"
            for round_ in [*self.waiting, *[one for connection in connections for one in _rounds_on(connection)]]:
                round_.done = None
            for one in connections:
                with suppress(*NETWORK_ERRORS, RuntimeError):
                    one.drain()  # pending checks look at these answers, and would have to undo more without them
        for one in connections:
            self._end(one, Failure(self.master.address, why))
        self._fail_waiting(Failure(self.master.address, why, sent=False))
        if self._silence is not None:
            self._silence.cancel()


def send_over(links: Sequence[Link], round_: Round, panel: Panel[Master], clock: Clock) -> None:
    """Send a round to the masters that are connected; if these are not enough, also to the others, once connected."""
    loop = links[0].loop
    round_.carriers, round_.done = links, loop.create_future()
    for link in links:
        link.look(round_.sent_at)
    connected = [link for link in links if link.is_connected]
    is_enough = panel.is_enough(len(connected), len(links))
    for link in links:
        if link in connected or not is_enough:
            link.ask(round_)
        else:
            link.open()
            round_.miss(link.master, link.master.unconnected())
    if not is_enough:
        wait_for_others(round_, links, panel.quorum, loop, clock)


def wait_for_others(
    round_: Round, links: Sequence[Link], quorum: int, loop: asyncio.AbstractEventLoop, clock: Clock
) -> None:
    """Have a round wait until all of `links` are connected; after a quorum, for as long again at most."""
    began, spared = clock(), round_.spare(0)

    def look(_opening: object) -> None:
        if sum(link.connection is not None for link in links) >= quorum:
            loop.call_later(grace_seconds(clock() - began), round_.spare, spared)

    for link in links:
        link.when_opened(look)


_Opened = Connection | Failure


def _rounds_on(connection: Connection) -> list[Round]:
    """Return the rounds that a connection owes answers to."""
    sent_by = [sent.round if isinstance(sent, InFlight) else sent for sent in connection.in_flight]
    return [round_ for round_ in sent_by if isinstance(round_, Round)]


def _is_release(connection: Connection) -> bool:
    """Return whether the next reply on a connection is that of a lone master to a release."""
    sent = connection.in_flight[0] if connection.in_flight else None
    return isinstance(sent, Round) and sent.script.name == "release" and len(sent.answers) == 1


def _close_opened(opened: _Opened) -> None:
    """Close a connection whose loop was closed while it was being opened."""
    if isinstance(opened, Connection):
        opened.close()
