"""Votes and validity: pure arithmetic over the masters' answers.

The algorithm of the acquire is that of the Redlock page of the Redis documentation. For renewals: a master that
confirmed a request, sent at ``t0``, keeps the lease at least until ``t0 + ttl - drift`` on the client's clock. So the
hold is safe while a quorum of such ends lies ahead: until the q-th largest of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from relock._core.effects import Answer, Failure, Handed, Reply

DRIFT_SECONDS_MIN = 0.002  # Redis ends a lease up to a millisecond early or late
NEVER = float("-inf")
REFUSALS = (b"refused", b"queued", b"proposed")  # the statuses of a request that found the lock held, or another's turn
TOO_LATE = "granted too late: its lease was over"
VOID = "got the request too late to act on it"


def quorum_of(masters: int) -> int:
    """Return the number of masters that make a majority of `masters`."""
    return masters // 2 + 1


def drift_of(ttl: float, drift_factor: float) -> float:
    """Return the seconds by which a client shortens a lease of `ttl` seconds: clocks run at different rates."""
    return drift_factor * ttl + DRIFT_SECONDS_MIN


def deadline_of(ends: Sequence[float], quorum: int) -> float:
    """Return D, the moment until which at least `quorum` of the leases that end at `ends` are sure to run."""
    return ends[0] if len(ends) == 1 else sorted(ends, reverse=True)[quorum - 1]


def gather_seconds(round_trips: Sequence[float], quorum: int, least: float, most: float) -> float:
    """Return how many seconds a waiter to which one master has given the lock waits for the messages of a quorum.

    That is `least` (s), plus as long as the next request would take: the `quorum`-th of the `round_trips` (s). To wait
    so costs no more than to ask too early, after which the waiter has to give the lock back. If the releaser is about
    as far from each master as the waiter is, the messages come in this time.

    `most` (s) bounds the part beside `least`, because the round trip to a master may be unknown.
    """
    return least + min(max(0.0, sorted(round_trips)[quorum - 1]), most)


class Grant(NamedTuple):
    """Outcome of an attempt: a quorum granted the hold.

    Attributes:
        token: the fencing token, the largest that a master granted.
        end: until when the hold is surely valid.
        lease_ends: until when each master surely keeps the hold.
        settled: a quorum gave that very token, so the release need not write it to the others.
        answers: each master's answer; the driver writes late answers into this list.
        begins: the earliest time of a releaser's grant; None if the masters granted a request of this client.
        is_short: a releaser gave the hold for less than the lock's lease; the watchdog must ask for the full lease.
        is_repeated: a request under the same name went before and had no answer: the hold may be granted twice.
    """

    token: int
    end: float
    lease_ends: list[float]
    settled: bool
    answers: Sequence[Answer]
    begins: float | None = None
    is_short: bool = False
    is_repeated: bool = False


class Refused(NamedTuple):
    """Outcome of an attempt: a quorum answered, and another owner has the lock or comes first.

    Attributes:
        holder: ``<client>:<uuid>`` of the holder, or None.
        ahead: how many waiters come first.
        lease_left: seconds until the holder's lease ends; below 0 if it has no end.
        ticket: the largest ticket that a master proposed, or None if the caller asked for no place in the queue.
        undecided: a master may have granted the lock all the same, so that an undo is needed.
        placed: every master that has answered (a quorum) has written that ticket, and none has granted the lock.
        note: the note of the holder, if the caller has waited in vain, and has a note of its own; else None.
    """

    holder: str | None
    ahead: int
    lease_left: float
    ticket: int | None
    undecided: bool
    placed: bool = False
    note: str | None = None


class NoQuorum(NamedTuple):
    """Outcome of an attempt: too few masters answered.

    Attributes:
        failures: the failures of the other masters.
        answered: how many answered with a vote.
        vote_in: seconds until enough masters without a vote get it for a quorum; None if even all would be too few.
        granted: a master granted the lock.
        away: a master has neither voted nor said when it votes, and may do so before the others have their votes.
    """

    failures: tuple[Failure, ...]
    answered: int
    vote_in: float | None
    granted: bool = False
    away: bool = False

    @property
    def permanent(self) -> bool:
        """True if patience cannot help: the masters that may ever answer are less than a quorum."""
        masters = self.answered + len(self.failures)
        return masters - sum(failure.permanent for failure in self.failures) < quorum_of(masters)

    def lacked_time(self, *, was_short: bool) -> bool:
        """Return whether there would be a quorum if each master that failed for lack of time had answered.

        If the look `was_short`, that includes masters whose answers are still awaited.
        """
        masters = self.answered + len(self.failures)
        late = sum(failure.no_time or (was_short and failure.awaited) for failure in self.failures)
        return self.answered + late >= quorum_of(masters)

    @property
    def undecided(self) -> bool:
        """True if a master has granted the lock, or may have."""
        return self.granted or any(failure.sent for failure in self.failures)


Outcome = Grant | Refused | NoQuorum


def is_status(answer: Reply | Failure, status: bytes) -> bool:
    """Return whether a master replied with this status."""
    return answer.__class__ is list and answer[0] == status


def is_given(answer: Reply | Failure | None) -> bool:
    """Return whether a master gave a hold, or a longer lease for one."""
    return answer.__class__ is list and answer[0] in (b"granted", b"extended", b"healed")


def count_status(answers: Sequence[Answer], status: bytes) -> int:
    """Return the number of masters that replied with `status` to the only call of an `Ask`."""
    count = 0
    for answer in answers:
        reply = answer[0]
        if reply.__class__ is list and reply[0] == status:
            count += 1
    return count


def judge(answers: Sequence[Answer], masters: Sequence[str], end: float, now: float) -> Outcome:
    """Return the outcome of an attempt, from the answers of `masters`, in their order.

    Args:
        answers: the answer of each to the only call.
        masters: their addresses.
        end: the moment until which a grant is surely valid: ``t0 + ttl - drift``.
        now: the moment at which the answers have been processed.
    """
    tokens, ends, quorum = [], [], quorum_of(len(answers))
    for answer in answers:
        reply = answer[0]
        if reply.__class__ is list and reply[0] == b"granted":
            tokens.append(reply[2])
            ends.append(end)
        else:
            ends.append(NEVER)
    if len(tokens) < quorum or now >= end:
        return _judge_failure(answers, masters)
    token = max(tokens)
    return Grant(token, end, ends, tokens.count(token) >= quorum, answers)


def judge_handed(
    grants: Sequence[Handed], masters: Sequence[str], quorum: int, now: float, *, ttl: float, drift_factor: float
) -> Grant | None:
    """Return the hold that a releaser gave, by the `grants` of one name; None if they are too few, or too late.

    `ttl` (s) is the lease of the lock. The lease that was given counts from the grant, whose time
    `relock._core.clocks.Offset.shown_at` computes, and not from the arrival of its message.
    """
    ends = [NEVER] * len(masters)
    answers: list[Answer] = [()] * len(masters)
    tokens, earliest, is_short = set(), float("inf"), False
    for master, _, token, granted_us, lease, begins in grants:
        tokens.add(token)
        is_short = is_short or lease < ttl
        if begins != NEVER:
            earliest = begins if begins < earliest else earliest
            ends[master] = begins + lease - drift_of(lease, drift_factor)
            answers[master] = ([b"granted", granted_us, token],)
    end = deadline_of(ends, quorum)
    if now >= end:
        return None
    is_given_by_all = NEVER not in ends
    if not is_given_by_all:
        unknown = "when it granted, if it has, is not known"
        answers = [answer or (Failure(master, unknown),) for answer, master in zip(answers, masters, strict=True)]
    is_settled = is_given_by_all and len(tokens) == 1
    # `tuple.__new__` takes all fields of a Grant, and avoids the class's `__new__`, which is Python code.
    return tuple.__new__(Grant, (max(tokens), end, ends, is_settled, answers, earliest, is_short, False))


def _judge_failure(answers: Sequence[Answer], masters: Sequence[str]) -> Refused | NoQuorum:
    replies, refusals, failures, granted = [], [], [], 0
    for answer in answers:
        reply: Any = answer[0]
        replies.append(reply)  # read once: another thread may write a late reply into `answers` meanwhile
        if isinstance(reply, Failure):
            failures.append(reply)
        elif reply[0] == b"granted":
            granted += 1
        elif reply[0] in REFUSALS:
            refusals.append(reply)
    quorum = quorum_of(len(answers))
    if len(refusals) + granted >= quorum and refusals:
        undecided = granted > 0 or any(failure.sent for failure in failures)
        return _refusal(refusals, granted, quorum, undecided=undecided)
    votes_in = []
    for master, reply in zip(masters, replies, strict=True):
        if is_status(reply, b"no_vote"):
            votes_in.append((reply[2] - reply[1]) / 1e6)
            why = f"has no vote for {votes_in[-1]:.1f} s more: it may have forgotten leases (restart_guard)"
            failures.append(Failure(master, why, sent=False))
        elif is_status(reply, b"granted") and granted >= quorum:
            failures.append(Failure(master, TOO_LATE))
        elif is_status(reply, b"void"):
            failures.append(Failure(master, VOID, sent=False, no_time=True))
    answered = len(refusals) + (granted if granted < quorum else 0)
    vote_in = _vote_in(votes_in, answered, len(answers))
    away = answered + len(votes_in) < len(answers)
    return NoQuorum(tuple(failures), answered, vote_in, granted=granted > 0, away=away)


def _vote_in(votes_in: list[float], answered: int, masters: int) -> float | None:
    """Return the seconds until a quorum has votes; None if too few masters have answered for that."""
    missing = quorum_of(masters) - answered
    return sorted(votes_in)[missing - 1] if 0 < missing <= len(votes_in) else None


def _refusal(refusals: Sequence[Reply], granted: int, quorum: int, *, undecided: bool) -> Refused:
    """Combine the refusals: a quorum has the lock free after `lease_left`, with at most `ahead` waiters before us."""
    lefts, ahead, holders, ticket = [0.0] * granted, [0] * granted, [], None
    placed = granted == 0  # a master that granted the lock has dropped the waiter's place
    for reply in refusals:
        lefts.append(reply[2] if reply[2] >= 0 else float("inf"))
        ahead.append(reply[3])
        if reply[4]:
            holders.append(reply[4])
        if reply[0] != b"refused":
            placed = placed and reply[0] == b"queued" and ticket in (None, reply[5])
            ticket = reply[5] if ticket is None else max(ticket, reply[5])
    left_ms = _smallest(lefts, quorum)
    return Refused(
        holder=_most_often(holders).decode(errors="replace") if holders else None,
        ahead=_smallest(ahead, quorum),
        lease_left=-1.0 if left_ms == float("inf") else left_ms / 1000,
        ticket=ticket,
        undecided=undecided,
        placed=placed and ticket is not None,
    )


# `sorted`, and `max` with a key, use kilobytes of a thread's stack, which a waiter keeps for its whole wait. With one
# master there is nothing to choose, so neither is called.


def _smallest(values: list[Any], nth: int) -> Any:
    return values[0] if len(values) == 1 else sorted(values)[nth - 1]


def _most_often(names: list[bytes]) -> bytes:
    return names[0] if len(names) == 1 else max(names, key=names.count)


# A master that gives an attempt back answers "released", and puts the attempt's waiter back into the queue.
_PLACED = (b"queued", b"no_vote", b"released")


def may_be_granted(answers: Sequence[Answer]) -> bool:
    """Return whether a master has granted a request, or may have, or may yet."""
    return any(
        is_status(answer[0], b"granted") or (isinstance(answer[0], Failure) and answer[0].sent) for answer in answers
    )


def may_keep_anything(answers: Sequence[Answer], since_us: Sequence[float]) -> bool:
    """Return whether a master may have a hold or a place of a waiter that was served or has left, or may get one late.

    `since_us` are the times on the masters' clocks at which the wait ended. A place from before that time ends with the
    hold, or has ended. A later place stays until it is undone.
    """
    for answer, since in zip(answers, since_us, strict=True):
        reply: Any = answer[0]
        if isinstance(reply, Failure):
            if reply.sent:
                return True
        elif reply[0] == b"granted" or (reply[0] in _PLACED and reply[1] >= since):
            return True
    return False


def is_attempt_certain(answers: Sequence[Answer]) -> bool:
    """Return whether the awaited answers can't change the outcome of an attempt, which is a grant or a refusal.

    An attempt without a quorum waits for every master: its error must name the masters that failed, and no others.
    """
    quorum = quorum_of(len(answers))
    granted = count_status(answers, b"granted")
    if granted >= quorum:
        return True
    refused = awaited = 0
    for answer in answers:
        reply = answer[0]
        if isinstance(reply, Failure):
            awaited += reply.awaited
        elif reply[0] not in (b"granted", b"no_vote", b"void"):
            refused += 1
    return granted + awaited < quorum <= granted + refused


def is_release_certain(answers: Sequence[Answer]) -> bool:
    """Return whether a quorum confirmed a release, or a quorum had nothing to release."""
    quorum = quorum_of(len(answers))
    return count_status(answers, b"released") >= quorum or count_status(answers, b"absent") >= quorum


def is_count_certain(answers: Sequence[Answer]) -> bool:
    """Return whether a quorum has written the hold count, or too few masters are left for that.

    A master without the hold writes no count. An awaited master may not know the script: only while the call waits is
    the script sent to it in time.
    """
    quorum = quorum_of(len(answers))
    counted = count_status(answers, b"counted")
    awaited = sum(isinstance(answer[0], Failure) and answer[0].awaited for answer in answers)
    return counted >= quorum or counted + awaited < quorum


def is_token_known(answers: Sequence[Answer]) -> bool:
    """Return whether a quorum of the masters remembers the token that was written."""
    return count_status(answers, b"fenced") >= quorum_of(len(answers))


def is_token_safe(grant: Grant, lease_ms: int) -> bool:
    """Return whether no later grant can get a smaller token, even if only the masters that granted know this one.

    A master that does not know the token proposes at least its clock by the time this lease has ended there. So the
    token must lie below that time, for each grant that was counted. Otherwise a quorum must know the token first.
    ``docs/internals/argument.md`` has the argument.
    """
    highest = grant.token - lease_ms * 1000
    for answer in grant.answers:
        reply: Any = answer[0]
        if reply.__class__ is list and reply[0] == b"granted" and highest >= reply[1]:
            return False
    return True
