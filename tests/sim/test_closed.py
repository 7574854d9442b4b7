"""A closed client sends nothing any more, because the connections for that would stay open."""

from collections.abc import Callable

import pytest

from relock import LockLostError
from relock._core.lock_spec import HANDED_LEASE_SECONDS
from relock.lock import Lock
from relock.testing import Lab

SECONDS = 1.0  # longer than any message takes


def nest(lock: Lock) -> None:
    """Acquire another level, for which no master is asked."""
    assert lock.acquire()
    assert lock.hold_count == 2


def look_ahead(lock: Lock) -> None:
    """Ask for longer than the short lease that a releaser has given."""
    with pytest.raises(LockLostError, match="extend it first"):
        lock.ensure(2 * HANDED_LEASE_SECONDS)
    assert lock.owned()


@pytest.mark.parametrize("use", [nest, look_ahead, Lock.release])
def test_a_hold_is_used_without_asking_after_the_client_was_closed(use: Callable[[Lock], None]) -> None:
    lab = Lab()
    holder, grantee = lab.client("holder"), lab.client("grantee")

    def hand_over() -> None:
        with holder.lock("a"):
            lab.sleep(SECONDS)

    def take() -> None:
        lab.sleep(SECONDS / 2)
        lock = grantee.lock("a")
        assert lock.acquire()
        assert lock.remaining() < HANDED_LEASE_SECONDS
        grantee.close()
        use(lock)
        lab.sleep(SECONDS)
        assert "grantee" not in {raw.process.name for raw in lab.masters[0].connections}

    lab.run(hand_over, take)
    lab.close()
