"""Slots: the places of a semaphore, each of which one owner can have.

A semaphore can't be a counter on several masters. With `limit` permits on each of N masters and a quorum of q, up to
N·limit/q clients could each find a permit on a quorum: with three masters and a limit of 2, three clients. So the
permits are numbered. Each master gives each slot to one owner at most, and a permit is a quorum of grants of *one*
slot: what holds for a lock holds for each slot. Hence at most `limit` owners have a permit.

A lone master gives slots as well, the lowest that is free.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from relock._core.effects import Answer
from relock._core.quorum import REFUSALS, is_status
from relock._owner import handed_slot


def free_slots(answers: Sequence[Answer], quorum: int) -> list[int]:
    """Return the slots that a quorum has free, by its refusals."""
    replies: list[Any] = [answer[0] for answer in answers]
    refusals = [reply for reply in replies if reply.__class__ is list and reply[0] in REFUSALS]
    free = Counter(slot for reply in refusals for slot in reply[-1].split())
    return [int(slot) for slot, masters in free.items() if masters >= quorum]


def slot_of(owner: bytes, answers: Sequence[Answer]) -> int:
    """Return the slot of a permit, by the `answers` to its acquire; -1 if it is several permits, which have none.

    If a releaser gave its own slot to a waiter, the name of the new `owner` ends with that slot.
    """
    handed = handed_slot(owner)
    if handed is not None:
        return handed
    granted: Any = next(answer[0] for answer in answers if is_status(answer[0], b"granted"))
    slot: int = granted[3]
    return slot
