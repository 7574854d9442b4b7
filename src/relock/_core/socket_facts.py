"""Facts that one socket has shown of its master since it was opened, and the arguments of scripts made of them.

Like `MasterFacts`, this is pure: methods return the news.
"""

from typing import Any

from relock._core.effects import Failure, Reply
from relock._core.master_facts import NAMELESS, UNKNOWN, InDoubt, MasterFacts, News, as_guard_ms
from relock._core.quorum import is_given
from relock._errors import ConfigurationError
from relock._options import ClientOptions
from relock._scripts import pack_argument

_FIRST_CONTACT = (
    "it gives no vote before a quorum of the masters was reached: this client has seen no restart guard there, and may "
    "not begin one alone"
)


class SocketFacts:
    """Facts that one socket has shown.

    Attributes:
        guard_ms: for how long the server must have no vote after it may have forgotten leases.
        guarded: whether there is such a guard.
        incarnation: the incarnation of the server that the socket leads to.
        is_retired: True if no further request may be sent on the socket.
        named_ms: the guard that scripts are told; below 0 at a first contact, see lua/_lib/vote.lua.
        identity: the arguments of scripts that name the incarnation and the guard, packed.
        identity_head: with a guard, the packed bytes before the time of the last vote; `identity_tail` comes after it.
        opened_us: the master's clock when its incarnation was learnt.
        voted_us: the master's clock at the last vote on this socket.
    """

    def __init__(self, facts: MasterFacts, options: ClientOptions) -> None:
        self._facts = facts
        self._own_guard_ms = options.guard_ms
        self.guard_ms = facts.guard_ms
        self.guarded = facts.guard_ms > 0
        self.incarnation = UNKNOWN
        self.is_retired = False
        self.opened_us = self.voted_us = 0
        self.named_ms = 0
        self.identity = self.identity_head = self.identity_tail = b""

    # What the socket has shown --------------------------------------------------------------------------------------

    def introduced(self, incarnation: bytes, time: Any, marker: Any) -> list[News]:
        """Note the server's replies when the socket was opened; take the guard of other clients if it is larger.

        Args:
            incarnation: the server's incarnation, by its INFO.
            time: the reply to TIME.
            marker: the reply to the request for the marker's guard: one field; `[None]` without a marker.

        Raises:
            ConfigurationError: other clients use a guard, and this client can't.
            Exception: a reply is this error.
            ValueError: a reply has another form than expected.
        """
        self.incarnation = incarnation
        for reply in (time, marker):
            if isinstance(reply, BaseException):
                raise reply
        if not (isinstance(time, list) and len(time) == 2 and all(isinstance(n, bytes) and n.isdigit() for n in time)):
            raise ValueError(f"no time: {time!r:.100}")
        self.opened_us = int(time[0]) * 1_000_000 + int(time[1])
        news, found_ms = list[News](), self._guard_of_others(marker)
        if found_ms is not None:
            self.guarded = True
            news = self._facts.found_guard(found_ms)
        self.identify()
        return news

    def _guard_of_others(self, marker: Any) -> int | None:
        """Return the guard (ms) that the marker of other clients names; None where there is no marker.

        If another program has written the marker, return our own guard: the scripts treat such a marker as missing, and
        begin our guard.
        """
        if marker == [None]:
            return None
        if not (isinstance(marker, list) and len(marker) == 1 and isinstance(marker[0], bytes)):
            raise ValueError(f"no field of the marker: {marker!r:.100}")
        found_ms, address = as_guard_ms(marker[0]), self._facts.address
        if found_ms != 0 and self.incarnation == NAMELESS and not self._facts.by_marker:
            raise ConfigurationError(
                f"{address} refuses INFO, and other clients use a restart guard there: allow the command, or read what "
                'restart_guard_by="marker" does not cover',
                option="restart_guard",
            )
        if found_ms is None and self.guard_ms == 0:
            raise ConfigurationError(
                f"{address}: another program has written to {self._facts.marker}, so that it is not known how long a "
                "guard other clients have: set theirs, or delete that key when no lease is left",
                option="restart_guard",
            )
        return self.guard_ms if found_ms is None else found_ms

    def note_marker(self) -> None:
        """Note that the master has shown its marker, if it gave a vote with a guard: such a vote needs the marker."""
        if self.voted_us and self.guarded:
            self._facts.has_shown_marker = True

    def look_into(self, reply: Reply, step: float, sent_at: float, now: float) -> tuple[Reply | Failure, list[News]]:
        """Judge a reply which shows that the master has no vote, or that its clock and ours may have moved apart.

        Return the reply, or the `Failure` to use instead of it; and the news.
        """
        facts, news = self._facts, list[News]()
        if reply[0] == b"no_vote":
            now_us, until_us = reply[1:3]
            if self.named_ms < 0 and until_us <= now_us:
                return Failure(facts.address, _FIRST_CONTACT, sent=False), news
            news += facts.without_vote(now_us, until_us, now)
            # Retire the socket in two cases, so that a new one reads what is true now:
            # * The time without a vote is over already: other clients have set a larger guard in the marker.
            # * The guard began after this socket was opened: the running server may have a new replication id. A socket
            #   that goes on naming the old one begins the guard again, as do the other clients' sockets in their turn,
            #   and no client would ever get a vote.
            self.is_retired |= until_us <= now_us or until_us - self.guard_ms * 1000 > self.opened_us
        if step:
            news += facts.stepped(step, reply[1])
            if facts.is_one_of_several and is_given(reply):
                return Failure(facts.address, f"its clock and ours moved apart by {step:+.3f} s at once"), news
            return reply, news
        if facts.offset.is_in_doubt:
            news.append(InDoubt())
        # An extended hold is still there, so its renewal counts, unless the request was sent before the step was seen:
        # then the new lease may have begun before the step.
        if is_given(reply) and (reply[0] != b"extended" or sent_at < facts.offset.stepped_at):
            return Failure(facts.address, "its clock and ours moved apart all at once a moment ago"), news
        return reply, news

    def identify(self) -> None:
        """Take the largest guard that any master of this client has shown: a restarted master has forgotten its own.

        At a first contact no script may begin a guard, because the client may name masters that do not exist: scripts
        are told so by a minus. A plus marks a guard that other clients have set: it takes the vote from no master.
        """
        self.note_marker()
        facts = self._facts
        self.guard_ms = facts.guard_ms
        self.guarded = self.guarded or self.guard_ms > 0
        self.named_ms = self.guard_ms if facts.may_begin_guard else -self.guard_ms
        guard = pack_argument((b"+%d" if self.named_ms > self._own_guard_ms else b"%d") % self.named_ms)
        self.identity = pack_argument(self.incarnation) + guard
        self.identity_head = b"$%d\r\n%b%b" % (len(self.incarnation) + 17, self.incarnation, facts.proof)
        self.identity_tail = b"\r\n" + guard
