"""Figures that do not depend on the machine: bytes, threads, connections and commands."""

import gc
import tracemalloc

from support.servers import Server

from bench.footprint import lock_bytes
from bench.waiting import watch
from relock import Client

LOCK_BYTES_MAX = 1_000
HELD_BYTES_MAX = 3_000
WAITERS = 300
TASKS_COUNT, TASKS_SECONDS = 400, 5.0  # two heartbeats
LONG_NAMES = 1_000
LONG_NAME_BYTES = 10_000
LEFT_BYTES_MAX = 1_000_000


def test_a_lock_object_takes_less_than_a_thousand_bytes(server: Server) -> None:
    grown = lock_bytes(server.url, 2_000)
    assert grown["made"] < LOCK_BYTES_MAX
    assert grown["held"] < HELD_BYTES_MAX


def test_locks_that_are_gone_leave_nothing_however_long_their_names_were(server: Server) -> None:
    with Client(server.url) as client:
        with client.lock("warm-up"):
            pass
        gc.collect()
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for number in range(LONG_NAMES):
                with client.lock(f"{number:0{LONG_NAME_BYTES}}"):
                    pass
            gc.collect()
            left = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
    assert left < LEFT_BYTES_MAX


def test_waiters_share_one_subscription_and_do_not_poll() -> None:
    cost = watch("threads", WAITERS, 1, 10.0)
    assert cost["subscriptions"] == 1
    assert cost["threads"] == 3
    assert cost["calls_per_second"] <= 1.0, "a heartbeat for all of them every 2.5 s, and a ping"


def test_waiting_tasks_share_connections_and_do_not_poll_and_none_is_forgotten() -> None:
    """Every other task is cancelled on the way, and the others are served."""
    found = watch("tasks", TASKS_COUNT, 20, TASKS_SECONDS)
    assert (found["subscriptions"], found["connections"]) == (1, 2)
    assert found["threads"] <= 3
    assert found["calls_per_second"] < 15
    assert found["left"] == 0
