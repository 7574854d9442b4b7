"""Facts of one master: which server it is, its clock, whether it answers, whether it has a vote, its guard.

This module does no I/O and reports nothing. Callers pass in the master's replies; each method returns the `News` in
them, for the runtime to act on.

Three modules decide what a reply is worth. `MasterFacts`, here, has what all sockets to a master have shown together.
`relock._core.socket_facts` has what one socket has shown: the server behind it, and the arguments that name that server
to scripts. `Connection._credit`, in `relock._runtime.masters.connections`, holds each reply against both: a reply that
may be from another server, or from before a step of the clock, counts as no answer.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from attrs import frozen

from relock._core.clocks import NOT_YET, Offset
from relock._core.effects import Answer, Failure
from relock._core.info import ServerInfo, one_server, read_info, read_refusals, refused_in_scripts, shared_servers
from relock._core.quorum import NEVER, quorum_of
from relock._errors import ConfigurationError
from relock._keys import master_key
from relock._options import ClientOptions

INTRODUCTION = (("INFO", "server"), ("INFO", "replication"), ("INFO", "memory"))  # what each new socket is asked
UNKNOWN = b""  # the incarnation of a master that has not been reached
NAMELESS = b"-"  # the incarnation of a master whose INFO does not name it, also in the messages of its scripts
GUARD_MS_END = 2**40  # 34 years, more than any option takes; `lua/_lib/vote.lua` ends there, too
GUARD_NEWS_SECONDS = 0.1  # a guard that ends later than the last one by more than this is another guard
STEPS_MAX = 64  # steps that are remembered of one clock
ANSWERS_SECONDS = 1.0  # a master that was down is back once it has answered for so long


@frozen
class Moved:
    """News that another server is the master now, or that the master's server is unknown now."""


@frozen
class Seen:
    """News that a new socket has shown which server the master is, perhaps the same as before."""


@frozen
class Down:
    """News that the master does not answer, for the reason `why`; `is_mistake`: a mistake in the configuration."""

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
class NewCredentials:
    """News that connections must authenticate with new credentials."""


@frozen
class Problem:
    """News that something is wrong with the master, in words for its user."""

    text: str


@frozen
class RoundTrip:
    """News that the master's reply was read so many `seconds` after its request was made; a sample of such times."""

    seconds: float


News = RoundTrip | Moved | Seen | Down | Back | WithoutVote | InDoubt | Stepped | NewCredentials | Problem


class Known(NamedTuple):
    """Server that is the master now, and its clock: one value, so that no thread mixes up the facts of two servers.

    Attributes:
        incarnation: its run id and its replication id; `UNKNOWN`, or `NAMELESS` if INFO does not say.
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
        marker: the key of its marker; None for a node, where that key would be in another slot than the locks.
        no_reply_yet: the answer for the master after it was asked, until it answers.
        asked_shortly: the failure of the master if it had less time than the others to answer.
        asked_late: the failure of the master if it was connected too late to be asked.
        by_marker: a guard relies on the marker alone.
        version: the version of the server; empty while it is not known.
        problems: texts for the user, by kind of problem.
        refusals: the commands that the server refuses in scripts, with its words; None before it was asked.
        has_shown_marker: True once this client has seen the marker: if it is missing later, the master has forgotten.
        vote_at: our time from which the master has a vote again, if it has none now.
        trusted_from: our time; grants and renewals for requests that were sent earlier do not count.
        sample_at: our time from which the next reply is a sample of the round trip; infinity if none is wanted.
        down: why the master does not answer; None if it answers.
        was_sound: True once a connection to the master was opened, so that it could be used.
        config_error: why the server can be no master of this client, if it never could be used.
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
        self.refusals: dict[str, str] | None = None
        self.guard_ms = options.guard_ms
        self.by_marker = options.restart_guard_by == "marker"
        self.has_shown_marker = self.was_sound = False
        self.vote_at = 0.0
        self.known = Known(UNKNOWN, Offset(options.drift_factor))
        self.trusted_from = NEVER
        self.sample_at = NOT_YET
        self.down = self.config_error = None
        self._answers_since: float | None = None  # when a master that is down began to answer again
        self._options = options
        self._distrusted: dict[int, float] = {}  # until when, by the time (us) that the clock showed after its step

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
        """Return the incarnation of the server that a new socket leads to, and the news.

        Args:
            replies: the server's replies to `INTRODUCTION`; an error is an exception among them.

        Raises:
            ConfigurationError: the server is a replica or a node of a Cluster, or has no name, which a guard needs.
            ConnectionError: a node of a Cluster has become a replica.
            ValueError: a reply is no reply to INFO.
        """
        if any(isinstance(reply, BaseException) for reply in replies):
            # The error's words are left out: they differ by the connection, and this is to be said once.
            news = self._without_name("it refuses INFO", "whether it is a replica or may evict is not known")
            incarnation = NAMELESS
        elif not all(isinstance(reply, bytes) for reply in replies):
            raise ValueError(f"no reply to INFO: {replies!r:.100}")
        else:
            info = read_info(b"\r\n".join(replies))
            news = self._check_info(info)  # first: a replica raises here, so the master's own sockets stay in use
            incarnation = info.incarnation.encode() if info.run_id else NAMELESS
            if not info.run_id:
                news += self._without_name("INFO names no run_id", "a restart may go unnoticed")
        return incarnation, [*news, *self.see_incarnation(incarnation)]

    def see_incarnation(self, incarnation: bytes) -> list[News]:
        """Note which server is the master now; the news tell the runtime to give up sockets to any other."""
        if incarnation == self.known.incarnation:
            return [Seen()]
        # Mark, then look: of two threads that connect to one server, one sees the other.
        self.known = Known(incarnation, Offset(self._options.drift_factor))
        return [Moved(), Seen()]

    def check_independent(self) -> None:
        """Raise a `ConfigurationError` if the server is also another master of this client."""
        named = [one for one in self.peers if one.incarnation not in (UNKNOWN, NAMELESS)]
        for addresses in shared_servers([(one.address, server_of(one.incarnation).decode()) for one in named]):
            if self.address in addresses:
                raise ConfigurationError(one_server(addresses), option="nodes")

    def demoted(self, incarnation: bytes) -> list[News]:
        """Note that the server of this incarnation is a replica; if it was the master, no server is known now."""
        return self.see_incarnation(UNKNOWN) if incarnation == self.known.incarnation else []

    def _check_info(self, info: ServerInfo) -> list[News]:
        """Judge a server by its INFO: refuse a replica or a node of a Cluster, and warn of a policy that evicts."""
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

    def tried_in_scripts(self, reply: Any, time: Any) -> list[News]:
        """Note the commands that the server refuses in scripts; a guard does without INFO there, with a warning.

        Args:
            reply: the reply to `relock._scripts.probe`; if it is an error, nothing is learnt.
            time: the reply to TIME.

        Raises:
            ConfigurationError: the server refuses TIME in scripts, and only there.
        """
        found = read_refusals(reply)
        words = found and found.get("TIME")
        if words and not isinstance(time, BaseException):  # else a right is missing: the reply to TIME says so
            raise ConfigurationError(f"{self.address}: {refused_in_scripts('TIME', words)}", option="nodes")
        self.refusals = found
        words = found and found.get("PUBLISH")
        unheard = self.without_messages(refused_in_scripts("PUBLISH", words)) if words else []
        return [*unheard, *self._guard_without_info()]

    def without_messages(self, why: str) -> list[News]:
        """Warn once, as the server refuses what tells waiters of their turn."""
        return [] if "waking" in self.problems else self._problem("waking", f"{self.address}: {why}")

    @property
    def proof(self) -> bytes:
        """Sign for scripts of how they prove the incarnation of the server: see ``lua/_lib/vote.lua``."""
        if self.by_marker:
            return b"="
        return b"!" if self.refusals and "INFO" in self.refusals else b"?"

    def _guard_without_info(self) -> list[News]:
        """Warn of a guard, also another client's, for which scripts would ask INFO where the server refuses that."""
        words = self.refusals and self.refusals.get("INFO")
        if not words or self.guard_ms == 0 or self.by_marker:
            return []
        return self._problem("scripts", f"{self.address}: {refused_in_scripts('INFO', words)}")

    def _without_name(self, why: str, unknown: str) -> list[News]:
        """Refuse a master that does not say which server it is, if the guard asks for that; else warn."""
        if self.guard_ms > 0 and not self.by_marker:
            raise ConfigurationError(
                f"{self.address}: {why}, and restart_guard={self._options.restart_guard} needs it: allow the command, "
                'set restart_guard=0, or read what restart_guard_by="marker" does not cover',
                option="restart_guard",
            )
        return self._problem("info", f"{self.address}: {why}: {unknown}")

    def _problem(self, kind: str, text: str) -> list[News]:
        if self.problems.get(kind) == text:
            return []
        self.problems[kind] = text
        return [Problem(text)]

    # Whether it answers ---------------------------------------------------------------------------------------------

    def opened(self) -> list[News]:
        """Note that a connection was opened: the master has accepted the credentials, and can be used."""
        self.config_error, self.was_sound = None, True
        return self._is_back() if self.down is not None else []

    def answered(self, now: float) -> list[News]:
        """Count a master that is down as back if it goes on answering for a while on a connection that exists."""
        if self._answers_since is None:
            self._answers_since = now
        elif now - self._answers_since > ANSWERS_SECONDS:  # else it might be down and back with each call
            return self._is_back()
        return []

    def _is_back(self) -> list[News]:
        self.down = None
        return [Back()]

    def failed(self, why: str) -> list[News]:
        """Note that a connection broke, or could not be opened; another server may be at the address now."""
        self.config_error = None
        return self._is_down(Down(why))

    def turned_out(self, error: ConfigurationError) -> list[News]:
        """Note a mistake in the configuration; if the master could be used before, it only counts as down."""
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
        if found_ms <= self.guard_ms:  # also if another master has just shown the same guard
            return self._guard_without_info()
        for one in self.peers:
            one.guard_ms = max(one.guard_ms, found_ms)
        text = (
            f"{self.address} has a larger restart guard than this client ({found_ms / 1000:.2f} s, not "
            f"{self._options.guard_ms / 1000:.2f} s): the larger one is used. relock doctor says which client has set "
            "it: if that was a mistake, relock guard --lower ends it; else set the same restart_guard everywhere"
        )
        return [*self._problem("guard", text), *self._guard_without_info()]

    def without_vote(self, now_us: int, until_us: int, now: float) -> list[News]:
        """Note that the master refused to vote until `until_us` on its clock, which showed `now_us`.

        The reply may have lain unread for long, so the known bounds of the master's clock limit the result.
        """
        self.has_shown_marker = True
        vote_at = min(now + (until_us - now_us) / 1e6, until_us / 1e6 - self.offset.low)
        is_news = vote_at > max(self.vote_at + GUARD_NEWS_SECONDS, now)
        self.vote_at = vote_at
        return [WithoutVote(vote_at - now)] if is_news else []

    # Its clock ------------------------------------------------------------------------------------------------------

    def granted_at(self, granted_us: int, incarnation: bytes, arrived_at: float) -> float:
        """Return the earliest of our times at which a grant can have been made whose message came at `arrived_at`.

        Return minus infinity if our samples of the master's clock do not help: they are of another server, or the clock
        stepped a moment ago. Return `NOT_YET` if the grant seems to lie in the future: then the clock has stepped, and
        a new sample must show that.
        """
        known, offset = self.known
        if incarnation != known or incarnation == NAMELESS or arrived_at < self.trusted_from:
            return NEVER
        return offset.shown_at(granted_us / 1e6, arrived_at)

    def stepped(self, seconds: float, shown_us: int) -> list[News]:
        """Note that the master's clock and ours moved apart by `seconds` at once, and the master's showed `shown_us`.

        Among several masters, grants and renewals of this one then do not count. They count again when every lease is
        over that it may have ended early, or when the step turns out to be ours. This does not wait for the quarantine,
        which takes a moment and may fail.
        """
        trusted_from = self.offset.stepped_at
        if self.is_one_of_several:
            trusted_from += self.guard_ms / 1000
            self._distrusted[shown_us] = trusted_from
            for old in list(self._distrusted)[:-STEPS_MAX]:
                self._distrusted.pop(old, None)
        self.trusted_from = max(self.trusted_from, trusted_from)  # `stepped_at` begins anew with another server
        return [Stepped(seconds, shown_us)]

    def trust(self, shown_us: int) -> None:
        """Trust the master again after the step at `shown_us`, which was our own clock's; other steps still count."""
        self._distrusted.pop(shown_us, None)
        left = None
        while left != self._distrusted:  # another thread may note a step meanwhile
            left = self._distrusted.copy()
            self.trusted_from = max([self.offset.stepped_at, *left.values()])


def make_facts(addresses: Iterable[str], options: ClientOptions) -> list[MasterFacts]:
    """Return the facts of the masters with these addresses, all of one client."""
    made = [MasterFacts(index, address, options) for index, address in enumerate(addresses)]
    for one in made:
        one.peers = made
    return made


def server_of(incarnation: bytes) -> bytes:
    """Return the run id of an incarnation, which stays when a first replica gives the server a new replication id."""
    return incarnation.partition(b":")[0]


def as_guard_ms(field: bytes) -> int | None:
    """Return the guard (ms) in a marker's field `guard_ms`; None if the value can be no guard."""
    found_ms = int(field) if field.isdigit() and len(field) < 16 else GUARD_MS_END
    return found_ms if found_ms < GUARD_MS_END else None
