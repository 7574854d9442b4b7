"""One master: the facts about it, the connections to it, and its commands other than scripts."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from redis import exceptions as redis_errors

from relock._core.effects import Failure
from relock._core.master_facts import Down, Moved, NewCredentials, News, Problem, Stepped
from relock._errors import ConfigurationError
from relock._runtime.masters.errors import NETWORK_ERRORS, protocol_errors
from relock._runtime.masters.opener import Opener
from relock._runtime.masters.pool import Pool
from relock._runtime.net.failures import is_break
from relock._runtime.net.green import check_threads
from relock._runtime.net.raw_connection import RawConnection
from relock._runtime.service import Service

logger = logging.getLogger("relock.masters")

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0

T = TypeVar("T")


Report = tuple["Master", Failure | ConfigurationError | None]


class Master:
    """One master: the facts about it, the way to reach it, and the connections to it.

    Attributes:
        exchange: asks it alone for what was prepared, as `Pool.exchange` does: without a `FanOut`.
        facts: the facts that its connections have shown.
        is_cluster: it is a whole Cluster, whose nodes are its `servers`.
        opener: opens sockets to it.
        pool: the connections to it.
        reconnector: opens connections in the background; None for a lone master, where a call opens its own.
    """

    is_cluster = False
    reconnector: "Reconnector | None"

    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self.facts = facts = opener.facts
        self.index = facts.index
        self.address = facts.address
        self.no_reply_yet = facts.no_reply_yet
        self.platform = opener.platform
        self.clock = opener.clock
        self.node_timeout = opener.node_timeout
        opener.act = self.act
        self.pool = Pool(opener)
        opener.credentials.takers.add(self)
        self.exchange = self.pool.exchange
        self.reconnector = Reconnector(self) if facts.is_one_of_several else None

    def act(self, news: Iterable[News]) -> None:
        """Act on news of the master: log a problem, give up connections to other servers, reconnect; pass it on."""
        for one in news:
            try:
                self._act(one)
            except BaseException:
                if isinstance(one, Stepped):
                    # After an interrupt, act again: no later reply shows this step. To cut leases twice is safe.
                    self._act(one)
                raise

    def _act(self, news: News) -> None:
        if isinstance(news, Moved):
            self.pool.give_up_others()
        elif isinstance(news, Problem):
            self.platform.log.warning(logger, news.text)
        self.opener.listener.hear(self.facts, news)
        if isinstance(news, Down) and not news.is_mistake and self.reconnector is not None:
            self.reconnector.probe()

    def renew(self) -> None:
        """Have a thread authenticate all open connections with the newest credentials; return at once."""
        with suppress(RuntimeError):  # no thread can be started; used connections authenticate by themselves
            self.platform.start(self._renew, "relock-credentials")

    def _renew(self) -> None:
        self.act([NewCredentials()])
        self.pool.renew()

    @property
    def servers(self) -> "Sequence[Master]":
        """Servers that are asked for it: only itself."""
        return (self,)

    # Where it can't be asked ----------------------------------------------------------------------------------------

    def open_later(self, reports: "SimpleQueue[Report] | None", *, is_call: bool) -> None:
        """Have the reconnector, if any, open a connection, and put the outcome into `reports`.

        `is_call`: the connection counts among the ``max_connections`` for calls.
        """
        check_threads()  # before waiting: if threads are greenlets, the reconnector would never run
        if self.reconnector is not None:
            self.reconnector.want(reports, is_call=is_call)

    def unconnected(self) -> Failure:
        """Return the `Failure` for a master that can't be asked right now: nothing has been sent to it."""
        why = self.facts.down
        if why is None and self.pool.is_crowded:
            return self.out_of_time()
        return Failure(self.address, why or "it is being connected, or has not answered for a while", sent=False)

    def out_of_time(self) -> Failure:
        """Return the `Failure` for a call that waited in vain for a connection: nothing has been sent."""
        down, most = self.facts.down, self.opener.options.max_connections
        why = down or f"it was not asked: no connection was free in time (max_connections={most})"
        return Failure(self.address, why, sent=False, no_time=down is None)

    def failed(self, error: BaseException, *, sent: bool) -> Failure:
        """Return the `Failure` for a connection that broke or was never made, and note that the master is down."""
        return self.pool.failed(error, sent=sent)

    def turned_out(self, error: ConfigurationError) -> Failure:
        """Note a mistake in the configuration, and return the `Failure`."""
        self.act(self.facts.turned_out(error))
        return self.misconfigured(error)

    def misconfigured(self, error: ConfigurationError) -> Failure:
        """Return the `Failure` for a server that turned out to be no master; if it was one before, it may be again."""
        return Failure(self.address, str(error), permanent=not self.facts.was_sound, sent=False)

    # Commands of its own --------------------------------------------------------------------------------------------

    def probe(self) -> None:
        """Open a connection, which checks the master, and keep it.

        Renewals and the like may have wished for several by now; while an idle one is theirs, they need no other.

        Raises:
            redis.RedisError, OSError: it can't be reached.
            ConfigurationError: it can't be used.
        """
        if self.facts.down is not None or not self.pool.has_own_idle:
            self.pool.give_back(self.pool.open(), self.clock())

    def open_ahead(self) -> None:
        """Open a connection for a call that waits for one, if there is room for it. Raises as `probe` does."""
        connection = self.pool.open_for_call()
        if connection is not None:
            self.pool.give_back(connection, self.clock())

    def scan(self, pattern: str, count: int) -> Iterator[str]:
        """Yield the keys that match the glob `pattern`, by SCAN on a connection of its own; a key may come twice.

        Raises:
            redis.RedisError, OSError: it can't be reached, or refuses.
        """
        connection, cursor = OwnConnection(self), b"0"

        def ask() -> tuple[bytes, list[str]]:
            reply = connection.ask("SCAN", cursor, "MATCH", pattern, "COUNT", count)
            try:
                with protocol_errors():
                    following, keys = reply
                    return following, [key.decode(errors="replace") for key in keys]
            except BaseException:
                connection.close()
                raise

        try:
            while True:
                cursor, names = self.ask_again(ask)
                yield from names
                if cursor == b"0":
                    return
        finally:
            connection.close()

    def ask_again(self, ask: Callable[[], T]) -> T:
        """Call `ask`, which changes nothing on the master, and return its result.

        If the connection breaks, `ask` is called once more, unless a node timeout is over by then.
        """
        until = self.clock() + self.node_timeout
        try:
            return ask()
        except NETWORK_ERRORS as error:
            if not is_break(error) or self.clock() >= until:
                raise
        return ask()

    def server_of(self, key: str) -> "Master":  # noqa: ARG002 - a Cluster's name for it
        """Return the server that has the key."""
        return self


class OwnConnection:
    """Connection to a server for one user, beside the pool: the first `ask` opens it, also after it broke."""

    def __init__(self, server: Master) -> None:
        self._server = server
        self._raw: RawConnection | None = None

    def ask(self, *words: str | int | bytes) -> Any:
        """Send a command, and return the reply.

        Raises:
            redis.RedisError, OSError: the server can't be reached, or refuses; the connection is closed then.
        """
        try:
            if self._raw is None:
                self._raw = self._server.opener.raw_connection()
                self._open(self._raw)
            self._raw.send_command(*words, check_health=False)
            with protocol_errors():
                return self._raw.read_response()
        except BaseException:
            self.close()
            raise

    def _open(self, raw: RawConnection) -> None:
        with protocol_errors():
            raw.connect()
        for words in self._server.opener.naming:
            raw.send_command(*words, check_health=False)
            with suppress(redis_errors.ResponseError):  # it may be forbidden
                raw.read_response()

    def close(self) -> None:
        """Close the connection, if it is open."""
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.disconnect()


class Wish(NamedTuple):
    """Wish for a connection, which a reconnector opens to test the master, or for a call that waits for the report."""

    reports: SimpleQueue[Report] | None = None
    is_call: bool = False


NOTHING = Wish()  # this one only wakes the thread


class Reconnector(Service):
    """Thread that opens connections to one master: when a call wants one, and repeatedly while the master is down."""

    name = "relock-reconnector"

    def __init__(self, master: Master) -> None:
        super().__init__(master.platform)
        self._master = master
        self._wanted: SimpleQueue[Wish] = master.platform.queue()
        self._failures = 0
        self._is_idle = True  # the reconnector sleeps until a connection is wanted

    def want(self, reports: SimpleQueue[Report] | None, *, is_call: bool) -> None:
        """Have one connection opened and put into the pool, and the outcome into `reports`; return at once.

        If no thread can be started, a call with `reports` opens the connection itself before it returns. Several calls
        may find room for the last connection at once: then one is opened for the first, and the others wait for any.
        """
        # The call that finds the master down wakes the thread. If an interrupt prevents that, the next call does it.
        trying = (self._master.facts.down is not None and not self._is_idle) or not self._wanted.empty()
        if reports is not None or not trying:
            self._wanted.put(Wish(reports, is_call))
        if not self.ensure() and reports is not None:
            with suppress(Empty):  # no thread can be started, so the caller opens what it waits for
                self._serve(self._wanted.get_nowait())

    def probe(self) -> None:
        """Have the thread try the master, which has just gone down, at once and repeatedly until it is back."""
        self._wanted.put(Wish())
        self.ensure()

    def step(self) -> None:
        """Wait until a connection is wanted or the master must be tried again, and open one."""
        self._is_idle = self._master.facts.down is None
        try:
            wish = self._wanted.get(timeout=None if self._is_idle else self._pause())
        except Empty:
            wish = Wish()
        self._is_idle = False
        if not (self.stopping or wish is NOTHING):
            self._serve(wish)

    def _serve(self, wish: Wish) -> None:
        """Open the connection that is wanted, and report the outcome."""
        trouble = self._try(is_call=wish.is_call)
        if wish.reports is not None:
            wish.reports.put((self._master, trouble))
        if trouble is not None:
            self._tell_all(trouble)

    def _pause(self) -> float:
        doubled: float = RETRY_SECONDS_MIN * 2 ** min(self._failures, 10)
        return min(doubled, RETRY_SECONDS_MAX)

    def _try(self, *, is_call: bool) -> Failure | ConfigurationError | None:
        try:
            if is_call:
                self._master.open_ahead()
            else:
                self._master.probe()
        except NETWORK_ERRORS as error:
            self._failures += 1
            return self._master.failed(error, sent=False)
        except ConfigurationError as error:
            self._failures += 1
            failure = self._master.turned_out(error)
            return error if self._master.facts.config_error else failure
        self._failures = 0
        return None

    def _tell_all(self, trouble: Failure | ConfigurationError) -> None:
        """Report the trouble to the callers that asked meanwhile: another try would fail in the same way."""
        while True:
            try:
                reports = self._wanted.get_nowait().reports
            except Empty:
                return
            if reports is not None:
                reports.put((self._master, trouble))

    def wake(self) -> None:
        """Wake the thread, so that it notices `stopping`."""
        self._wanted.put(NOTHING)

    def stop(self) -> None:
        """End the thread."""
        super().stop()
        self.wake()
