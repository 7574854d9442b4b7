"""State of one master: which server it is, how its clock goes, whether it has a vote, and the guard.

Nothing is sent or read here: the classes that have connections say what these have shown.
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from redis import exceptions as redis_errors

from relock._core.clocks import Offset
from relock._core.effects import Answer, Clock, Failure, Reply
from relock._core.info import ServerInfo, read_info
from relock._core.quorum import NEVER, is_given
from relock._errors import ConfigurationError
from relock._keys import master_key
from relock._options import ClientOptions
from relock._runtime.net.failures import failure_of
from relock._runtime.net.node import Node
from relock._runtime.platform import Platform

logger = logging.getLogger(__name__)

INTRODUCTION = (("INFO", "server"), ("INFO", "replication"), ("INFO", "memory"))  # what each new socket is asked
UNKNOWN = b""  # the incarnation of a master of which nothing is known
NAMELESS = b"-"  # that of one which refuses INFO; grants of its scripts name it so
GUARD_MS_END = 2**40  # 34 years, more than any option takes; `lua/_lib/vote.lua` ends there, too
GUARD_NEWS_SECONDS = 0.1  # a guard that ends later than the last one by more than this is another guard
STEPS_MAX = 64  # of a clock that steps all the time, what is remembered


class Known(NamedTuple):
    """Server that is the master now: one value, so that no thread mixes up what is known of two servers.

    Attributes:
        incarnation: its run id and its replication id; `UNKNOWN`, or `NAMELESS` where it refuses INFO.
        offset: how far its clock is ahead of ours.
    """

    incarnation: bytes
    offset: Offset


class MasterListener:
    """Listener to what masters report; the methods do nothing here.

    Attributes:
        connection_name: the name of our connections on the server, where the user has given none; may be empty.
    """

    connection_name: str = ""

    def sweep_by(self, moment: float) -> None:
        """Have a thread, if there is one, look by `moment` (our time) which connections nobody needs."""

    def master_down(self, master: "MasterState", why: str) -> None:
        """Note that the master does not answer."""

    def master_back(self, master: "MasterState") -> None:
        """Note that the master answers again."""

    def master_without_vote(self, master: "MasterState", seconds: float) -> None:
        """Note that the master may have forgotten leases, and has no vote for `seconds` more."""

    def master_moved(self, master: "MasterState") -> None:
        """Note that another server is the master now, or that it is not known which one is."""

    def warn(self, text: str) -> None:
        """Issue a `RelockWarning` at a moment when that can do no harm."""

    def check_independent(self, master: "MasterState") -> None:
        """Raise a `ConfigurationError` if the server to which a socket was opened is another master, too."""

    def master_judged(self, master: "MasterState") -> None:
        """Note that a connection was opened: the master has taken the credentials, and can be used."""

    def larger_guard(self, found_ms: int) -> None:
        """Note that other clients protect these locks for longer (`found_ms`): that holds on all masters."""

    def clock_in_doubt(self, master: "MasterState") -> None:
        """Note that the master's clock seems to have stepped: a new sample must show whether it has."""

    def master_stepped(self, master: "MasterState", seconds: float, shown_us: int) -> None:
        """Note that the master's clock stepped ahead by `seconds` (back, if below 0), or ours stood still for so long.

        The master's clock showed `shown_us` then.
        """


class MasterState(ABC):
    """State of one master, as far as it is known, and what follows from it."""

    address: str
    clock: Clock
    guard_ms: int
    has_shown_marker: bool
    is_judged: bool
    is_quorum_judged: bool
    known: Known
    node_timeout: float
    trusted_from: float
    version: str
    vote_at: float

    def __init__(
        self, index: int, node: Node, options: ClientOptions, platform: Platform, listener: "MasterListener"
    ) -> None:
        self.index = index
        self.node = node
        self.address = node.address
        self.options = options
        self.platform = platform
        self.clock = platform.clock
        self.node_timeout = options.node_timeout_for(options.ttl)
        self.guard_ms = options.guard_ms
        self.marker: str | None = master_key(options.prefix)  # the key of its incarnation; None for a cluster's nodes
        self.version = ""
        self.problems: dict[str, str] = {}
        self.is_judged = False  # a connection to it was opened
        self.is_quorum_judged = False  # so it was with a quorum of the client's masters
        self.has_shown_marker = False  # this client has seen its marker: if that is missing, it has forgotten
        self.vote_at = 0.0  # our time from which it has a vote again, if it has none now
        self.known = Known(UNKNOWN, Offset(options.drift_factor))
        self.introduction: Sequence[tuple[str, ...]] = INTRODUCTION  # what `introduce` takes the replies to
        self.no_reply_yet: Answer = (Failure(node.address, "it has not answered", awaited=True),)
        self.trusted_from = float("-inf")  # our time; what it gives to requests from before that counts for nothing
        self._listener = listener
        self._distrusted: deque[tuple[int, float]] = deque(maxlen=STEPS_MAX)  # what it showed in a step, and until when

    @property
    @abstractmethod
    def is_one_of_several(self) -> bool:
        """True if a quorum of masters decides."""

    @abstractmethod
    def give_up_others(self, incarnation: bytes) -> None:
        """Give up the idle sockets that lead to any other server than this one: they are of no use any more."""

    @property
    def incarnation(self) -> bytes:
        """Incarnation of the server, as in `Known`."""
        return self.known.incarnation

    @property
    def offset(self) -> Offset:
        """Bounds on how far the master's clock is ahead of ours, as in `Known`."""
        return self.known.offset

    @property
    def is_named(self) -> bool:
        """True if it is known which server the master is."""
        return self.known.incarnation not in (UNKNOWN, NAMELESS)

    def introduce(self, replies: Sequence[Any]) -> bytes:
        """Return the incarnation of the server that a new socket leads to, be it for calls or for a subscription.

        If the sockets before it lead to another one, the master has moved, and they are given up.

        Args:
            replies: what the server said to `introduction`; an error is an exception among them.

        Raises:
            ConfigurationError: the server is a replica, or it refuses INFO where that is needed.
        """
        refused = next((reply for reply in replies if isinstance(reply, BaseException)), None)
        if refused is not None:
            self.info_refused(refused)
            incarnation = NAMELESS
        elif not all(isinstance(reply, bytes) for reply in replies):
            raise redis_errors.InvalidResponse(f"no reply to INFO: {replies!r:.100}")
        else:
            info = read_info(b"\r\n".join(replies))
            self.check_info(info)  # first: that a replica has been found there gives no socket to the master up
            incarnation = info.incarnation.encode()
        self.see_incarnation(incarnation)
        return incarnation

    def see_incarnation(self, incarnation: bytes) -> None:
        """Note which server is the master now; sockets to any other are of no use any more."""
        if incarnation != self.known.incarnation:
            # Mark, then look: of two threads that connect to one server, one sees the other.
            self.known = Known(incarnation, Offset(self.options.drift_factor))
            self.give_up_others(incarnation)
            self._listener.master_moved(self)
        self._listener.check_independent(self)

    def demoted(self, incarnation: bytes) -> None:
        """Note that the server of this incarnation is a replica; if it was the master, none is known now."""
        if incarnation == self.known.incarnation:
            self.see_incarnation(UNKNOWN)

    def check_info(self, info: ServerInfo) -> None:
        """Judge what INFO says: refuse a replica or a node of a Cluster, and warn of a policy that evicts."""
        if self.marker is not None and info.mode == "cluster":
            raise ConfigurationError(
                f"{self.address} is a node of a Cluster: name it as redis+cluster://host:port", option="nodes"
            )
        self.version = info.version
        if info.is_replica:
            raise ConfigurationError(
                f"{self.address} is a replica, and a replica's locks are only copies: name its master", option="nodes"
            )
        if info.evicts:
            self._warn(
                "eviction",
                f"{self.address} may evict locks: set maxmemory-policy to noeviction (it is {info.policy})",
            )
        else:
            self.problems.pop("eviction", None)

    def info_refused(self, error: BaseException) -> None:
        """Refuse a master without INFO if a guard needs it, else warn: a replica or an evicting policy goes unseen."""
        if self.guard_ms > 0:
            raise ConfigurationError(
                f"{self.address} refuses INFO ({error}), and restart_guard={self.options.restart_guard} needs it: "
                "allow the command, or set restart_guard=0",
                option="restart_guard",
            )
        self._warn("info", f"{self.address} refuses INFO: whether it is a replica or may evict is not known")

    @property
    def may_begin_guard(self) -> bool:
        """True if scripts may begin a guard where they find no marker."""
        return self.is_quorum_judged or self.has_shown_marker

    def note_judged(self) -> None:
        """Note that a connection was opened, which has shown that the master can be used."""
        self.is_judged = True  # Mark, then look: of two masters that complete a quorum at once, one sees the other
        self._listener.master_judged(self)

    def larger_guard_found(self, found_ms: int) -> None:
        """Take over the larger guard of another client, for all masters, and warn of it."""
        self._listener.larger_guard(found_ms)
        self._warn(
            "guard",
            f"{self.address} has a larger restart guard than this client ({found_ms / 1000:.2f} s, not "
            f"{self.options.guard_ms / 1000:.2f} s): the larger one is used. relock doctor says who has set it: "
            "if that was a mistake, relock guard --lower ends it; else set the same restart_guard everywhere",
        )

    def _warn(self, kind: str, text: str) -> None:
        if self.problems.get(kind) == text:
            return
        self.problems[kind] = text
        self.platform.log.warning(logger, text)
        self._listener.warn(text)

    def refused(self, error: redis_errors.ResponseError) -> Failure:
        """Return the `Failure` for a script that the master answered with an error."""
        self.platform.log.debug(logger, "%s refused a script: %s", self.address, error)
        return failure_of(self.address, error, sent=True)

    def without_vote(self, now_us: int, until_us: int, now: float) -> None:
        """Note that the master refused to vote until `until_us` on its clock, which showed `now_us`.

        The reply may be old, if nobody has read from the connection since: what is known of the clock tells.
        """
        vote_at = min(now + (until_us - now_us) / 1e6, until_us / 1e6 - self.offset.low)
        is_news = vote_at > max(self.vote_at + GUARD_NEWS_SECONDS, now)
        self.vote_at = vote_at
        if is_news:
            self._listener.master_without_vote(self, vote_at - now)

    def granted_at(self, granted_us: int, incarnation: bytes, arrived_at: float) -> float:
        """Return the earliest of our times at which a grant can have been made whose message came at `arrived_at`.

        Minus infinity where our samples of the master's clock say nothing of that: they are another server's, or the
        clock stepped a moment ago, or the grant seems to lie in the future. In the last case the clock has stepped, and
        a new sample must show that.
        """
        seconds = granted_us / 1e6
        known, offset = self.known
        if incarnation != known or incarnation == NAMELESS or arrived_at < self.trusted_from:
            return NEVER
        moment = offset.shown_at(seconds, arrived_at)
        if moment > arrived_at:
            self.doubt_clock()
            return NEVER
        return moment

    def doubt_clock(self) -> None:
        """Report that the master's clock has stepped, and a new sample must show which way: holds must know at once."""
        self._listener.clock_in_doubt(self)

    def stepped(self, seconds: float, reply: Reply) -> Reply | Failure:
        """Note that the master's clock and ours moved apart by `seconds` at once; return what `reply` then comes to.

        Among several masters, what the master gives counts for nothing until every lease is over that it may have ended
        early, or the step was ours: taking its vote from it takes a moment, and may fail.
        """
        trusted_from = self.offset.stepped_at
        if self.is_one_of_several:
            trusted_from += self.guard_ms / 1000
            self._distrusted.append((reply[1], trusted_from))
        self.trusted_from = max(self.trusted_from, trusted_from)  # another thread may have found another server there
        try:
            self._listener.master_stepped(self, seconds, reply[1])
        except BaseException:  # an interrupt: no later reply shows this step; leases cut twice end too early at worst
            self._listener.master_stepped(self, seconds, reply[1])
            raise
        if not self.is_one_of_several or not is_given(reply):
            return reply
        return Failure(self.address, f"its clock and ours moved apart by {seconds:+.3f} s at once")

    def trust(self, shown_us: int) -> None:
        """Trust the master again after the step at `shown_us`, which our own clock made; other steps still count."""
        for distrust in self._distrusted.copy():
            if distrust[0] == shown_us:
                with suppress(ValueError):  # forgotten by now, as the first of too many
                    self._distrusted.remove(distrust)
        left = None
        while left != self._distrusted:  # another thread may see a step just now
            left = self._distrusted.copy()
            self.trusted_from = max([self.offset.stepped_at, *[until for _, until in left]])

    def lacks_replicas(self, confirmed: int) -> Failure:
        """Return the `Failure` for a grant that too few replicas have."""
        wanted = self.options.min_replicas
        return Failure(self.address, f"NOREPLICAS: {confirmed} of {wanted} replicas confirmed in time")


def server_of(incarnation: bytes) -> bytes:
    """Return the run id of an incarnation: a first replica changes the incarnation, but not the process or its data."""
    return incarnation.partition(b":")[0]


def as_guard_ms(field: bytes) -> int | None:
    """Return the guard (ms) that a marker's `guard_ms` names, or None where that can be no guard."""
    found_ms = int(field) if field.isdigit() and len(field) < 16 else GUARD_MS_END
    return found_ms if found_ms < GUARD_MS_END else None
