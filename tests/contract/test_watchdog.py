"""A tick of the watchdog between any two steps of a call, and the end of a hold between any two steps of a tick."""

import logging
from itertools import count

import pytest

from contract.rigs.calls import CALLS, SINGLE, Call, Kind, leave, make, take
from contract.rigs.rig import Rig, key_of, leases_key_of, permits_key_of
from contract.rigs.watch import At
from relock import Client, Lock, LockLostError, NotOwnedError
from relock._runtime.background.watchdog import Watchdog

each_call = pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
each_kind = pytest.mark.parametrize("kind", SINGLE)


class Ticks:
    """The watchdog of a client, on the test's own thread, with every renewal due."""

    def __init__(self, client: Client) -> None:
        self._session = client._session
        self._watchdog = Watchdog(self._session)
        self._watchdog.stop()  # without a thread, only the test takes its pokes

    def tick(self) -> None:
        """Plan the renewals once, and act on the plan; return instead of sleeping."""
        for hold in self._session.holds.all():
            hold.renew_at = 0.0
        self._watchdog.poke()
        self._watchdog.step()


@each_kind
@each_call
def test_a_tick_between_any_two_steps(call: Call, kind: Kind, rig: Rig, name: str) -> None:
    client = rig.client()
    rig.warm_up(client, kind)
    ticks = Ticks(client)
    for number in count(1):
        lock, _ = make(client, f"{name}-{number}", kind)
        take(lock, call.levels)
        strike = At(number, ticks.tick)
        with rig.watch.each(strike):
            call.do(lock)
        assert lock.hold_count == call.after, f"after a tick {strike.where}"
        ticks.tick()
        assert lock.hold_count == call.after
        leave(lock)
        rig.until_free(lock.name, f"a tick {strike.where}")
        if not strike.where:
            break
    assert number > 5, "the watch sees the steps"
    statistics = client.statistics()
    assert (statistics.held, statistics.losses) == (0, 0), "no hold without an owner is renewed, and none is lost"
    assert statistics.renewals > 0 or not (call.levels or call.after), "the ticks renew the holds"


@pytest.mark.parametrize("call", [call for call in CALLS if call.levels], ids=lambda call: call.name)
def test_a_tick_between_any_two_steps_with_a_hold_that_the_masters_forgot(call: Call, rig: Rig, name: str) -> None:
    """Holds that are forgotten are lost, whichever thread finds that first; each loss is told once, and for good."""
    client = rig.client()
    rig.warm_up(client)
    ticks = Ticks(client)
    for number in count(1):
        lock = client.lock(f"{name}-{number}")
        rig.take_everywhere(lock, call.levels)
        owner = rig.holders(lock.name)[0]
        for master in range(rig.masters):
            rig.ask(master, "DEL", key_of(lock.name))
        strike = At(number, ticks.tick)
        with rig.watch.each(strike):
            try:
                call.do(lock)
            except LockLostError:
                pass
        ticks.tick()
        assert not lock.owned(), f"the hold is lost, also with a tick {strike.where}"
        assert owner not in rig.holders(lock.name), f"no tick {strike.where} brings the hold back"
        assert client.statistics().losses == number
        leave_lost(lock)
        if not strike.where:
            break
    assert number > 5, "the watch sees the steps"


def leave_lost(lock: Lock) -> None:
    """Leave every level of a lost hold: each release raises that."""
    while True:
        try:
            lock.release()
        except LockLostError:
            continue
        except NotOwnedError:
            return


@each_kind
def test_a_release_between_any_two_steps_of_a_tick(kind: Kind, rig: Rig, name: str) -> None:
    """The tick goes on with the facts that it read before the release."""
    release_between_steps_of_a_tick(rig, name, kind)


@each_kind
@pytest.mark.several
def test_a_release_between_any_two_steps_of_a_tick_that_heals(kind: Kind, rig: Rig, name: str) -> None:
    """The tick is about to give the hold to a master that forgot it."""
    release_between_steps_of_a_tick(rig, name, kind, forgetful=rig.masters - 1)


def release_between_steps_of_a_tick(rig: Rig, name: str, kind: Kind, forgetful: int | None = None) -> None:
    client = rig.client()
    rig.warm_up(client, kind)
    ticks = Ticks(client)
    for number in count(1):
        lock, _ = make(client, f"{name}-{number}", kind, owner="anybody")
        rig.take_everywhere(lock, 1)
        if forgetful is not None:
            rig.ask(forgetful, "DEL", key_of(lock.name), leases_key_of(lock.name), permits_key_of(lock.name))
        strike = At(number, lock.release)
        with rig.watch.each(strike):
            ticks.tick()
        leave(lock)
        ticks.tick()
        rig.until_free(lock.name, f"a release {strike.where} of a tick")
        if not strike.where:
            break
    assert number > 5, "the watch sees the steps"
    statistics = client.statistics()
    assert (statistics.held, statistics.losses) == (0, 0)


def test_a_loss_is_one_line_of_the_log(rig: Rig, name: str) -> None:
    """Python writes each warning to stderr if no logging is set up."""
    heard: list[str] = []
    logger, handler = logging.getLogger("relock"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        client = rig.client()
        lock = client.lock(name)
        take(lock, 1)
        for master in range(rig.masters):
            rig.ask(master, "DEL", key_of(name))
        with pytest.raises(LockLostError):
            lock.extend()
        client._session.platform.log.warning(logger, "that is all of %r", name)
        rig.until(lambda: any("that is all" in text for text in heard), "all is logged")
    finally:
        logger.removeHandler(handler)
    assert [text.partition("(")[0] for text in heard if repr(name) in text] == ["Lost", f"that is all of {name!r}"]
