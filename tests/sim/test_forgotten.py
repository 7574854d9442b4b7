"""Leftovers on the other masters of a hold that a quorum has forgotten."""

import warnings

import pytest

from relock import LockLostError
from relock.testing import Lab

TTL_SECONDS = 30.0


def test_a_hold_that_a_quorum_forgot_does_not_stay_where_it_is_still_known() -> None:
    """The third master must not keep others out for the rest of a lease that has no owner."""
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
            with pytest.raises(LockLostError):
                lock.extend()
            lab.sleep(1.0)
            left.extend(server.master.contents(b"lock:{a}") for server in lab.masters)

        lab.run(work)
        lab.close()
    assert left == [None, None, None]
