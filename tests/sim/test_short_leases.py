"""Locks with a shorter lease than the other locks of their client, and masters that suddenly fall silent."""

from support.quiet import play, warm_up

from relock.testing import Lab

CLIENT_TTL_SECONDS = 30.0  # so a client waits up to a second for a master
TTL_SECONDS = 0.3


def test_one_of_three_that_hangs_costs_no_short_lease() -> None:
    lab = Lab(masters=3)
    client = lab.client(ttl=CLIENT_TTL_SECONDS)

    def work() -> bool:
        warm_up(lab, client)
        with client.lock("another"):  # whose renewals may go with those of the short lease
            lock = client.lock("a", ttl=TTL_SECONDS)
            lock.acquire()
            lab.masters[2].stop()
            lab.sleep(10 * TTL_SECONDS)
            return lock.owned()

    (owned,) = play(lab, work)
    lab.close()
    assert owned


def test_a_level_of_a_short_lease_that_no_quorum_counts_in_time_costs_no_hold() -> None:
    """The masters are back well before the lease ends."""
    lab = Lab(masters=3)
    client = lab.client(ttl=CLIENT_TTL_SECONDS)

    def work() -> bool:
        warm_up(lab, client)
        lock = client.lock("a", ttl=3 * TTL_SECONDS, renew=False)
        lock.acquire()
        for master in lab.masters[1:]:
            master.stop()
        lock.acquire()
        return lock.owned()

    (owned,) = play(lab, work)
    lab.close()
    assert owned
