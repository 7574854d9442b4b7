"""Two holds of one owner on one lock: what a caller that has the one may ask of the other."""

from typing import Any

import pytest
from support.instructions import Interrupt
from support.pure_host import JOB, OPTIONS, PureHost

from relock import LockLostError, LossCode, UpgradeError
from relock._core.call_record import CallFlow, CallRecord, Enter
from relock._core.effects import Ask, Failure
from relock._core.hold import Hold
from relock._core.own import ALONE, beside_own
from relock._core.quorum import NoQuorum, judge
from relock._core.readers import acquire_read, downgrade, release_read
from relock._owner import Owner, ReadKey, as_reader, named, stem_of

READER = as_reader(JOB)


class Readers(PureHost):
    """Host whose owner may have the lock as a reader as well."""

    def __init__(self, masters: int = 1) -> None:
        super().__init__(masters)
        self.reading = self.spec.for_readers(OPTIONS)

    def read(self, levels: int = 1) -> None:
        for _ in range(levels):
            self.do(acquire_read(self.calls, CallRecord(), self.reading, JOB, 100.0))

    def leave_read(self) -> None:
        self.do(release_read(self.calls, CallRecord(), self.reading, JOB))

    def both(self) -> tuple[int, int]:
        """Return the levels as a writer and those as a reader."""
        read = self.holds.get(("a", READER.key))
        return self.levels(), 0 if read is None else read.count


@pytest.mark.parametrize(
    ("owner", "stem"),
    [
        (b"me:7", b"7"),
        (b"me:7@3000", b"7"),
        (b"me:7@3000~1.5", b"7"),
        (b"me:job.7~2", b"job.7"),
        (b"me:7&", b"7"),
        (b"me:8&7~1", b"8"),
        (b"me:7#1/4@3000", b"7"),
    ],
)
def test_the_stem_of_a_name_is_what_its_client_has_made(owner: bytes, stem: bytes) -> None:
    assert stem_of(owner) == stem


def test_an_owner_as_a_reader_is_itself_but_for_its_key_and_stays_one() -> None:
    assert JOB._replace(key=ReadKey(JOB.key)) == READER
    assert as_reader(READER) is READER
    assert READER.key != JOB.key
    assert as_reader(named("other")).key != READER.key


def test_a_caller_without_a_hold_is_beside_nothing() -> None:
    host = Readers()
    assert not host.holds.had_readers
    assert host.do(beside_own(host, host.spec, JOB)) == ALONE
    assert not host.holds.had_readers
    assert host.do(beside_own(host, host.reading, READER)) == ALONE
    assert host.holds.had_readers


def test_a_reader_is_beside_its_own_writer_only() -> None:
    host = Readers()
    writer = host.take(1)
    assert host.do(beside_own(host, host.reading, READER)) == (stem_of(writer.owner), None) == (b"job.1", None)
    assert host.do(beside_own(host, host.reading, as_reader(named("other")))) == ALONE
    host.read()
    assert host.holds["a", READER.key].owner.endswith(b"&job.1")
    host.leave_read()
    host.do(host.release())
    host.read()
    assert host.holds["a", READER.key].owner.endswith(b"&")


def test_a_reader_that_asks_as_a_writer_sends_nothing() -> None:
    host = Readers()
    host.read()
    before = host.sent.copy()
    with pytest.raises(UpgradeError, match="release the read lock first"):
        host.do(host.acquire())
    with pytest.raises(UpgradeError):
        host.do(host.acquire_all())
    assert host.sent == before
    host.leave_read()
    host.take(1)
    assert host.both() == (1, 0)


@pytest.mark.parametrize("asked", ["read", "write"])
def test_a_caller_whose_other_hold_was_lost_is_told(asked: str) -> None:
    host = Readers()
    if asked == "read":
        host.lose(host.take(1), LossCode.EXPIRED)
    else:
        host.read()
        host.lose(host.holds["a", READER.key], LossCode.EXPIRED)
    with pytest.raises(LockLostError, match="before it could be renewed"):
        host.read() if asked == "read" else host.take(1)


def down(host: Readers, record: CallRecord | None = None, who: Owner = JOB) -> object:
    return host.do(downgrade(host.calls, record or CallRecord(), host.spec, host.reading, who))


def test_a_downgrade_takes_the_reader_s_levels_first_and_then_ends_the_writer_s() -> None:
    host = Readers()
    host.take(2)
    before = len(host.sent)
    assert down(host) is None
    assert host.sent[before:] == ["read_acquire:a", "read_release:a"]
    assert host.both() == (0, 2)
    assert host.events[-1].kind == "lock"


def test_a_downgrade_that_gets_no_reader_leaves_the_writer() -> None:
    host = Readers()
    host.take(2)
    host.taken.add("a")
    flow = downgrade(host.calls, CallRecord(), host.spec, host.reading, JOB)
    step = flow.send(None)
    while True:
        host.now = 10_000.0 if len(host.sent) > 3 else host.now
        host.taken.add("a")
        try:
            step = flow.send(host.answer(step))
        except (StopIteration, LockLostError):
            break
    assert host.both()[1] == 0
    assert not any("release" in sent for sent in host.sent)


@pytest.mark.parametrize(("struck", "levels"), [("read_acquire", (2, 0)), ("read_release", (0, 2))])
def test_an_interrupted_downgrade_leaves_a_writer_or_a_reader(struck: str, levels: tuple[int, int]) -> None:
    host, record = Readers(), CallRecord()
    host.take(2)
    host.struck = [struck]
    with pytest.raises(Interrupt):
        down(host, record)
    host.struck = []
    host.interrupted.undo_acquire(record)
    host.interrupted.undo_acquire_again(record)
    assert host.both() == levels
    assert not record.gate


@pytest.mark.parametrize("side", ["read", "write"])
def test_a_release_that_is_interrupted_waits_for_a_call_of_its_owner_for_the_other_side(side: str) -> None:
    host, record, inside = Readers(), CallRecord(), CallRecord()
    host.take(2)
    host.read(2)
    spec, who, other = (host.reading, READER, JOB) if side == "read" else (host.spec, JOB, READER)
    assert host.gates.try_enter(inside, ("a", other.key), "another")
    host.interrupted.undo_release(record, spec, who, 1)
    assert host.both() == (2, 2)
    host.gates.leave(inside)
    host.go_on()
    assert host.both() == ((2, 1) if side == "read" else (1, 2))
    assert not host.gates._gates


@pytest.mark.parametrize("asked", ["read", "write"])
def test_a_caller_without_time_waits_at_the_gate_if_its_owner_has_the_lock_on_the_other_side(asked: str) -> None:
    """Each call that is inside then is short, and the caller must not be told that another owner has the lock."""
    host, inside = Readers(), CallRecord()
    if asked == "read":
        host.take(1)
        flow, key = acquire_read(host.calls, CallRecord(), host.reading, JOB, host.now), JOB.key
    else:
        host.read()
        flow, key = host.calls.acquire(CallRecord(), host.spec, JOB, host.now), READER.key
    assert host.gates.try_enter(inside, ("a", key), "another")
    step = next(flow)
    assert isinstance(step, Enter)
    assert step.until > host.now


FENCED = [b"fenced", 0]
SILENT = Failure("c", "silent")


def read_inside(masters: int, *tokens: int) -> CallFlow[tuple[bytes, NoQuorum | None]]:
    """Let a caller ask to read that is the writer; the masters have given it these tokens."""
    host = PureHost(masters)
    answers = [([b"granted", 0, token],) for token in tokens]
    grant: Any = judge(answers, host.spec.masters, host.now + 10.0, host.now)
    host.holds["a", JOB.key] = Hold(host.spec, b"me:17@3000", JOB, grant, 1)
    return beside_own(host, host.spec.for_readers(OPTIONS), as_reader(JOB))


def test_the_token_is_written_where_masters_gave_different_ones() -> None:
    flow = read_inside(3, 5, 6, 9)
    ask = next(flow)
    assert isinstance(ask, Ask)
    assert [(call.script.name, call.own.split(b"\r\n")[1]) for call in ask.calls] == [("fence", b"9")]
    with pytest.raises(StopIteration) as end:
        flow.send([(FENCED,), (FENCED,), (SILENT,)])
    assert end.value.value == (b"17", None)


def test_too_few_masters_with_the_token_are_no_quorum() -> None:
    flow = read_inside(3, 5, 6, 9)
    next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send([(FENCED,), (SILENT,), (SILENT,)])
    assert isinstance(end.value.value[1], NoQuorum)


@pytest.mark.parametrize("tokens", [(7,), (7, 7, 7)])
def test_nobody_is_asked_where_all_masters_gave_that_token(tokens: tuple[int, ...]) -> None:
    with pytest.raises(StopIteration) as end:
        next(read_inside(len(tokens), *tokens))
    assert end.value.value == (b"17", None)
