"""Masters without a vote, and others that are away for a moment."""

from support.quiet import play, warm_up

from relock.testing import Lab

GUARD_SECONDS = 600.0
AWAY_SECONDS = 2.0
BACK_SECONDS = 3.0  # for the client to connect again, and to ask once more


def test_a_waiter_sees_a_master_that_is_back_long_before_another_has_its_vote() -> None:
    """The lock is free, and a quorum could give it: the master that stayed, and the one that is back."""
    lab = Lab(masters=3)
    client = lab.client(ttl=GUARD_SECONDS)
    forgetful, away, _ = lab.masters

    def come_back() -> None:
        lab.sleep(AWAY_SECONDS)
        away.go_on()

    def wait() -> float:
        began = lab.now
        client.lock("a").acquire()
        return lab.now - began

    play(lab, lambda: warm_up(lab, client))
    forgetful.crash()
    forgetful.restart()
    away.stop()
    seconds, _ = play(lab, wait, come_back)
    lab.close()
    assert seconds < AWAY_SECONDS + BACK_SECONDS
