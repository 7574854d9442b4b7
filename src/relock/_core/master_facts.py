"""Facts of one master: which server it is, how its clock goes, whether it answers, whether it has a vote, its guard.

Nothing is sent or read here, and nobody is told. Callers pass in what the master has shown. Each method returns the
`News` of that, for the runtime to act on.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from attrs import frozen

from relock._core.clocks import Offset
from relock._core.effects import Answer, Failure
from relock._core.info import ServerInfo, one_server, read_info, shared_servers
from relock._core.quorum import NEVER, quorum_of
from relock._errors import ConfigurationError
from relock._keys import master_key
from relock._options import ClientOptions

INTRODUCTION = (("INFO", "server"), ("INFO", "replication"), ("INFO", "memory"))  # what each new socket is asked
UNKNOWN = b""  # the incarnation of a master of which nothing is known
NAMELESS = b"-"  # that of one which refuses INFO; grants of its scripts name it so
GUARD_MS_END = 2**40  # 34 years, more than any option takes; `lua/_lib/vote.lua` ends there, too
GUARD_NEWS_SECONDS = 0.1  # a guard that ends later than the last one by more than this is another guard
STEPS_MAX = 64  # of a clock that steps all the time, what is remembered
ANSWERS_SECONDS = 1.0  # a master that was down is back once it has answered for so long


@frozen
class Moved:
    """News that another server is the master now, or that it is not known which one is."""


@frozen
class Seen:
    """News that it was found out, maybe once more, which server the master is."""


@frozen
class Down:
    """News that the master does not answer, and why; `is_mistake`: because of a mistake in the configuration."""

    why: str
    is_mistake: bool = False


@frozen
class Back:
    """News that the master answers again."""


@frozen
class WithoutVote:
    """News that the master may have forgotten leases, and has no vote for `seconds` more."""

    seconds: float


@frozen
class InDoubt:
    """News that the master's clock seems to have stepped: a new sample must show whether it has."""


@frozen
class Stepped:
    """News that the master's clock stepped ahead by `seconds` (back, if below 0), or ours stood still for so long.

    The master's clock showed `shown_us` then.
    """

    seconds: float
    shown_us: int


@frozen
class Problem:
    """News that something is wrong with the master, in words for its user."""

    text: str


News = Moved | Seen | Down | Back | WithoutVote | InDoubt | Stepped | Problem


class Known(NamedTuple):
    """Server that is the master now: one value, so that no thread mixes up what is known of two servers.

    Attributes:
        incarnation: its run id and its replication id; `UNKNOWN`, or `NAMELESS` where it refuses INFO.
        offset: how far its clock is ahead of ours.
    """

    incarnation: bytes
    offset: Offset


class MasterFacts:
    """Facts of one master.

    Args:
        is_node: it is one node of a Cluster.

    Attributes:
        peers: the facts of all masters of the client, in their order.
        marker: the key of its incarnation; None for a node, where that key would be in another slot than the locks.
        no_reply_yet: the answer of one that was asked, until it has answered.
        asked_shortly: the failure of one that had less time than the others to answer.
        asked_late: the failure of one for which no time was left.
        version: of the server; empty while that is not known.
        problems: what is wrong with it, by kind.
        has_shown_marker: this client has seen its marker: if that is missing, the master has forgotten.
        vote_at: our time from which it has a vote again, if it has none now.
        trusted_from: our time; what it gives to requests from before that counts for nothing.
        down: why it does not answer; None if it does.
        was_sound: it could be used once: a connection to it was opened.
        config_error: why it was never a master that can be used.
    """

    config_error: ConfigurationError | None
    down: str | None
    known: Known

    def __init__(self, index: int, address: str, options: ClientOptions, *, is_node: bool = False) -> None:
        self.index = index
        self.address = address
        self.peers: Sequence[MasterFacts] = (self,)
        self.marker = None if is_node else master_key(options.prefix)
        self.no_reply_yet: Answer = (Failure(address, "it has not answered", awaited=True),)
        self.asked_shortly = Failure(address, "it has not answered", awaited=True, no_time=True)
        late = "it is connected; there was no time left to ask it"
        self.asked_late = Failure(address, late, awaited=True, no_time=True)
        self.version = ""
        self.problems: dict[str, str] = {}
        self.guard_ms = options.guard_ms
        self.has_shown_marker = self.was_sound = False
        self.vote_at = 0.0
        self.known = Known(UNKNOWN, Offset(options.drift_factor))
        self.trusted_from = NEVER
        self.down = self.config_error = None
        self._answers_since: float | None = None  # since then it does again, while it is down
        self._options = options
        self._distrusted: dict[int, float] = {}  # by what it showed in a step: until when

    @property
    def incarnation(self) -> bytes:
        """Incarnation of the server, as in `Known`."""
        return self.known.incarnation

    @property
    def offset(self) -> Offset:
        """Bounds on how far the master's clock is ahead of ours, as in `Known`."""
        return self.known.offset

    @property
    def is_one_of_several(self) -> bool:
        """True if a quorum of masters decides."""
        return len(self.peers) > 1

    # Which server it is ---------------------------------------------------------------------------------------------

    def introduce(self, replies: Sequence[Any]) -> tuple[bytes, list[News]]:
        """Return the incarnation of the server that a new socket leads to, be it for calls or for a subscription.

        Args:
            replies: what the server said to `INTRODUCTION`; an error is an exception among them.

        Raises:
            ConfigurationError: the server is a replica, or it refuses INFO where that is needed.
            ConnectionError: a node of a Cluster has become a replica.
            ValueError: it is no reply to INFO.
        """
        refused = next((reply for reply in replies if isinstance(reply, BaseException)), None)
        if refused is not None:
            news = self._info_refused(refused)
            incarnation = NAMELESS
        elif not all(isinstance(reply, bytes) for reply in replies):
            raise ValueError(f"no reply to INFO: {replies!r:.100}")
        else:
            info = read_info(b"\r\n".join(replies))
            news = self._check_info(info)  # first: that a replica has been found there gives no socket to the master up
            incarnation = info.incarnation.encode()
        return incarnation, [*news, *self.see_incarnation(incarnation)]

    def see_incarnation(self, incarnation: bytes) -> list[News]:
        """Note which server is the master now; sockets to any other are of no use any more."""
        if incarnation == self.known.incarnation:
            return [Seen()]
        # Mark, then look: of two threads that connect to one server, one sees the other.
        self.known = Known(incarnation, Offset(self._options.drift_factor))
        return [Moved(), Seen()]

    def check_independent(self) -> None:
        """Raise a `ConfigurationError` if the server is another master, too."""
        named = [one for one in self.peers if one.incarnation not in (UNKNOWN, NAMELESS)]
        for addresses in shared_servers([(one.address, server_of(one.incarnation).decode()) for one in named]):
            if self.address in addresses:
                raise ConfigurationError(one_server(addresses), option="nodes")

    def demoted(self, incarnation: bytes) -> list[News]:
        """Note that the server of this incarnation is a replica; if it was the master, none is known now."""
        return self.see_incarnation(UNKNOWN) if incarnation == self.known.incarnation else []

    def _check_info(self, info: ServerInfo) -> list[News]:
        """Judge what INFO says: refuse a replica or a node of a Cluster, and warn of a policy that evicts."""
        if info.is_replica and self.marker is None:  # it counts as down
            raise ConnectionError("it has become a replica: another node of the cluster has its slots")
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
            text = f"{self.address} may evict locks: set maxmemory-policy to noeviction (it is {info.policy})"
            return self._problem("eviction", text)
        self.problems.pop("eviction", None)
        return []

    def _info_refused(self, error: BaseException) -> list[News]:
        """Refuse a master without INFO if a guard needs it, else warn: a replica or an evicting policy goes unseen."""
        if self.guard_ms > 0:
            raise ConfigurationError(
                f"{self.address} refuses INFO ({error}), and restart_guard={self._options.restart_guard} needs it: "
                "allow the command, or set restart_guard=0",
                option="restart_guard",
            )
        return self._problem("info", f"{self.address} refuses INFO: whether it is a replica or may evict is not known")

    def _problem(self, kind: str, text: str) -> list[News]:
        if self.problems.get(kind) == text:
            return []
        self.problems[kind] = text
        return [Problem(text)]

    # Whether it answers ---------------------------------------------------------------------------------------------

    def opened(self) -> list[News]:
        """Note that a connection was opened: the master has taken the credentials, and can be used."""
        self.config_error, self.was_sound = None, True
        return self._is_back() if self.down is not None else []

    def answered(self, now: float) -> list[News]:
        """Count a master that is down as back if it goes on answering: nobody opens another connection to find out."""
        if self._answers_since is None:
            self._answers_since = now
        elif now - self._answers_since > ANSWERS_SECONDS:  # else it might be down and back with each call
            return self._is_back()
        return []

    def _is_back(self) -> list[News]:
        self.down = None
        return [Back()]

    def failed(self, why: str) -> list[News]:
        """Note that a connection broke, or could not be opened; which server is there now, nobody can tell."""
        self.config_error = None
        return self._is_down(Down(why))

    def turned_out(self, error: ConfigurationError) -> list[News]:
        """Note a mistake in the configuration; if the master could be used before, that is one more way to be down."""
        if not self.was_sound:
            self.config_error = error
        return self._is_down(Down(str(error), is_mistake=True))

    def _is_down(self, down: Down) -> list[News]:
        self._answers_since = None
        if self.down is not None:
            return []
        self.down = down.why
        return [down]

    # Its vote and its guard -----------------------------------------------------------------------------------------

    @property
    def may_begin_guard(self) -> bool:
        """True if scripts may begin a guard where they find no marker."""
        return self.has_shown_marker or sum(one.was_sound for one in self.peers) >= quorum_of(len(self.peers))

    def found_guard(self, found_ms: int) -> list[News]:
        """Note the guard that the marker names; if another client has a larger one, all masters get that."""
        self.has_shown_marker = True
        if found_ms <= self.guard_ms:  # or it was found on another master while this connection was opened
            return []
        for one in self.peers:
            one.guard_ms = max(one.guard_ms, found_ms)
        text = (
            f"{self.address} has a larger restart guard than this client ({found_ms / 1000:.2f} s, not "
            f"{self._options.guard_ms / 1000:.2f} s): the larger one is used. relock doctor says who has set it: "
            "if that was a mistake, relock guard --lower ends it; else set the same restart_guard everywhere"
        )
        return self._problem("guard", text)

    def without_vote(self, now_us: int, until_us: int, now: float) -> list[News]:
        """Note that the master refused to vote until `until_us` on its clock, which showed `now_us`.

        The reply may be old, if nobody has read from the connection since: what is known of the clock tells.
        """
        self.has_shown_marker = True
        vote_at = min(now + (until_us - now_us) / 1e6, until_us / 1e6 - self.offset.low)
        is_news = vote_at > max(self.vote_at + GUARD_NEWS_SECONDS, now)
        self.vote_at = vote_at
        return [WithoutVote(vote_at - now)] if is_news else []

    # Its clock ------------------------------------------------------------------------------------------------------

    def granted_at(self, granted_us: int, incarnation: bytes, arrived_at: float) -> float:
        """Return the earliest of our times at which a grant can have been made whose message came at `arrived_at`.

        Minus infinity where our samples of the master's clock say nothing of that: they are another server's, or the
        clock stepped a moment ago. `NOT_YET` where the grant seems to lie in the future: then the clock has stepped,
        and a new sample must show that.
        """
        known, offset = self.known
        if incarnation != known or incarnation == NAMELESS or arrived_at < self.trusted_from:
            return NEVER
        return offset.shown_at(granted_us / 1e6, arrived_at)

    def stepped(self, seconds: float, shown_us: int) -> list[News]:
        """Note that the master's clock and ours moved apart by `seconds` at once, and the master's showed `shown_us`.

        Among several masters, what the master gives counts for nothing until every lease is over that it may have ended
        early, or the step was ours: taking its vote from it takes a moment, and may fail.
        """
        trusted_from = self.offset.stepped_at
        if self.is_one_of_several:
            trusted_from += self.guard_ms / 1000
            self._distrusted[shown_us] = trusted_from
            for old in list(self._distrusted)[:-STEPS_MAX]:
                self._distrusted.pop(old, None)
        self.trusted_from = max(self.trusted_from, trusted_from)  # another thread may have found another server there
        return [Stepped(seconds, shown_us)]

    def trust(self, shown_us: int) -> None:
        """Trust the master again after the step at `shown_us`, which our own clock made; other steps still count."""
        self._distrusted.pop(shown_us, None)
        left = None
        while left != self._distrusted:  # another thread may see a step just now
            left = self._distrusted.copy()
            self.trusted_from = max([self.offset.stepped_at, *left.values()])


def make_facts(addresses: Iterable[str], options: ClientOptions) -> list[MasterFacts]:
    """Return the facts of the masters with these addresses, all of one client."""
    made = [MasterFacts(index, address, options) for index, address in enumerate(addresses)]
    for one in made:
        one.peers = made
    return made


def server_of(incarnation: bytes) -> bytes:
    """Return the run id of an incarnation: a first replica changes the incarnation, but not the process or its data."""
    return incarnation.partition(b":")[0]


def as_guard_ms(field: bytes) -> int | None:
    """Return the guard (ms) that a marker's `guard_ms` names, or None where that can be no guard."""
    found_ms = int(field) if field.isdigit() and len(field) < 16 else GUARD_MS_END
    return found_ms if found_ms < GUARD_MS_END else None
