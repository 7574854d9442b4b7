"""A log handler or a callback hangs for hours of virtual time, while the client must renew its holds."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relock import LockLostError, Loss
from relock.testing import Lab

HOUR = 3600.0
LOGGER = logging.getLogger("relock")


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


@pytest.fixture
def log_to() -> Iterator[Callable[[Callable[[Any], object]], None]]:
    """Give the log to a function, from DEBUG on."""
    handler, level = logging.Handler(), LOGGER.level

    def log_to(handle: Callable[[Any], object]) -> None:
        handler.emit = handle  # type: ignore[method-assign,assignment]
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.DEBUG)

    yield log_to
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


@pytest.mark.parametrize("what", ["the log", "on_event", "on_lost"])
def test_a_handler_that_hangs_costs_no_other_hold_its_renewal(
    lab: Lab, log_to: Callable[[Callable[[Any], object]], None], what: str
) -> None:
    losses: list[Loss] = []

    def hang(_: object) -> None:
        lab.sleep(24 * HOUR)

    callbacks: dict[str, Callable[[Any], object]] = {"on_lost": losses.append}
    if what == "the log":
        log_to(hang)
    else:
        callbacks[what] = hang
    client, operator = lab.client("client", ttl=10.0, **callbacks), lab.client("operator")  # type: ignore[arg-type]

    def hold() -> float:
        kept, lost = client.lock("kept"), client.lock("lost")
        with kept:
            lost.acquire()
            assert operator.force_release("lost")
            lab.sleep(HOUR)
            with pytest.raises(LockLostError):
                lost.release()
            return kept.remaining()

    assert lab.run(hold, within=2 * HOUR)[0] > 0.0
    assert client.statistics().renewals > HOUR / 10
    if what != "on_lost":
        assert [loss.lock for loss in losses] == ["lost"]
