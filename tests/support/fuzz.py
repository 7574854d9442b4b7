"""Common part of random tests: the number of examples, the seed, and the errors that must not happen meanwhile."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings

from relock import RelockWarning

PHASES = (Phase.explicit, Phase.generate)


def fuzz(examples: int, *, shrink: bool = True) -> Callable[[Any], Any]:
    """Play so many examples, from the seed that the header prints.

    Without `shrink`, a failing example is not made shorter: if each example waits, that takes minutes.
    """
    chosen = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(*PHASES, Phase.shrink) if shrink else PHASES,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    return lambda test: seed(int(os.environ["RELOCK_SEED"]))(chosen(test))


class Complaints(logging.Handler):
    """Handler that keeps the failures of relock's own that are logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


@contextmanager
def without_complaint() -> Iterator[None]:
    """Assert that no thread of relock meets an unexpected error meanwhile; warnings are allowed."""
    complaints, logger = Complaints(), logging.getLogger("relock")
    logger.addHandler(complaints)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RelockWarning)
            yield
    finally:
        logger.removeHandler(complaints)
    assert not complaints.seen
