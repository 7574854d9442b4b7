"""Leftovers on the other masters of a hold that a quorum has forgotten."""

import warnings

import pytest

from relock import LockLostError
from relock.testing import Lab

TTL_SECONDS = 30.0


def test_a_hold_that_a_quorum_forgot_stays_where_it_is_known_until_its_owner_has_left() -> None:
    """The owner may rely on its lease. Then the third master must not keep others out for the rest of the lease."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lab = Lab(masters=3)
        lock = lab.client(ttl=TTL_SECONDS).lock("a")
        left: list[object] = []

        def work() -> None:
            lock.acquire()
            lab.sleep(1.0)
            for server in lab.masters[:2]:
                server.master.read("DEL", b"lock:{a}")
            for use in (lock.extend, lock.release):
                with pytest.raises(LockLostError):
                    use()
                lab.sleep(1.0)
                left.append([server.master.contents(b"lock:{a}") is not None for server in lab.masters])

        lab.run(work)
        lab.close()
    assert left == [[False, False, True], [False, False, False]]
