"""Votes and validity: pure arithmetic over what the masters answered.

Source of the algorithm: the Redlock page of the Redis documentation, for the acquire. For what renewals are worth:
a master that confirmed at a request sent at ``t0`` keeps the lease at least until ``t0 + ttl - drift`` on the
client's clock, so the hold is safe while a quorum of such ends lies ahead, that is until the q-th largest of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attrs import frozen

from relock._core.effects import Failure, Reply

DRIFT_SECONDS_MIN = 0.002  # Redis expires with a resolution of a millisecond, in either direction
NEVER = float("-inf")


def quorum_of(masters: int) -> int:
    """How many of `masters` make a majority."""
    return masters // 2 + 1


def drift_of(ttl: float, drift_factor: float) -> float:
    """By how many seconds less a client trusts a lease of `ttl` seconds than the masters do."""
    return drift_factor * ttl + DRIFT_SECONDS_MIN


def deadline_of(ends: Sequence[float], quorum: int) -> float:
    """D: the moment until which at least `quorum` of the leases that end at `ends` are sure to run."""
    return sorted(ends, reverse=True)[quorum - 1]


class Granted(NamedTuple):
    """A quorum granted the hold.

    Attributes:
        token: its fencing token, the largest that was granted.
        ends: until when each master surely keeps it.
        settled: every master knows that token, so the release need not write it back.
    """

    token: int
    ends: list[float]
    settled: bool


class Refused(NamedTuple):
    """A quorum answered, and somebody else has the lock or comes first.

    Attributes:
        holder: ``<client>:<uuid>`` of who has it, or None.
        ahead: how many waiters come first.
        lease_left: seconds until the holder's lease ends; below 0 when it has none.
        ticket: the caller's place in the queue, or None when it is not queued.
        undecided: a master may have granted it all the same: undo before you leave.
    """

    holder: str | None
    ahead: int
    lease_left: float
    ticket: int | None
    undecided: bool


@frozen
class NoQuorum:
    """Too few masters answered.

    Attributes:
        failures: those that failed.
        answered: how many answered with a vote.
        vote_in: seconds until a master that answered without a vote gets it; None when no vote is awaited.
    """

    failures: tuple[Failure, ...]
    answered: int
    vote_in: float | None

    @property
    def permanent(self) -> bool:
        """Whether no patience mends it."""
        return any(failure.permanent for failure in self.failures)

    @property
    def undecided(self) -> bool:
        """Whether a master may have granted it all the same."""
        return any(failure.sent for failure in self.failures)


Outcome = Granted | Refused | NoQuorum


def is_status(answer: Reply | Failure, status: bytes) -> bool:
    """Whether a master replied with this status."""
    return not isinstance(answer, Failure) and answer[0] == status


def count_grants(answers: Sequence[Reply | Failure], end: float, now: float) -> Granted | None:
    """The grant, if a quorum gave one and their leases still run; `end` is ``t0 + ttl - drift``."""
    ends, tokens = [], []
    for answer in answers:
        if is_status(answer, b"granted"):
            tokens.append(answer[2])  # type: ignore[index]
            ends.append(end)
        else:
            ends.append(NEVER)
    if len(tokens) < quorum_of(len(answers)) or now >= end:
        return None
    token = max(tokens)
    return Granted(token, ends, settled=tokens.count(token) == len(answers))


def judge(answers: Sequence[Reply | Failure], masters: Sequence[str], end: float, now: float) -> Outcome:
    """What an attempt has come to, from the answers of `masters`, in their order."""
    grant = count_grants(answers, end, now)
    if grant is not None:
        return grant
    refusals = [a for a in answers if isinstance(a, list) and a[0] in (b"refused", b"queued")]
    granted = sum(is_status(answer, b"granted") for answer in answers)
    failures = [a for a in answers if isinstance(a, Failure)]
    if len(refusals) + granted >= quorum_of(len(answers)) and refusals:
        undecided = granted > 0 or any(failure.sent for failure in failures)
        return _refusal(refusals, undecided=undecided)
    votes_in = []
    for master, answer in zip(masters, answers, strict=True):
        if isinstance(answer, list) and answer[0] == b"no_vote":
            votes_in.append((answer[2] - answer[1]) / 1e6)
            why = f"has no vote for {votes_in[-1]:.1f} s more: it may have forgotten leases (restart_guard)"
            failures.append(Failure(master, why, sent=False))
        elif is_status(answer, b"granted"):
            failures.append(Failure(master, "granted too late: its lease was over, or no quorum granted"))
        elif is_status(answer, b"void"):
            failures.append(Failure(master, "got the request too late to act on it", sent=False))
    vote_in = min(votes_in) if votes_in and len(votes_in) == len(failures) else None
    return NoQuorum(tuple(failures), len(refusals), vote_in)


def _refusal(refusals: Sequence[Reply], *, undecided: bool) -> Refused:
    last = max(refusals, key=lambda reply: reply[2])  # who has it for longest is who matters
    _, _, pttl_ms, ahead, holder, *ticket = last
    return Refused(
        holder=holder.decode(errors="replace") or None,
        ahead=ahead,
        lease_left=pttl_ms / 1000,
        ticket=ticket[0] if ticket else None,
        undecided=undecided,
    )


def count_status(answers: Sequence[Reply | Failure], status: bytes) -> int:
    """How many masters replied with `status`."""
    count = 0
    for answer in answers:
        count += is_status(answer, status)
    return count
