"""End of a hold, of one level of a hold, or of a place in the queue."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from relock._caches import Cache
from relock._core.effects import Answer, Ask, Clock, Effect, Failure
from relock._core.flows.ask import first_of_each, nth_of_each
from relock._core.hold import Hold
from relock._core.lock_spec import ALIVE_MS, QUEUE_MS, LockSpec, noted, rest_request, token_ms
from relock._core.quorum import count_status, is_count_certain, is_status
from relock._core.tasks import UndoTask
from relock._keys import LockKeys
from relock._scripts import Call, Prepared, load

AnswersFlow = Generator[Effect, Sequence[Answer], Sequence[Answer]]
_countings: Cache[int | bytes, Prepared] = Cache()


def end_call(keys: LockKeys, owner: bytes, fence: int, ttl: float) -> Call:
    """Return the call that ends the hold of `owner` and the place of its waiter, and wakes the next waiter.

    The next waiter is not given the lock: only the release of a hold does that.
    """
    return load(keys.script_name("release")).call(keys, owner=owner, fence=fence, token_ms=token_ms(ttl), hand=0)


class Ending(NamedTuple):
    """Outcome of the masters' answers to the end of a hold.

    Attributes:
        is_lost: a quorum had nothing to end: the hold was lost before.
        is_confirmed: a quorum has ended it.
        is_awaited: each master has ended it or is silent, and late answers may show that the silent ones did too.
        is_left: a master may still have it, or get it later, so it must be undone. False while `is_awaited`.
    """

    is_lost: bool
    is_confirmed: bool
    is_awaited: bool
    is_left: bool


def judge_end(hold: Hold, answers: Sequence[Answer]) -> Ending:
    """Return the outcome of `answers` to the end of a hold, where not every master has confirmed it."""
    released, quorum = count_status(answers, b"released"), hold.quorum
    silent = sum(isinstance(answer[0], Failure) and answer[0].awaited for answer in answers)
    is_awaited = silent > 0 and released + silent == len(answers) and not hold.healing_pending
    return Ending(
        is_lost=released < quorum <= count_status(answers, b"absent"),
        is_confirmed=released >= quorum,
        is_awaited=is_awaited,
        is_left=not is_awaited and hold.may_be_left(answers),
    )


def end_wait(spec: LockSpec, waiter: bytes, until: float) -> Ask:
    """Return the request that ends any hold of `waiter`, and its place in the queue."""
    return Ask((end_call(spec.keys, waiter, 0, spec.ttl),), until)


def give_back_call(keys: LockKeys, owner: bytes, ticket: int = 0) -> Call:
    """Return the call that ends any hold of an attempt; the waiter keeps its place, with `ticket` if not 0."""
    return load(keys.script_name("give_back")).call(
        keys,
        owner=owner,
        ticket=ticket,
        alive_ms=ALIVE_MS,
        queue_ms=QUEUE_MS,
    )


def give_back(spec: LockSpec, owner: bytes, ticket: int | None, until: float) -> Ask:
    """Return the request that ends, on all masters, any hold of an attempt."""
    return Ask((give_back_call(spec.keys, owner, ticket or 0),), until)


def undo_call(task: UndoTask, now: float) -> Call:
    """Return the call that carries out an undo at `now`."""
    if task.keeps_place:
        return give_back_call(task.keys, task.owner, task.ticket)
    if task.rest_until > now:
        return rest_request(task.rest_until - now, task.token, task.ttl).call(task.keys, task.owner)
    return end_call(task.keys, task.owner, task.token, task.ttl)


def leave_call(keys: LockKeys, owner: bytes) -> Call:
    """Return the call that gives up the place in the queue of a waiter that has left."""
    return load(keys.script_name("leave")).call(keys, owner=owner)


def count_request(hold: Hold, count: int) -> Prepared:
    """Return the request that writes a count of the hold, prepared but for the owner."""
    note = hold.spec.options.note
    value = count if note is None else noted(count, note)
    return _countings.get(value) or _countings.keep(value, load("count").prepare(count=value, lease_ms=0))


def write_count(hold: Hold, count: int, clock: Clock, node_timeout: float, answers: Sequence[Answer]) -> AnswersFlow:
    """Go on writing the hold count, where the masters have been asked once, and have given these `answers`.

    The hold stays valid until its deadline, unless so many masters answer *absent* that the others are no quorum.
    """
    if count_status(answers, b"void"):  # a request that came too late is repeated once, with a new clock sample
        call = count_request(hold, count).call(hold.keys, hold.owner)
        answers = yield Ask((call,), clock() + node_timeout, is_count_certain, ends=True)
    hold.drop_absent(first_of_each(answers))
    return answers


def write_counts(counts: Sequence[tuple[Hold, int]], clock: Clock, node_timeout: float) -> AnswersFlow:
    """Write the counts of several holds in one batch, as `write_count` does for one.

    Wait for all masters; but once an owner has begun to write a newer count, only for a quorum: these counts are
    outdated then, and may even arrive after the newer one.
    """

    def is_outdated(_answers: Sequence[Answer] = ()) -> bool:
        return any(hold.wanted != count for hold, count in counts)

    calls = tuple([count_request(hold, count).call(hold.keys, hold.owner) for hold, count in counts])
    for _ in range(2):
        answers = yield Ask(calls, clock() + node_timeout, is_outdated)
        if is_outdated() or not any(is_status(reply, b"void") for answer in answers for reply in answer):
            break
    for i, (hold, _) in enumerate(counts):
        hold.drop_absent(nth_of_each(answers, i))
    return answers


class Counting(NamedTuple):
    """Outcome of the masters' answers to a new hold count.

    Attributes:
        is_written: every master that has answered has written it.
        is_awaited: a master is silent, and may have received the request too late, so that it was void.
    """

    is_written: bool
    is_awaited: bool


def judge_count(answers: Sequence[Answer]) -> Counting:
    """Return the outcome of `answers` to a new hold count."""
    said = [answer for answer in answers if not (isinstance(answer[0], Failure) and answer[0].awaited)]
    return Counting(is_written=not may_be_uncounted(said), is_awaited=len(said) < len(answers))


def may_be_uncounted(answers: Sequence[Answer], place: int = 0) -> bool:
    """Return whether a master may have another count than it was told: it was silent, or got the request too late.

    `place` is that of the hold among the holds whose counts were written.
    """
    for answer in answers:
        reply = answer[place]
        if isinstance(reply, Failure) or reply[0] == b"void":
            return True
    return False
