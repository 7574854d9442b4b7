"""Common part of random tests: the number of examples, the seed, and what must not happen meanwhile."""

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
    """Tries so many examples, from the seed that the header prints.

    Without `shrink` it does not look for a shorter example that fails, too: if each example waits, that takes minutes.
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
    """Keeps what relock logs as a failure of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


@contextmanager
def without_complaint() -> Iterator[None]:
    """Asserts that no thread of relock meets an unexpected error meanwhile; warnings are allowed."""
    complaints, logger = Complaints(), logging.getLogger("relock")
    logger.addHandler(complaints)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RelockWarning)
            yield
    finally:
        logger.removeHandler(complaints)
    assert not complaints.seen
