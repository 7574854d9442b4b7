"""Waiting without signs of life: who is told by nobody that its turn has come waits until a lease ends, or longer.

With them it would find out within seconds, which is no longer than a busy machine may take to tell it.
"""

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from relock._core.effects import Effect
from relock._core.flows.tend import Tended
from relock._runtime.background import janitor

NEVER_SECONDS = 600.0  # longer than any test


@contextmanager
def without_signs_of_life() -> Iterator[None]:
    """No client of this process gives any meanwhile, but where a subscription was made anew or a lease is over."""
    with patch.object(janitor, "SIGN_OF_LIFE_SECONDS", NEVER_SECONDS):
        yield


@contextmanager
def without_any_sign_of_life() -> Iterator[None]:
    """Not even there: where requests are counted, and none is lost."""
    with patch.object(janitor, "tend", _no_sign_of_life):
        yield


def _no_sign_of_life(*_: object) -> Generator[Effect, None, Tended]:
    """In place of `relock._core.flows.tend.tend`."""
    return Tended(set(), well=True, lease_left=math.inf)
    yield  # like the other, it is a generator
