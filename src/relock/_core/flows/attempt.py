"""Outermost acquire: one attempt on all masters."""

from collections.abc import Generator, Sequence
from typing import Any

from relock._core.effects import Answer, Ask, Clock, Effect, Failure
from relock._core.lock_spec import ALIVE_MS, QUEUE_MS, TICKET_AT_ONCE, LockSpec
from relock._core.quorum import (
    TOO_LATE,
    Grant,
    NoQuorum,
    Outcome,
    Refused,
    count_status,
    is_attempt_certain,
    is_status,
    is_token_known,
    is_token_safe,
    judge,
    may_be_granted,
)
from relock._scripts import Call, load

HEARTBEAT_SECONDS = 2.5  # so a lost wake-up costs less than 3 s, and a waiter that has stopped less than 10 s
ATTEMPTS_PER_LOOK = 3  # attempts in one look: a request that came too late is repeated, with a new clock sample

First = tuple[float, Sequence[Answer]]
"""Time at which masters were asked before a flow began, and their answers."""

Attempt = Generator[Effect, Any, tuple[Outcome, Sequence[Answer], float]]


def take_call(spec: LockSpec, owner: bytes, value: int | bytes, proposal: int) -> Call:
    """Return the call that takes the lock if it is free and no other waiter's turn has come.

    `value` is what the masters keep for the owner: a hold count with its note, or a slot. `proposal` is a fencing
    token for all of several masters to give; 0: none.
    """
    templates = spec.templates
    if value == templates.usual:
        return templates.acquire_with(proposal).call(spec.keys, owner)
    return templates.taking.script.call(
        spec.keys,
        owner=owner,
        **{templates.kept: value},
        lease_ms=templates.lease_ms,
        token_ms=templates.token_ms,
        fair=templates.fair,
        proposal=proposal,
    )


def enqueue_call(spec: LockSpec, owner: bytes, value: int | bytes, ticket: int) -> Call:
    """Return the call that takes the lock if it is free and the waiter's turn, else a place in the queue."""
    templates = spec.templates
    if value == templates.usual and ticket == TICKET_AT_ONCE:
        return templates.enqueue.call(spec.keys, owner)
    return templates.enqueue.script.call(
        spec.keys,
        owner=owner,
        **{templates.kept: value},
        lease_ms=templates.lease_ms,
        fair=templates.fair,
        ticket=ticket,
        alive_ms=ALIVE_MS,
        queue_ms=QUEUE_MS,
    )


def attempt(spec: LockSpec, call: Call, clock: Clock, until: float, first: First | None = None) -> Attempt:
    """Make one attempt on all masters with `call`; if the masters were asked already, go on from `first`.

    `until` is when the caller gives up on silent masters, if that is before the node timeout. Return the outcome, the
    answers (late answers still go into this list), and the time at which the last request was sent.
    """
    before: Sequence[Answer] = ()
    for _ in range(ATTEMPTS_PER_LOOK):
        if first is None:
            sent_at = clock()
            answers = yield Ask((call,), min(until, sent_at + spec.node_timeout), is_attempt_certain)
        else:
            (sent_at, answers), first = first, None
        outcome = judge(answers, spec.masters, sent_at + spec.validity, clock())
        is_late = outcome.__class__ is not Grant and count_status(answers, b"void") > 0
        if before:
            outcome, answers = _remember(spec.masters, before, answers, outcome)
        if not is_late:
            break
        before = answers
    if outcome.__class__ is Grant and len(answers) > 1 and not is_token_safe(outcome, int(spec.templates.lease_ms)):
        failed = yield from write_token(spec, outcome.token, outcome.end, clock, until)
        outcome = failed or outcome
    return outcome, answers, sent_at


def _remember(
    masters: Sequence[str], before: Sequence[Answer], answers: Sequence[Answer], outcome: Outcome
) -> tuple[Outcome, Sequence[Answer]]:
    """Return the outcome of two requests under one name, where the second may have come too late to a master.

    Such a master may have granted the first request, and no later answer says so. Then its first answer counts, and the
    answers are a copy of this moment. Without such a master, late answers still go into the list.

    In a grant such a master does not count, because its lease began before the others': it only may have the hold.
    """
    first_counts = [
        may_be_granted([first]) and not _is_conclusive(second) for first, second in zip(before, answers, strict=True)
    ]
    if not any(first_counts):
        return outcome, answers
    known = [before[i] if counts else answers[i] for i, counts in enumerate(first_counts)]
    if isinstance(outcome, Grant):
        for i, counts in enumerate(first_counts):
            if counts:
                known[i] = (Failure(masters[i], "it may have granted an earlier request"),)
        return outcome._replace(answers=known), known
    return outcome._replace(undecided=True) if isinstance(outcome, Refused) else outcome._replace(granted=True), known


def _is_conclusive(answer: Answer) -> bool:
    """Return whether a master has acted on a request, and so on all requests before it."""
    return answer[0].__class__ is list and not is_status(answer[0], b"void")


def write_token(
    spec: LockSpec, token: int, end: float, clock: Clock, until: float
) -> Generator[Effect, Any, NoQuorum | None]:
    """Write a fencing token to a quorum: later grants get larger ones, though the masters' clocks differ by a lease.

    The hold with this token is valid until `end`; `until` is when the caller gives up. Return None, or the outcome if
    too few masters have the token in time.
    """
    call = load("fence").call(spec.keys, fence=token, lease_ms=spec.templates.lease_ms)
    answers = yield Ask((call,), min(until, end, clock() + spec.node_timeout), is_token_known)
    if is_token_known(answers) and clock() < end:
        return None
    why = TOO_LATE if is_token_known(answers) else "its fencing token reached no quorum"
    replies = zip([answer[0] for answer in answers], spec.masters, strict=True)
    failures = [reply if isinstance(reply, Failure) else Failure(master, why) for reply, master in replies]
    return NoQuorum(tuple(failures), 0, None, granted=True)
