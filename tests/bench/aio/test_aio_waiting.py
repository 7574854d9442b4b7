"""What does not depend on the machine where tasks wait: connections, threads and commands; and that all have a turn."""

from bench.aio.waiting import watch

TASKS_COUNT = 400
SECONDS = 5.0  # two heartbeats


def test_waiting_tasks_share_connections_and_do_not_poll_and_none_is_forgotten() -> None:
    """That every other one is cancelled, and the others are served, is looked at on the way."""
    found = watch("locks", TASKS_COUNT, SECONDS)
    assert (found.cost.subscriptions, found.cost.connections) == (1, 2)
    assert found.cost.threads <= 3
    assert found.cost.calls_per_second < 15
    assert found.left == 0
