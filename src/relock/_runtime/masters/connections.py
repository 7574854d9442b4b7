"""Connections to one master: one caller at a time uses a connection, and each reply goes to its own request.

A `Connection` belongs to the caller that checked it out. It keeps the requests that have no reply yet, in the order in
which they were sent. So each reply finds its request, even if the request's caller has gone on. After any error the
connection is closed and not given back: no reply can come from a closed socket.
"""

import logging
from collections import deque
from collections.abc import Sequence
from operator import call as apply
from typing import Any, Protocol

from attrs import evolve
from redis import exceptions as redis_errors

from relock._core.asking import PATIENT_PART, Round
from relock._core.clocks import Offset
from relock._core.effects import Ask, Failure, Reply
from relock._core.master_facts import RoundTrip, server_of
from relock._core.quorum import NEVER, is_given
from relock._core.socket_facts import SocketFacts
from relock._keys import LockKeys
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.masters.opener import Opener
from relock._runtime.masters.round import InFlight, Login, Pending
from relock._runtime.net.channel import Channel
from relock._runtime.net.failures import failure_of, words_of
from relock._runtime.net.raw_connection import RawConnection
from relock._scripts import TOKEN_MAX, Call, Prepared, Script, pack_argument

logger = logging.getLogger("relock.masters")

_UNKNOWN_SCRIPT = Failure("", "NOSCRIPT", sent=False)
_OF_A_REPLICA = ("READONLY", "MASTERDOWN")  # anywhere in the text: Redis 6.2 puts words before a script's error
NOT_AFTER_PART = 0.1  # of the node timeout, by which a not-after time may be too early
WAIT_PART = 0.8  # of a master's time to answer, which its replicas may take
_VOTES = frozenset((b"granted", b"queued", b"healed"))  # replies that show that the master had a vote, and has written
SAMPLE_SECONDS = 0.1  # between two samples of a master's round trip
NO_PLACE = -1  # the place of a reply to WAIT or ASKING, which belongs to no single call
ASKING = b"*1\r\n$6\r\nASKING\r\n"


class Home(Protocol):
    """Pool of a connection, as the connection and its users see it."""

    opener: Opener

    def forget(self, connection: "Connection") -> None:
        """Forget a connection that is closed."""

    def give_back(self, connection: "Connection", now: float) -> None:
        """Let the next caller use the connection."""

    def drop(self, connection: "Connection", round_: Round, error: BaseException) -> None:
        """Give up a connection that broke while a round was asked on it."""

    def put_back(self, connection: "Connection", round_: Round, now: float) -> None:
        """Give back a connection on which a round was asked, unless the master was silent on it for too long."""


class Connection:
    """One open connection.

    Args:
        is_own: the connection is not for calls, but for renewals, undos and heartbeats, or for an event loop.

    Attributes:
        login: the newest credentials that it has authenticated with, or that were there when it was opened.
        is_refused: True if the master has refused new credentials, so that another connection must take over.
        shown: the facts that its socket has shown of the master: incarnation, marker and clock.
    """

    channel: Channel

    def __init__(self, pool: Home, raw: RawConnection, *, is_own: bool = False) -> None:
        self.pool = pool
        self.raw = raw
        self.is_own = is_own
        self.idle_since = 0.0
        self.in_flight: deque[Round | InFlight | Login] = deque()
        opener = self._opener = pool.opener
        self.facts = opener.facts
        self._clock = opener.clock
        self._node_timeout = opener.node_timeout
        self._patience_ms = opener.node_timeout * 1000
        self._min_replicas = opener.options.min_replicas
        self.shown = SocketFacts(opener.facts, opener.options)
        self.login = opener.credentials.latest  # read first: what the provider gives on connecting is no older
        self.is_refused = False
        self._unlearned: set[str] = set()  # names of scripts that the master does not know yet
        self._has_partial_reply = False  # the next bytes may be the rest of a reply that the parser has begun
        self._not_after = b""  # the packed not-after time of requests whose own is from `_until` to `_until_last`
        self._until = self._until_last = self._until_low = NEVER

    def open(self) -> None:
        """Connect; raise as `Opener.open` does."""
        self._opener.open(self.raw, self.shown)
        self.channel = self._opener.platform.open_channel(self.raw, self._node_timeout)

    # Requests and replies -------------------------------------------------------------------------------------------

    def request(self, round_: Round) -> None:
        """Send all calls of a round in one write, each with its not-after time."""
        if not round_.is_simple or self._min_replicas or self._unlearned:
            self._send(InFlight.all_of(round_), source=self._teaches(round_))
            return
        script = round_.script
        own = self._own_arguments(script, round_.until)
        guarded = self.shown.guarded and script.is_vote
        packed = round_.packed[guarded]
        if packed is None:
            packed = round_.packed[guarded] = round_.pack(guarded)
        self.in_flight.append(round_)
        self.channel.send(packed + own)

    def _teaches(self, round_: Round) -> bool:
        """Return whether a round must be sent with the source of its scripts, because the master may not know them.

        That is so for a script that the master lacked lately, and for any node that is about to get a slot (``ASK``).
        """
        names = {call.script.name for call in round_.calls}
        is_unlearned = not self._unlearned.isdisjoint(names)
        self._unlearned -= names
        return is_unlearned or round_.asking

    def _own_arguments(self, script: Script, until: float) -> bytes:
        """Pack the connection's own arguments: the not-after time, and for a vote the incarnation and the guard."""
        count = script.connection_argument_count
        if not count:
            return b""
        offset = self.facts.known.offset
        if not self._until <= until <= self._until_last or offset.low != self._until_low:
            self._pack_not_after(offset, until)
        if count == 1:
            return self._not_after
        shown = self.shown
        if shown.named_ms < self.facts.guard_ms:  # a larger guard is known, or this was a first contact (below 0)
            shown.identify()
        if not shown.guarded:
            return self._not_after + shown.identity
        # The script must prove the incarnation: see lua/_lib/vote.lua.
        return b"%b%b%016d%b" % (self._not_after, shown.identity_head, shown.voted_us, shown.identity_tail)

    def _pack_not_after(self, offset: Offset, until: float) -> None:
        """Pack the not-after time for `until`, and keep it for the requests of the next moment.

        Their own times would be a little later, so theirs is early but safe. It is packed anew after `NOT_AFTER_PART`,
        before requests would be void too early, and when the bounds of the clock change: by a step, another server, or
        a reply that makes them tighter.
        """
        low = offset.low  # read before use: another thread may make the bounds tighter
        self._not_after = b"$16\r\n%016d\r\n" % offset.not_after_us(until)
        self._until, self._until_last, self._until_low = until, until + NOT_AFTER_PART * self._node_timeout, low

    def exchange(
        self, request: Prepared, keys: LockKeys, owner: bytes, sent_at: float, until: float
    ) -> Reply | Failure | Pending:
        """Send one request at `sent_at` and read its reply, on a connection that owes none: the usual case.

        Return the reply or the failure; or, if the reply was not the usual one, a `Pending` for `go_on`.

        Raises:
            redis.RedisError, OSError: the connection broke, or the master is silent; close the connection.
        """
        facts, channel, script = self.facts, self.channel, request.script
        own = self._own_arguments(script, until)
        channel.send(request.pack(keys, owner, own, self.shown.guarded and script.is_vote))
        if not channel.ready(self._patience_ms):  # as in `read`
            raise redis_errors.TimeoutError("Timeout reading from the master")
        taken, now = channel.take(), self._clock()
        incarnation, offset = facts.known  # Receive, then judge: another thread may find another server meanwhile
        is_known = incarnation == self.shown.incarnation and taken.__class__ is bytes
        found = script.match_usual(taken) if is_known else None
        if found is not None:
            return self._credit([*map(apply, script.usual_types, found.groups())], offset, sent_at, now)
        replies = channel.parse(taken)
        if len(replies) == 1 and replies[0].__class__ is list and not channel.has_part():
            return self._judge(replies[0], script, sent_at, now)
        round_ = Round(Ask((request.call(keys, owner),), until), sent_at, [facts.no_reply_yet])
        self.in_flight.append(round_)
        return Pending(round_, replies, now)

    def go_on(self, pending: Pending) -> None:
        """Read the rest of the replies that `exchange` has begun to read, and raise as `exchange` does."""
        self._hand_out(pending.replies, pending.now)
        self.read(pending.round)

    def read(self, round_: Round) -> None:
        """Read until the round has this master's answer or its time is over; pass answers to other rounds meanwhile.

        Raises:
            redis.RedisError, OSError: the connection broke, or the master is silent; close the connection.
        """
        clock, longest = self._clock, self._node_timeout
        while round_.missing:
            left = round_.until - clock()
            is_short = left < PATIENT_PART * longest
            # Poll first: the socket's own time limit begins anew with each signal that this thread handles.
            if not self.channel.wait(left if is_short else longest):
                if is_short:
                    return
                raise redis_errors.TimeoutError("Timeout reading from the master")
            self.receive()

    def _send(self, sent: InFlight, *, source: bool) -> None:
        calls, until = sent.round.calls, sent.round.until
        packed = [self._pack(calls[place], until, source=source) for place in reversed(sent.places)]
        if sent.round.asking:
            packed = [ASKING + one for one in packed]
            sent.places[:] = [either for place in sent.places for either in (place, NO_PLACE)]
        if self._min_replicas and any(call.script.gives for call in calls):
            packed.append(self._wait_for_replicas(sent.round.until))
            sent.places.insert(0, NO_PLACE)
        self.in_flight.append(sent)
        self.channel.send(b"".join(packed))

    def _wait_for_replicas(self, until: float) -> bytes:
        """Pack a WAIT for the writes on this connection, short enough for the reply to come before `until`."""
        options = self._opener.options
        left = WAIT_PART * (until - self._clock())
        words = b"%d" % options.min_replicas, b"%d" % max(1, min(left, options.replica_timeout) * 1000)
        return b"*3\r\n$4\r\nWAIT\r\n" + b"".join(map(pack_argument, words))

    def _pack(self, call: Call, until: float, *, source: bool) -> bytes:
        """Return the call as bytes, with the connection's own arguments."""
        own = self._own_arguments(call.script, until)
        return call.pack(own, self.shown.guarded and call.script.is_vote, source)

    def receive(self) -> None:
        """Take the replies that have come, waiting for the first, and give each to the round that asked for it.

        Raises:
            redis.RedisError, OSError: the connection broke, or the master is silent; close the connection.
        """
        channel, in_flight, facts = self.channel, self.in_flight, self.facts
        sent: Any = in_flight[0] if in_flight and not self._has_partial_reply else None
        taken, now = channel.take(), self._clock()
        incarnation, offset = facts.known  # Receive, then judge: another thread may find another server meanwhile
        is_round = sent.__class__ is Round
        if is_round and incarnation == self.shown.incarnation and taken.__class__ is bytes:
            script = sent.script
            found = script.match_usual(taken)
            if found is not None:
                reply = [*map(apply, script.usual_types, found.groups())]
                answer = (self._credit(reply, offset, sent.sent_at, now),)
                in_flight.popleft()
                sent.answered(facts.index, answer)
                return
        self._hand_out(channel.parse(taken), now)

    def _hand_out(self, replies: Sequence[Any], now: float) -> None:
        """Give each reply to the round that asked for it."""
        in_flight = self.in_flight
        for reply in replies:
            if not in_flight:
                raise redis_errors.InvalidResponse(f"a reply without a request: {reply!r:.100}")
            sent: Any = in_flight[0]
            if sent.__class__ is Login:
                in_flight.popleft()
                self._logged_in(reply)
            elif sent.__class__ is Round:
                answer = self._judge(reply, sent.script, sent.sent_at, now)
                in_flight.popleft()
                self._answer(sent, (answer,), now, is_known=answer is not _UNKNOWN_SCRIPT)
            else:
                self._take(reply, sent, now)
        # If a list was cut between two items, the parser's buffer is empty, and the next item may look like a whole
        # reply. Only if no reply is owed, the next bytes surely begin a new one.
        self._has_partial_reply = bool(in_flight) or self.channel.has_part()

    def _take(self, reply: Any, sent: InFlight, now: float) -> None:
        """Take one of the replies to a request of several calls, or to one with WAIT or ASKING."""
        place = sent.places.pop()
        if place != NO_PLACE:
            sent.replies[place] = self._judge(reply, sent.round.calls[place].script, sent.sent_at, now)
        elif reply.__class__ is list:
            raise _unknown(reply)
        elif reply.__class__ is not bytes:  # the reply to WAIT; bytes are the reply to ASKING
            self._count_replicas(sent, reply)
        if not sent.places:
            self.in_flight.popleft()
            is_known = all(reply is not _UNKNOWN_SCRIPT for reply in sent.replies)
            self._answer(sent.round, sent.replies, now, is_known=is_known)

    def _judge(self, reply: Any, script: Script, sent_at: float, now: float) -> Reply | Failure:
        """Judge a reply to a script: return the reply, or the `Failure` to use instead of it.

        Raises:
            redis.InvalidResponse: no script gives this reply: replies are out of step, or the server is no master.
        """
        if reply.__class__ is bytes:
            reply = script.parse_words(reply) or reply
        if reply.__class__ is list:
            status = reply[0] if reply else None
            if status.__class__ is not bytes or script.shapes.get(status) != [*map(type, reply)]:
                raise _unknown(reply)
            place = script.token_places.get(status)
            if place is not None:
                least = 1 if status == b"granted" else 0  # 0: the master knows no token
                if not least <= reply[place] <= TOKEN_MAX:
                    raise _unknown(reply)
            incarnation, offset = self.facts.known
            shown = self.shown
            if incarnation != shown.incarnation:
                shown.is_retired = True
                if server_of(incarnation) != server_of(shown.incarnation):
                    # Grants of the old server do not count, and nothing is known of its clock any more.
                    return Failure(self.facts.address, "another server has taken its place")
            return self._credit(reply, offset, sent_at, now)
        if isinstance(reply, redis_errors.ResponseError):
            return self._failure(reply)
        raise _unknown(reply)

    def _credit(self, reply: Reply, offset: Offset, sent_at: float, now: float) -> Reply | Failure:
        """Judge a reply as a sample of the master's clock: return the reply, or the `Failure` to use instead of it."""
        facts = self.facts
        if now >= facts.sample_at:
            facts.sample_at = now + SAMPLE_SECONDS
            self._opener.act((RoundTrip(now - sent_at),))
        status, seconds, step = reply[0], reply[1] / 1e6, 0.0
        low, high = seconds - now, seconds - sent_at
        if low > offset.low or high < offset.high or now > offset.look_by:  # else the sample shows nothing new
            step = offset.see(low, high, now)
        # Date, then change: another thread may have dated a step in `stepped_at`, but not set `trusted_from` yet.
        if step or sent_at < facts.trusted_from or sent_at < offset.stepped_at or status == b"no_vote":
            answer, news = self.shown.look_into(reply, step, sent_at, now)
            self._opener.act(news)
            return answer
        if status in _VOTES:
            self.shown.voted_us = reply[1]
        return reply

    def _count_replicas(self, sent: InFlight, confirmed: Any) -> None:
        """Replace each grant and renewal by a `Failure`, unless enough replicas have `confirmed` it."""
        count = confirmed if confirmed.__class__ is int else 0
        if isinstance(confirmed, redis_errors.ResponseError):  # WAIT was refused, but the scripts before it have run
            failure = evolve(self._refused(confirmed), sent=True)
        elif count >= self._min_replicas:
            return
        else:
            why = f"NOREPLICAS: {count} of {self._min_replicas} replicas confirmed in time"
            failure = Failure(self.facts.address, why)
        sent.replies[:] = [failure if is_given(reply) else reply for reply in sent.replies]

    def _failure(self, error: redis_errors.ResponseError) -> Failure:
        if str(error).startswith("NOSCRIPT"):
            return _UNKNOWN_SCRIPT
        if any(sign in words_of(error) for sign in _OF_A_REPLICA):
            self.shown.is_retired = True  # the next connection finds out where the master is now
            self._opener.act(self.facts.demoted(self.shown.incarnation))
        return self._refused(error)

    def _refused(self, error: redis_errors.ResponseError) -> Failure:
        self._opener.platform.log.debug(logger, "%s refused a script: %s", self.facts.address, error)
        return failure_of(self.facts.address, error, sent=True)

    def _answer(self, round_: Round, replies: Sequence[Reply | Failure], now: float, *, is_known: bool) -> None:
        """Hand over a complete answer; if the master did not know a script, send it with its source first.

        If a later request was sent already, do not: that request may end the hold that the script would take, and the
        caller has gone on anyway. Then the next request with that script brings the source. Otherwise a master that is
        always a little slower than a quorum would never learn the script.
        """
        if not is_known and (not self.in_flight or round_.is_awaited):
            unknown = [place for place, reply in enumerate(replies) if reply is _UNKNOWN_SCRIPT]
            self._send(InFlight(round_, now, list(replies), unknown[::-1]), source=True)
            return
        if not is_known:
            calls, why = round_.calls, "it did not know a script, and later requests were sent already"
            overtaken = Failure(self.facts.address, why, sent=False)
            self._unlearned |= {calls[i].script.name for i, reply in enumerate(replies) if reply is _UNKNOWN_SCRIPT}
            replies = [overtaken if reply is _UNKNOWN_SCRIPT else reply for reply in replies]
        round_.answered(self.facts.index, replies)

    # Between two uses -----------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if the connection has authenticated with the newest credentials, or the master has refused that."""
        return self.login is self._opener.credentials.latest and Login not in map(type, self.in_flight.copy())

    @property
    def owes_answers(self) -> bool:
        """True if a request has no reply yet."""
        return any(sent.__class__ is not Login for sent in self.in_flight)

    def log_in(self) -> None:
        """Send the newest credentials, unless they were sent; the reply comes in turn. Raises as `request` does."""
        login = self._opener.credentials.latest
        if login is not None and login is not self.login:
            self.login, self.is_refused = login, False
            self.in_flight.append(Login(self._clock()))
            self.channel.send(b"".join(self.raw.pack_commands([login])))

    def _logged_in(self, reply: Any) -> None:
        """Take the reply to ``AUTH``; after an error, the connection stays what it was until the server ends it."""
        if isinstance(reply, redis_errors.ResponseError):
            self.is_refused = True
            log = self._opener.platform.log
            log.warning(logger, "%s refused new credentials: %s", self.facts.address, words_of(reply))
        elif reply != b"OK":
            raise _unknown(reply)

    def drain(self) -> None:
        """Take the replies to earlier rounds that have come, without waiting, and raise as `read` does."""
        while self.channel.wait(0.0):
            self.receive()

    def silent_for(self, now: float) -> float:
        """Return for how many seconds the master has owed the oldest reply; 0.0 if it owes none."""
        return now - self.in_flight[0].sent_at if self.in_flight else 0.0

    def close(self) -> None:
        """Close the socket; may be called again, and from another thread."""
        self.shown.note_marker()
        self.pool.forget(self)
        try:
            self.raw.disconnect()
        except NETWORK_ERRORS:
            log = self._opener.platform.log
            log.debug(logger, "closing a connection to %s failed", self.facts.address, exc_info=True)


def _unknown(reply: Any) -> redis_errors.InvalidResponse:
    return redis_errors.InvalidResponse(f"a reply that no script gives: {reply!r:.100}")
