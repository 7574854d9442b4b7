"""Helpers that all flows share."""

from collections.abc import Sequence

from relock._core.effects import Answer, Failure, Reply


def first_of_each(answers: Sequence[Answer]) -> list[Reply | Failure]:
    """Return the reply or failure of each master for the only call of an `Ask`."""
    return [answer[0] for answer in answers]


def nth_of_each(answers: Sequence[Answer], n: int) -> list[Reply | Failure]:
    """Return the reply or failure of each master for call `n` of an `Ask`."""
    return [answer[n] for answer in answers]
