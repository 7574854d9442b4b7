"""Hold counts on masters that the client has not asked for a while, one of them slower than the others."""

import warnings

from attrs import evolve

from relock.testing import Lab

SETTLED_SECONDS = 1.0
QUIET_SECONDS = 10.0  # after which the bounds on the masters' clocks are so wide that a slow request arrives void


def test_a_count_that_was_void_on_a_slow_master_is_written_again() -> None:
    lab = Lab(masters=3)
    slow = lab.masters[2]
    slow.conditions = evolve(slow.conditions, delay=0.003)
    client = lab.client(ttl=90.0, node_timeout=0.05)
    lock = client.lock("a")
    shown = []

    def count_on_each() -> list[list[bytes]]:
        lab.sleep(SETTLED_SECONDS)
        return [list((server.master.contents(b"lock:{a}") or {}).values()) for server in lab.masters]

    def work() -> None:
        for _ in range(3):  # so that all are connected
            with client.lock("warm-up"):
                lab.sleep(SETTLED_SECONDS)
        lock.acquire()
        for _ in range(3):
            lock.acquire()
            shown.append((b"2", count_on_each()))
            lab.sleep(QUIET_SECONDS)
            lock.release()
            shown.append((b"1", count_on_each()))
            lab.sleep(QUIET_SECONDS)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lab.run(work)
    lab.close()
    assert [on_each for _, on_each in shown] == [[[count]] * 3 for count, _ in shown]
