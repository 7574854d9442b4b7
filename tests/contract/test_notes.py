"""`note`: a text that the masters keep with a hold, and that ends with it, whatever ends it."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from contract.rigs.calls import take
from contract.rigs.rig import BRIEF, SOON, TTL, Rig, calls, key_of, release_all
from relock import AcquireTimeoutError, Client, Lock, LockLostError

NOTE = "nightly \u00e4 https://ci/7"
SHORT = 0.2  # seconds
VALUE = b"1 " + NOTE.encode()


def values(rig: Rig, name: str) -> list[list[bytes | None]]:
    """Return what each master keeps for the holders of the lock."""
    owners = [[(master, owner.decode()) for owner in found] for master, found in enumerate(rig.holders(name))]
    return [[rig.ask(master, "HGET", key_of(name), owner) for master, owner in found] for found in owners]


def test_a_note_is_shown_while_its_hold_lasts_and_nested_levels_keep_it(rig: Rig, name: str) -> None:
    client, other = rig.client(), rig.client()
    rig.warm_up(client)
    lock = client.lock(name, note=NOTE)
    with lock:
        assert other.info(name).note == lock.info().note == NOTE
        assert [holder.note for holder in other.info(name).holders] == [NOTE]
        with client.lock(name), client.lock(name, note="another"):
            rig.until(lambda: rig.agree_on(name, 3), "the count of the nested levels")
            assert other.info(name).note == NOTE
        rig.until(lambda: rig.agree_on(name, 1), "the count of the outermost level")
        assert other.info(name).note == NOTE
        lock.extend(2 * TTL)
        assert other.info(name).note == NOTE
    rig.until_free(name, "a hold with a note")
    with other.lock(name):
        assert client.info(name).note is None


def error_with_a_note(rig: Rig, lock: Any) -> AcquireTimeoutError:
    """Return the error of a block that can't be entered; on a busy machine, some calls don't come to the queue."""
    errors: list[AcquireTimeoutError] = []

    def is_told() -> bool:
        with pytest.raises(AcquireTimeoutError) as error, lock:
            pytest.fail("the block was entered")
        errors.append(error.value)
        return error.value.note is not None

    rig.until(is_told, "an error has a note")
    return errors[-1]


@pytest.mark.parametrize("is_hurried", [True, False], ids=["by its owner", "by the watchdog"])
def test_a_hold_that_a_release_has_given_gets_its_note_with_its_first_extension(
    rig: Rig, name: str, is_hurried: bool
) -> None:
    client, other = rig.client(), rig.client()
    rig.warm_up(other)
    lock = other.lock(name, note=NOTE)

    def work() -> str | None:
        assert lock.acquire(timeout=SOON)
        if is_hurried:
            lock.extend()
        else:
            rig.until(lambda: lock.info().note, "the note is there")
        note = lock.info().note
        with lock:
            assert lock.info().note == note
        rig.until(lambda: rig.agree_on(name, 1), "the count without the nested level")
        assert lock.info().note == note
        lock.release()
        return note

    first = client.lock(name, note="the first")
    take(first, 1)
    waiting = rig.start(work)
    rig.until(lambda: rig.is_queued(name), "the other waits")
    first.release()
    assert waiting.result() == NOTE
    rig.until_free(name, "both holds")


def by_force(_rig: Rig, lock: Lock) -> None:
    assert lock.force_release()


def by_deletion(rig: Rig, lock: Lock) -> None:
    for master in range(rig.quorum):
        rig.ask(master, "DEL", key_of(lock.name))


@pytest.mark.parametrize("end", [by_force, by_deletion])
def test_a_lost_hold_leaves_no_note(rig: Rig, name: str, end: Callable[[Rig, Lock], None]) -> None:
    client = rig.client()
    rig.warm_up(client)
    lock = client.lock(name, note=NOTE)
    rig.take_everywhere(lock, 1)
    end(rig, lock)
    with pytest.raises(LockLostError):
        lock.release()
    rig.until_free(name, "a lost hold")


def test_a_lock_that_rests_has_no_note(rig: Rig, name: str) -> None:
    client = rig.client()
    with client.lock(name, note=NOTE, at_least=TTL):
        pass
    info = client.info(name)
    assert (info.resting, info.note) == (True, None)


def test_all_locks_of_a_multi_lock_have_its_note_and_a_round_that_is_given_back_leaves_none(
    rig: Rig, name: str
) -> None:
    client, other = rig.client(), rig.client()
    rig.warm_up(client)
    names = [f"{name}-{place}" for place in "abc"]
    both = client.lock_all(names, note=NOTE)
    with both:
        assert [other.info(one).note for one in names] == [NOTE] * 3
    with other.lock(names[1], note="in the way"):
        assert not both.acquire(timeout=0)
        for one in (names[0], names[2]):
            rig.until_free(one, "a round that was given back")
        assert client.info(names[1]).note == "in the way"
    for one in names:
        rig.until_free(one, "the multi-lock")


def test_readers_and_writers_have_notes(rig: Rig, name: str) -> None:
    client, other = rig.client(), rig.client()
    rig.warm_up(client)
    sides, others = client.rwlock(name, note=NOTE), other.rwlock(name)
    with sides.read:
        sides.read.acquire()
        with others.read:
            found = {(holder.hold_count, holder.note) for holder in sides.info().readers}
            assert found == {(2, NOTE), (1, None)}
        sides.read.release()
        assert other.info(name).note == NOTE
    with sides.write:
        sides.write.downgrade()
        assert [(one.hold_count, one.note) for one in other.info(name).readers] == [(1, NOTE)]
        sides.read.release()
        sides.write.acquire()
    rig.until_free(name, "both sides")


@pytest.mark.parametrize("timeout", [SHORT, 0.0], ids=["after a wait", "at once"])
def test_who_has_a_note_and_waits_in_vain_is_told_the_holders(rig: Rig, name: str, timeout: float) -> None:
    client, other = rig.client(), rig.client()
    rig.warm_up(other)
    with client.lock(name, note=NOTE) as lock:
        for note in ("mine", None):
            told = NOTE if note and timeout else None
            with pytest.raises(AcquireTimeoutError) as error, other.lock(name, note=note, timeout=timeout):
                pytest.fail("the block was entered")
            assert (error.value.holder, error.value.note) == (lock.info().owner, told)
            assert (f"had it ({NOTE!r}), and 0 waited ahead" in str(error.value)) == bool(told)
    rig.until_free(name, "a wait in vain")


@pytest.mark.parametrize("is_one", [True, False], ids=["one lock", "a multi-lock"])
def test_masters_are_asked_for_a_note_only_where_an_error_tells_it(rig: Rig, name: str, is_one: bool) -> None:
    client, other = rig.client(), rig.client()
    rig.warm_up(other)
    names = [name, f"{name}-b"]
    one, both = other.lock(name, note="mine", timeout=SHORT), other.lock_all(names, note="mine", timeout=SHORT)
    lock: Any = one if is_one else both
    with client.lock(name, note=NOTE):
        faults = [line.hold_reply(calls(name, "inspect")) for line in rig.lines]
        assert not lock.acquire()
        assert all(line.disarm(fault) for line, fault in zip(rig.lines, faults, strict=True)), "no master was asked"
        error = error_with_a_note(rig, lock)
        assert (error.lock, error.note) == (name, NOTE)
    rig.until_free(name, "a wait in vain")


@pytest.mark.parametrize("owner", [None, "several"], ids=["one owner", "a shared owner"])
def test_an_interrupt_of_the_look_for_a_note_leaves_nothing(rig: Rig, name: str, owner: str | None) -> None:
    client, other = rig.client(), rig.client(node_timeout=2.0)
    rig.warm_up(other)
    lock = other.lock(name, note="mine", timeout=SHORT, owner=owner)

    def enter() -> None:
        while True:  # on a busy machine, some calls don't come as far as the queue
            with suppress(AcquireTimeoutError), lock:
                pytest.fail("the block was entered")

    with client.lock(name, note=NOTE):
        faults = [line.hold_reply(calls(name, "inspect")) for line in rig.lines]
        assert rig.interrupt(enter, when=lambda: any(fault.struck.is_set() for fault in faults))
        release_all([fault for line, fault in zip(rig.lines, faults, strict=True) if not line.disarm(fault)])
    assert lock.acquire(timeout=SOON)
    lock.release()
    rig.until_free(name, "an interrupted look")


@pytest.mark.parametrize("note", [" 7", "0x1", "2 3", "a\x00b", "\u202e", "\u00e4" * 100], ids=ascii)
def test_any_text_is_a_note(rig: Rig, name: str, note: str) -> None:
    client = rig.client()
    rig.warm_up(client)
    with client.lock(name, note=note) as lock:
        assert (lock.info().note, lock.info().hold_count) == (note, 1)
    rig.until_free(name, "the lock")
    sides = client.rwlock(name, note=note)
    with sides.read, client.rwlock(name).read:
        assert [(reader.hold_count, reader.note) for reader in sides.info().readers] == [(2, note)]


def test_an_error_shows_a_note_without_its_control_characters(rig: Rig, name: str) -> None:
    client, other = rig.client(), rig.client()
    rig.warm_up(other)
    with client.lock(name, note="\x1b[2J\n\u00e4"):
        error = error_with_a_note(rig, other.lock(name, note="mine", timeout=SHORT))
        assert error.note == "\x1b[2J\n\u00e4"
        assert "had it ('\\x1b[2J\\n\u00e4'), and" in str(error)


@pytest.mark.several
def test_a_master_that_forgot_the_hold_gets_its_note_again(rig: Rig, name: str) -> None:
    client = rig.client()
    rig.warm_up(client)
    lock = client.lock(name, note=NOTE)
    rig.take_everywhere(lock, 1)
    rig.ask(0, "DEL", key_of(name))

    def is_healed() -> bool:
        lock.extend()  # heals a master whose answer comes in time
        return values(rig, name) == [[VALUE]] * rig.masters

    rig.until(is_healed, "all masters have the hold with its note")
    lock.release()
    rig.until_free(name, "a healed hold")


@pytest.mark.several
def test_an_attempt_that_finds_no_quorum_leaves_no_note(rig: Rig, name: str) -> None:
    client: Client = rig.client(node_timeout=BRIEF)
    rig.warm_up(client)
    for master in range(rig.quorum):
        rig.occupy(master, name)
    assert not client.lock(name, note=NOTE).acquire(timeout=0)
    rig.vacate(name)
    rig.until_free(name, "an attempt without a quorum")
