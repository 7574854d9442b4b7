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


def test_nobody_gets_in_before_the_end_that_an_owner_was_told_though_a_quorum_does_not_know_its_hold() -> None:
    """Three of five masters have the hold, and one of these is flushed: a minority forgets, and the guard covers it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lab = Lab(masters=5)
        lock, other = lab.client("holder", ttl=TTL_SECONDS).lock("a"), lab.client("other", ttl=TTL_SECONDS).lock("a")
        told_until, entered_at = [0.0], [0.0]

        def hold() -> None:
            for server in lab.masters[3:]:
                server.stop()
            lock.acquire()
            told_until[0] = lab.now + lock.remaining()
            lab.sleep(2.0)  # by then the two have got the request too late
            for server in lab.masters[3:]:
                server.go_on()
            for key in (b"lock:{a}", b"lock:{a}:token", b"lock:master"):
                lab.masters[0].master.read("DEL", key)
            lab.sleep(TTL_SECONDS / 2)
            assert lock.lost, "the renewal has found three masters without the hold"
            lab.sleep(TTL_SECONDS)
            with pytest.raises(LockLostError):
                lock.release()

        def enter() -> None:
            lab.sleep(3.0)
            other.acquire()
            entered_at[0] = lab.now
            other.release()

        lab.run(hold, enter)
        lab.close()
    assert told_until[0] <= entered_at[0] < told_until[0] + TTL_SECONDS, "every lease ends"
