"""Long waits, in virtual time: how often they are told, and what the event says."""

from collections.abc import Iterator

import pytest
from support.quiet import play

from relock import Client, Event, LongWait
from relock.testing import Lab

TOLD_WITHIN = 3.0  # seconds: a heartbeat


def waits_for(lab: Lab, client: Client, seconds: float, *, kind: str = "lock") -> None:
    """Have the client hold a lock, or read it, for so long, while another thread waits for it."""
    held = client.lock("a") if kind == "lock" else client.rwlock("a").read

    def hold() -> None:
        with held:
            lab.sleep(seconds)

    def wait() -> None:
        lab.sleep(1.0)
        with client.lock("a"):
            pass

    play(lab, hold, wait)


@pytest.mark.parametrize("masters", [1, 3])
@pytest.mark.parametrize("kind", ["lock", "read"])
def test_a_long_wait_is_told_once_a_minute(masters: int, kind: str) -> None:
    events = list[Event]()
    with Lab(masters=masters) as lab:
        client = lab.client("me", long_wait=20.0, on_event=events.append)
        waits_for(lab, client, 100.0, kind=kind)
        waits_for(lab, client, 15.0)
    first, second = [event for event in events if isinstance(event, LongWait)]
    assert (first.lock, first.kind, first.ahead) == ("a", "lock", 0)
    assert first.holder is not None
    assert first.holder != first.owner
    assert (("&" in first.holder), "&" in first.owner) == (kind == "read", False)
    assert 20.0 <= first.seconds <= 20.0 + TOLD_WITHIN
    assert 80.0 <= second.seconds <= 80.0 + 2 * TOLD_WITHIN


def test_a_waiter_behind_others_says_how_many(lab_of_one: Lab) -> None:
    events = list[Event]()
    others, client = lab_of_one.client("others"), lab_of_one.client("me", long_wait=20.0, on_event=events.append)

    def hold() -> None:
        with others.lock("a"):
            lab_of_one.sleep(40.0)

    def wait(own: Client, after: float) -> None:
        lab_of_one.sleep(after)
        with own.lock("a"):
            pass

    play(lab_of_one, hold, lambda: wait(others, 1.0), lambda: wait(others, 2.0), lambda: wait(client, 3.0))
    assert [event.ahead for event in events if isinstance(event, LongWait)] == [2]


def test_without_the_option_nothing_is_told(lab_of_one: Lab) -> None:
    events = list[Event]()
    waits_for(lab_of_one, lab_of_one.client("me", on_event=events.append), 100.0)
    assert not any(isinstance(event, LongWait) for event in events)


@pytest.fixture
def lab_of_one() -> Iterator[Lab]:
    with Lab() as made:
        yield made
