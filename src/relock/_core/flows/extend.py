"""Renewals, of one hold for its owner or of many for the watchdog; and healing.

A master may lack a hold that a quorum has just confirmed: it has forgotten the hold (after a restart, say), or was away
at the grant. Healing gives the hold to such a master. A hold that a quorum has forgotten is lost and never put back.
"""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from typing import Any

from relock._core.effects import Answer, Ask, Clock, Effect, Failure, Reply
from relock._core.flows.ask import nth_of_each
from relock._core.hold import Hold
from relock._core.lock_spec import lease_ms, token_ms
from relock._core.quorum import drift_of, is_status
from relock._scripts import Call, load

ROUNDS = 2  # a request that came too late is repeated once, with a new clock sample

AnswersByHold = list[Sequence[Reply | Failure]]


def extend(
    holds: Sequence[Hold], clock: Clock, node_timeout: float, *, ends: bool = False
) -> Generator[Effect, Any, AnswersByHold]:
    """Renew the leases of `holds` on all masters in one batch, and count the answers.

    The shortest of these leases bounds the wait for a silent master, because the answers of the others count only
    before that lease is over.

    Return the masters' answers for each hold. `ends` is that of `Ask`.
    """
    longest = min((node_timeout, *(hold.spec.node_timeout for hold in holds)))
    ttls = [hold.ttl for hold in holds]  # an owner may ask for a longer lease while the request is under way
    calls = tuple([_call(hold, ttl) for hold, ttl in zip(holds, ttls, strict=True)])
    for _ in range(ROUNDS):
        sent_at = clock()
        replies = yield Ask(calls, sent_at + longest, ends=ends)
        answers: AnswersByHold = list(zip(*replies, strict=True))  # the answers by hold, not by master
        now = clock()
        for hold, ttl, answer in zip(holds, ttls, answers, strict=True):
            hold.count_renewal(answer, sent_at, _end(hold, ttl, sent_at), now, ttl)
        if not any(is_status(answer, b"void") for of_hold in answers for answer in of_hold):
            break
    return answers


def find_out(holds: Sequence[Hold], clock: Clock) -> Generator[Effect, Any, None]:
    """Ask the masters whether they have `holds`, until a quorum has said the same of each; no lease gets longer."""

    def is_certain(answers: Sequence[Answer]) -> bool:
        said = [nth_of_each(answers, i) for i in range(len(holds))]
        return all(
            is_confirmed(hold, one) or _is_said(hold, one, b"absent") for hold, one in zip(holds, said, strict=True)
        )

    calls = tuple(
        load(hold.keys.script_name("extend")).call(hold.keys, owner=hold.owner, lease_ms=1, token_ms=1)
        for hold in holds
    )
    answers = yield Ask(calls, clock() + min(hold.spec.node_timeout for hold in holds), is_certain)
    for i, hold in enumerate(holds):
        said = nth_of_each(answers, i)
        hold.is_forced = not is_confirmed(hold, said)
        hold.drop_absent(said)


def _call(hold: Hold, ttl: float) -> Call:
    """Return the call that renews the lease of `hold` for `ttl` seconds."""
    note = hold.untold_note
    if ttl == hold.spec.ttl and note is None:
        return hold.spec.templates.extend.call(hold.keys, hold.owner)
    return load(hold.keys.script_name("extend")).call(
        hold.keys,
        *([] if note is None else [note]),
        owner=hold.owner,
        lease_ms=lease_ms(ttl),
        token_ms=token_ms(ttl),
    )


def _heal_call(hold: Hold, ttl: float) -> Call:
    """Return the call that gives `hold` to a master, for `ttl` seconds."""
    script = load(hold.keys.script_name("heal"))
    value = hold.spec.value_of(hold.kept)
    return script.call(hold.keys, owner=hold.owner, value=value, lease_ms=lease_ms(ttl), fence=hold.token)


def heal(
    holds: Sequence[Hold], is_current: Callable[[Hold], bool], clock: Clock, node_timeout: float
) -> Generator[Effect, Any, tuple[Hold, ...]]:
    """Give `holds`, which a quorum has just confirmed, to the masters that do not have them.

    Only these masters are asked. A master that has lost the hold since (by `force_release`, say) does not get it back:
    a quorum that has forgotten the hold meanwhile must stay without it.

    `is_current` returns whether a hold is still in the book; a release takes it out before anything is sent.

    Return the holds that a master refused, because it has another hold of the lock at the moment. As a rule, that hold
    is of an attempt that finds no quorum, and ends soon. It is left alone, because it may have a quorum if ours was
    released meanwhile.
    """
    refused: list[Hold] = []
    lacking: defaultdict[frozenset[int], list[Hold]] = defaultdict(list)
    for hold in holds:
        lacking[hold.lacking].append(hold)
    for masters, group in lacking.items():
        if masters:
            refused += yield from _heal_on(masters, group, is_current, clock, node_timeout)
    return tuple(refused)


def _heal_on(
    masters: frozenset[int],
    holds: Sequence[Hold],
    is_current: Callable[[Hold], bool],
    clock: Clock,
    node_timeout: float,
) -> Generator[Effect, Any, list[Hold]]:
    """Give `holds` to `masters`; return the holds that one of these masters refused."""
    sent_at = clock()
    until = sent_at + node_timeout
    in_doubt = {}  # holds with an earlier healing that was not answered, and may yet arrive
    for hold in holds:
        # Mark, then look: a release between the two sees that a master may yet get the hold.
        in_doubt[hold] = hold.healing_pending
        hold.healing_pending, hold.late_until = True, until
    holds = [hold for hold in holds if is_current(hold)]
    ttls = [hold.ttl for hold in holds]
    calls = tuple(_heal_call(hold, ttl) for hold, ttl in zip(holds, ttls, strict=True))
    if not calls:
        return []
    replies = yield Ask(calls, until, only=masters)
    now = clock()
    refused = []
    for i, (hold, ttl) in enumerate(zip(holds, ttls, strict=True)):
        said = nth_of_each(replies, i)
        hold.count_healing(said, sent_at, _end(hold, ttl, sent_at), now)
        # If the hold has been released meanwhile, the healing may have reached a master after the release.
        is_silent = any(isinstance(answer, Failure) and answer.sent for answer in said)
        hold.healing_pending = in_doubt[hold] or is_silent or not is_current(hold)
        if any(is_status(answer, b"refused") for answer in said):
            refused.append(hold)
    return refused


def needs_healing(hold: Hold, answers: Sequence[Reply | Failure]) -> bool:
    """Return whether a quorum confirmed the hold in this round, and another master does not have it."""
    return is_confirmed(hold, answers) and any(is_status(answer, b"absent") for answer in answers)


def is_confirmed(hold: Hold, answers: Sequence[Reply | Failure]) -> bool:
    """Return whether a quorum confirmed the hold in this round."""
    return _is_said(hold, answers, b"extended")


def _is_said(hold: Hold, answers: Sequence[Reply | Failure], status: bytes) -> bool:
    return sum(is_status(answer, status) for answer in answers) >= hold.quorum


def _end(hold: Hold, ttl: float, sent_at: float) -> float:
    return sent_at + ttl - drift_of(ttl, hold.spec.drift_factor)
