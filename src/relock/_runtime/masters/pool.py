"""Pool of the connections to one master, each of which one caller at a time uses."""

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from attrs import evolve
from redis import exceptions as redis_errors

from relock._core.asking import PATIENT_PART, Round
from relock._core.effects import Answer, Failure
from relock._core.hold import FOREVER
from relock._keys import LockKeys
from relock._runtime.live_set import LiveSet
from relock._runtime.masters.connections import Connection
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.opener import Opener
from relock._runtime.masters.round import Pending
from relock._runtime.net.failures import failure_of, is_break, is_refusal
from relock._runtime.wait_queue import WaitQueue
from relock._scripts import Prepared

logger = logging.getLogger("relock.masters")

FRESH_SECONDS = 1.0  # a connection that was used within this time is not tested before it is used again
IN_FLIGHT_MAX = 64  # a connection that owes so many replies gets no further request
DRAIN_SECONDS = 0.02
UNUSED_SECONDS = 30.0  # a connection that was idle for so long is closed, except the last one


class Pool:
    """Pool of the connections to one master.

    At most ``max_connections`` of them are for calls; others may use these, too. If none of these is free, renewals,
    undos and heartbeats use connections of their own, so that they neither wait for calls nor block them.

    Attributes:
        line: the calls that wait for a connection; masters that are asked together share one line.
        sweep_at: our time of the next sweep, when a connection may have been idle for too long.
    """

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self.facts = opener.facts
        self._clock = opener.clock
        self._node_timeout = opener.node_timeout
        self._credentials = opener.credentials
        self.line = WaitQueue()
        # A stack: the connection that was used last is used next, so unneeded ones gather at the beginning.
        self._idle: deque[Connection] = deque()
        self._own_idle: deque[Connection] = deque()
        self._connections: LiveSet[Connection] = LiveSet()  # all connections for calls, in use or idle
        self._own_connections: LiveSet[Connection] = LiveSet()  # the extra ones, of renewals, undos and heartbeats
        self._loop_connections: LiveSet[Connection] = LiveSet()  # those that event loops keep
        self._connections_max = opener.options.max_connections
        self.sweep_at = FOREVER
        self._is_closed = False

    def give_up_others(self) -> None:
        """Close the idle connections that lead to another server than the present master."""
        incarnation = self.facts.known.incarnation
        for idle in (self._idle, self._own_idle):
            for connection in list(idle):
                if connection.shown.incarnation != incarnation:
                    with suppress(ValueError):  # in use: its next reply shows that it leads elsewhere
                        idle.remove(connection)
                        connection.close()

    def check_out(self, now: float, idle: deque[Connection] | None = None) -> Connection | None:
        """Return an idle, open connection for the caller alone; None if there is none, or each owes too much."""
        if idle is None:
            idle = self._idle
        for _ in range(self._connections_max + 1):
            try:
                connection = idle.pop()
            except IndexError:
                return None
            in_flight = connection.in_flight
            if not in_flight:
                if now - connection.idle_since < FRESH_SECONDS or self._is_sound(connection):
                    return connection
            elif now - in_flight[0].sent_at > self._node_timeout and not self.is_drained(connection, now):
                self._ended(connection, redis_errors.TimeoutError("Timeout waiting for a reply"))
            elif len(in_flight) < IN_FLIGHT_MAX:
                return connection
            else:
                idle.appendleft(connection)
        return None

    def exchange(
        self, request: Prepared, keys: LockKeys, owner: bytes, sent_at: float, until: float
    ) -> Sequence[Answer] | None:
        """Send a prepared request to this lone master, in the usual case that a fresh connection is free.

        Return a list of its answer, into which a late answer is written. Return None if nothing was sent, because the
        case is not the usual one; then ask by the `FanOut`.
        """
        if self.line.waiting or until - sent_at < PATIENT_PART * self._node_timeout:
            return None
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if connection.in_flight or sent_at - connection.idle_since >= FRESH_SECONDS:
            self._idle.append(connection)  # it owes replies, or must be tested first
            return None
        answer, is_ours = None, True
        try:
            answer = connection.exchange(request, keys, owner, sent_at, until)
            if not isinstance(answer, Pending):
                if not connection.shown.is_retired:
                    is_ours = False  # Let go, then share: once in the pool, another caller may use it
                    self.give_back(connection, sent_at)
                return [(answer,)]
            connection.go_on(answer)
        except NETWORK_ERRORS as error:
            if not isinstance(answer, Pending):
                return [(self.broke(connection, error),)]
            self.drop(connection, answer.round, error)
        else:
            is_ours = False
            self.put_back(connection, answer.round, self._clock())
        finally:
            if is_ours:
                connection.close()
        return answer.round.answers

    def drop(self, connection: Connection, round_: Round, error: BaseException) -> None:
        """Give up a connection that broke; the master's missing answer to `round_` has then failed."""
        round_.miss(self.facts, self.broke(connection, error))

    def put_back(self, connection: Connection, round_: Round, now: float) -> None:
        """Take back a connection on which `round_` was asked, unless the master has been silent on it for too long."""
        in_flight = connection.in_flight
        if connection.shown.is_retired:
            connection.close()
        elif (
            not in_flight
            or now - in_flight[0].sent_at < PATIENT_PART * self._node_timeout
            or self.is_drained(connection, now)
        ):
            self.give_back(connection, now)
        else:
            round_.fail(self.facts, self.broke(connection, redis_errors.TimeoutError("Timeout waiting for a reply")))

    def check_out_own(self, now: float) -> Connection | None:
        """Check out a connection for calls, or if none is free, one that renewals, undos and heartbeats have."""
        return self.check_out(now) or self.check_out(now, self._own_idle)

    def _is_sound(self, connection: Connection) -> bool:
        """Return whether an idle connection is still open; close it if the server has closed it."""
        try:
            if not connection.channel.wait(0.0):  # no reply is owed, so anything to read is the end, or a mistake
                return True
        except NETWORK_ERRORS:
            log = self.opener.platform.log
            log.debug(logger, "an idle connection to %s has broken", self.facts.address, exc_info=True)
        connection.close()
        return False

    def is_drained(self, connection: Connection, now: float) -> bool:
        """Read, without waiting, the replies that a connection owes at `now`; return whether all have come.

        If the last reply is that a script is unknown, its source is sent. The connection then owes a new reply, and has
        a node timeout for that.
        """
        try:
            connection.drain()
        except NETWORK_ERRORS:
            return False
        return not connection.in_flight or connection.in_flight[0].sent_at >= now

    def open(self) -> Connection:
        """Open a connection for the caller alone; it later serves calls if there is room among theirs, else others.

        Raises:
            redis.RedisError, OSError: the master can't be reached, or refuses.
            ConfigurationError: it can't be used.
        """
        connection = self._admitted()
        if connection is None:
            connection = Connection(self, self.opener.raw_connection(), is_own=True)
            self._own_connections.add(connection)
        return self._opened(connection)

    def open_for_call(self) -> Connection | None:
        """Open a connection for a call; return None if ``max_connections`` are open. Raises as `open` does."""
        connection = self._admitted()
        return None if connection is None else self._opened(connection)

    def open_for_loop(self) -> Connection:
        """Open a connection that an event loop keeps and closes, and no other caller uses. Raises as `open` does."""
        connection = Connection(self, self.opener.raw_connection(), is_own=True)
        self._loop_connections.add(connection)
        return self._opened(connection)

    def _admitted(self) -> Connection | None:
        """Return a new connection for calls that is not open yet; None if ``max_connections`` exist.

        Mark, then look: if several callers come at once, the last one to add its connection sees all of them.
        """
        if not self.has_room:
            return None
        connection = Connection(self, self.opener.raw_connection())
        self._connections.add(connection)
        if len(self._connections) <= self._connections_max:
            return connection
        self._connections.discard(connection)
        return None

    def _opened(self, connection: Connection) -> Connection:
        try:
            connection.open()
            if self._is_closed:  # Mark, then look: `close` finds it among the connections, or this finds `close`
                raise redis_errors.ConnectionError("the client was closed")
        except BaseException:
            connection.close()
            raise
        self.opener.act(self.facts.opened())
        self._sweep_later()
        return connection

    @property
    def has_room(self) -> bool:
        """True if another connection may be opened for a call."""
        return len(self._connections) < self._connections_max

    @property
    def has_own_idle(self) -> bool:
        """True if renewals, undos and heartbeats have an idle connection of their own."""
        return bool(self._own_idle)

    @property
    def is_full(self) -> bool:
        """True if a call that came now would find no idle connection and could not open one."""
        return not self._idle and not self.has_room

    @property
    def is_crowded(self) -> bool:
        """True if no connection may be opened, and calls are using some of those that are open."""
        return not self.has_room and len(self._connections) > len(self._idle)

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is closed, so that another one may be opened."""
        for some in (self._own_connections, self._connections, self._loop_connections):
            some.discard(connection)

    def _sweep_later(self) -> None:
        """Plan a sweep for the time at which a connection that was just opened may have been idle for too long."""
        if self.connections > 1:
            moment = self._clock() + UNUSED_SECONDS
            self.sweep_at = min(self.sweep_at, moment)
            self.opener.listener.sweep_by(moment)

    def give_back(self, connection: Connection, now: float) -> None:
        """Let the next caller use the connection, even if the connection still owes replies."""
        facts = self.facts
        if connection.shown.incarnation != facts.known.incarnation:
            connection.close()
            return
        if facts.down is not None and not facts.is_one_of_several and not connection.in_flight:
            self.opener.act(facts.answered(now))
        connection.idle_since = now
        if connection.login is not self._credentials.latest and not self._logs_in(connection):
            return
        if connection.is_own:
            self._own_idle.append(connection)
        else:
            self._idle.append(connection)
            if self.line.waiting:
                self.line.wake_first()
        if now >= self.sweep_at:
            self.sweep(now)

    def _logs_in(self, connection: Connection) -> bool:
        """Send the newest credentials over an unused connection; close it and return False if it has ended."""
        try:
            connection.log_in()
        except NETWORK_ERRORS as error:
            self._ended(connection, error)
            return False
        return True

    def renew(self) -> None:
        """Have all connections authenticate with the newest credentials, and replace those on which these are refused.

        A connection that is in use does so by itself when it is given back, so this waits, for two node timeouts at
        most.
        """
        until = self._clock() + 2 * self._node_timeout
        while self._clock() < until and not self._is_closed:
            for idle in (self._idle, self._own_idle):
                for connection in list(idle):
                    if not connection.is_settled:
                        self._drain(idle, connection)
            every = [*self._connections, *self._own_connections]
            for connection in every:
                if connection.is_refused:
                    self._replace(connection)
            if all(connection.is_settled for connection in every):
                return
            self.opener.platform.sleep(DRAIN_SECONDS)

    def _replace(self, old: Connection) -> None:
        """Open another connection, then close the one on which credentials were refused; if none opens, keep that."""
        old.is_refused = False
        try:
            new = Connection(self, self.opener.raw_connection(), is_own=old.is_own)
            (self._own_connections if new.is_own else self._connections).add(new)
            self._opened(new)
        except Exception:  # the provider may raise any
            log = self.opener.platform.log
            log.debug(logger, "%s takes no new connection either", self.facts.address, exc_info=True)
            return
        old.shown.is_retired = True  # Mark, then look: a caller that uses it closes it
        self.give_back(new, self._clock())
        with suppress(ValueError):
            (self._own_idle if old.is_own else self._idle).remove(old)
            old.close()

    def sweep(self, now: float) -> float:
        """Close the connections that were idle for `UNUSED_SECONDS`; return when to sweep next.

        The idle connections are a stack: those at its bottom were not needed even when most were in use at once. The
        last connection is kept, for a caller that comes once in a while.
        """
        self._close_unused(self._idle, now, keep=1)
        self._close_unused(self._own_idle, now, keep=0)
        self.sweep_at = FOREVER  # Mark, then look: a connection that is opened from here on sets it again
        self.sweep_at = min(self.sweep_at, self._next_sweep(now))
        return self.sweep_at

    def _next_sweep(self, now: float) -> float:
        if self.connections <= 1:
            return FOREVER
        moments = [now + UNUSED_SECONDS] if self.is_in_use else []
        for idle, keep in ((self._idle, 1), (self._own_idle, 0)):
            with suppress(IndexError):  # another thread takes connections out meanwhile
                moments += [idle[0].idle_since + UNUSED_SECONDS] * (len(idle) > keep)
        return min(moments, default=FOREVER)

    def _close_unused(self, idle: deque[Connection], now: float, *, keep: int) -> None:
        with suppress(IndexError):  # another thread takes connections out meanwhile
            while len(idle) > keep and now - idle[0].idle_since >= UNUSED_SECONDS:
                connection = idle.popleft()
                if now - connection.idle_since < UNUSED_SECONDS:
                    idle.appendleft(connection)  # not the one that was tested: another thread took that
                    return
                connection.close()

    def drain(self) -> None:
        """Read the late replies on idle connections that have owed a reply for `DRAIN_SECONDS` or longer."""
        now = self._clock()
        for idle in (self._idle, self._own_idle):
            for connection in list(idle):
                if connection.silent_for(now) >= DRAIN_SECONDS:  # else a caller may need it now
                    self._drain(idle, connection)

    def _drain(self, idle: deque[Connection], connection: Connection) -> None:
        try:
            idle.remove(connection)
        except ValueError:
            return  # in use again
        try:
            connection.log_in()
            connection.drain()
        except NETWORK_ERRORS as error:
            self._ended(connection, error)
        else:
            idle.append(connection)

    def _ended(self, connection: Connection, error: BaseException) -> None:
        """Give up an idle connection that has ended; the master counts as down only if a reply was owed."""
        if connection.owes_answers:
            self.broke(connection, error)
        else:
            connection.close()

    def broke(self, connection: Connection, error: BaseException) -> Failure:
        """Give up a connection that broke, or on which the master went silent, and return the `Failure`."""
        connection.close()
        failure = self.failed(error, sent=True)
        return evolve(failure, broken=True) if is_break(error) else failure

    def failed(self, error: BaseException, *, sent: bool) -> Failure:
        """Return the `Failure` for a connection that broke or was never made, and note that the master is down.

        Then close the idle connections, too, unless the server refused only a new one: renewals need the old ones.
        """
        failure = failure_of(self.facts.address, error, sent=sent)
        if sent or not is_refusal(error):
            self.drop_idle()
        if not self._is_closed:
            self.opener.act(self.facts.failed(failure.why))
        return failure

    def drop_idle(self) -> None:
        """Close the idle connections; requests on the others go on."""
        for idle in (self._idle, self._own_idle):
            with suppress(IndexError):
                while True:
                    idle.pop().close()

    @property
    def connections(self) -> int:
        """Number of the pool's connections that are open, or being opened."""
        return len(self._connections) + len(self._own_connections)

    @property
    def loop_connections(self) -> int:
        """Number of the connections that event loops keep."""
        return len(self._loop_connections)

    @property
    def idle_connections(self) -> int:
        """Number of the pool's connections that no caller uses."""
        return len(self._idle) + len(self._own_idle)

    @property
    def is_in_use(self) -> bool:
        """True if a caller has, or is opening, one of the pool's connections."""
        return self.connections > self.idle_connections

    def close(self) -> None:
        """Close every connection of the pool, also those that other threads open at the moment."""
        self._is_closed = True  # Mark, then look: a thread that opens a connection from here on closes it
        for connection in [*self._connections, *self._own_connections]:
            connection.close()
        self._idle.clear()  # last: the sets of connections are weak, and only these stacks keep idle ones alive
        self._own_idle.clear()

    def abandon(self) -> None:
        """Close, in a forked child, the copies of the parent's sockets, without sending anything to the server.

        redis-py does not shut a socket down in another process than the one that connected it.
        """
        self.close()
        for connection in list(self._loop_connections):
            connection.close()  # do not unwatch: the copied loop shares its poll with the parent's loop
