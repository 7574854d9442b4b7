"""An exception at any instruction of what notes a semaphore's blocks: no block leaves a permit behind."""

from collections.abc import Callable
from itertools import count

import pytest
from support.instructions import Interrupt, Strike
from support.masters import Deployment
from support.until import until

from relock import Client, Semaphore
from relock._permits import SemaphoreHandle

pytestmark = pytest.mark.every_quorum

NOTES = {
    function.__code__
    for function in (
        SemaphoreHandle._enter,
        SemaphoreHandle._inside,
        SemaphoreHandle._leave,
    )
}


def use(semaphore: Semaphore) -> None:
    """Enter a block, and another one in it."""
    with semaphore, semaphore:
        pass


def test_an_interrupt_while_a_block_is_noted(connect: Callable[..., Client], server: Deployment) -> None:
    client = connect(server.url, ttl=30.0)
    use(client.semaphore("warm", 2))
    left: list[tuple[Semaphore, str]] = []
    for number in count(1):
        semaphore = client.semaphore(f"noted-{number}", 2)
        strike = Strike(number, within=NOTES.__contains__)
        try:
            with strike:
                use(semaphore)
        except Interrupt:
            pass
        left.append((semaphore, strike.where))
        if not strike.where:
            break
    assert number > 50, "the strikes reach the notes"
    for semaphore, where in left:
        assert not semaphore._entered, f"nothing is noted after an interrupt in {where}"

        def is_free(semaphore: Semaphore = semaphore) -> bool:
            return semaphore.info().used == 0

        until(is_free, within=10, what=f"the permits are free after an interrupt in {where}")
