"""Kinds of what is held: events and losses say whether it is a lock or permits."""

import pytest
from support.pure_host import OPTIONS, PureHost

from relock import Lost, NotGranted, Released, ReleaseUnconfirmed
from relock._core.effects import Failure
from relock._core.lock_spec import LockSpec, Wish
from relock._events import Granted, LossCode, MasterBack
from relock._keys import LOCK, READ, SEMAPHORE, permit_keys

HELD = (LOCK, READ, SEMAPHORE)


def host_of(kind: str) -> PureHost:
    host, options = PureHost(), OPTIONS.for_lock()
    if kind == READ:
        host.spec = host.spec.for_readers(OPTIONS)
    elif kind == SEMAPHORE:
        host.spec = LockSpec.of(permit_keys("lock", "a"), ("a",), options, OPTIONS, Wish(1, 4))
    return host


@pytest.mark.parametrize("kind", HELD)
def test_each_event_about_a_hold_says_its_kind(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_of(kind)
    host.take(1)
    host.do(host.release())
    host.lose(host.take(1), LossCode.EXPIRED)
    host.taken.add("a")
    host.holds.clear()
    host.do(host.acquire())
    host.taken.clear()
    host.take(1).healing_pending = True
    host.do(host.release())
    host.take(1)
    monkeypatch.setattr(host, "_reply", lambda _call: Failure("a", "it has not answered", awaited=True))
    host.do(host.release())
    told = [(type(event), event.kind) for event in host.events]
    assert all(event.owner for event in host.events)
    assert [event.token is None for event in host.events] == [isinstance(event, NotGranted) for event in host.events]
    expected = [Granted, Released, Granted, Lost, NotGranted, Granted, Released, Granted, ReleaseUnconfirmed]
    assert told == [(event, kind) for event in expected]


@pytest.mark.parametrize("kind", HELD)
def test_a_loss_says_its_kind(kind: str) -> None:
    host = host_of(kind)
    hold = host.take(1)
    host.lose(hold, LossCode.EXPIRED)
    assert hold.loss is not None
    assert hold.loss.kind == kind


def test_an_event_about_a_master_has_no_kind() -> None:
    assert MasterBack(None, "a").kind is None
