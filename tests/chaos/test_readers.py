"""Readers and writers in a history: no reader beside a writer, and tokens that rise from one kind to the other."""

import pytest
from attrs import evolve

from chaos.checker import check_told
from chaos.field import FieldPlan
from chaos.records import History, Operation
from chaos.verdict import judge

PLAN = FieldPlan(masters=1, seed="test", ttl=1.0, reads=0.5)
END = 50.0


def turn(
    number: int, begin: float, end: float, token: int, *, reads: bool, worker: int = 0, downgrades: bool = False
) -> list[Operation]:
    """Return the calls of a worker that has the lock from `begin` to `end`."""
    name = f"p{worker or number}.t0"
    grant = Operation(number, name, "a", "acquire", begin - 0.1, begin, token=token, count=1, until=40.0)
    release = Operation(number + 100, name, "a", "release", end, end + 0.01, level=1)
    return [evolve(grant, reads=reads, downgrades=downgrades), evolve(release, reads=reads)]


def found(*turns: list[Operation]) -> set[str]:
    """Return the checks that find something."""
    operations = [one for calls in turns for one in calls]
    return {one.check for one in judge(PLAN, History(operations), [], stall=0.0, end=END).violations}


def test_readers_may_have_a_lock_together_with_tokens_in_any_order() -> None:
    assert not found(turn(1, 1.0, 5.0, 8, reads=True), turn(2, 2.0, 4.0, 7, reads=True))


def test_no_reader_comes_beside_a_writer_and_no_writer_beside_a_reader() -> None:
    assert found(turn(1, 1.0, 5.0, 7, reads=True), turn(2, 2.0, 4.0, 8, reads=False)) == {"readers"}
    assert found(turn(1, 1.0, 5.0, 7, reads=False), turn(2, 2.0, 4.0, 8, reads=True)) == {"readers"}
    assert not found(turn(1, 1.0, 2.0, 7, reads=False), turn(2, 2.5, 4.0, 8, reads=True))
    readers = turn(1, 1.0, 5.0, 7, reads=True), turn(2, 2.0, 3.0, 8, reads=True)
    assert found(*readers, turn(3, 4.0, 6.0, 9, reads=False)) == {"readers"}


def test_tokens_rise_from_readers_to_writers_and_back() -> None:
    assert found(turn(1, 1.0, 2.0, 7, reads=True), turn(2, 2.5, 4.0, 7, reads=False)) == {"readers"}
    assert found(turn(1, 1.0, 2.0, 8, reads=False), turn(2, 2.5, 4.0, 7, reads=True)) == {"readers"}


def test_writers_are_judged_as_the_holders_of_a_lock() -> None:
    assert "intervals" in found(turn(1, 1.0, 5.0, 7, reads=False), turn(2, 2.0, 4.0, 8, reads=False))


@pytest.mark.parametrize(
    ("write_ends", "read_ends", "beside"), [(3.0, 5.0, {False: {"readers"}}), (5.0, 3.0, {True: {"readers"}})]
)
def test_a_writer_may_read_beside_itself_and_give_back_either_side_first(
    write_ends: float, read_ends: float, beside: dict[bool, set[str]]
) -> None:
    both = [turn(1, 1.0, write_ends, 7, reads=False), turn(2, 2.0, read_ends, 8, reads=True, worker=1)]
    assert not found(*both, turn(3, 5.5, 6.0, 9, reads=False))
    assert found(*both, turn(3, 4.0, 6.0, 9, reads=True)) == beside.get(True, set())
    assert found(*both, turn(3, 4.0, 6.0, 9, reads=False)) - {"intervals", "model"} == beside.get(False, set())


def test_no_writer_comes_in_while_another_one_becomes_a_reader() -> None:
    """The downgrade lasts from 3.0 to 4.0. Other readers may come before it has returned."""
    downgrade = evolve(turn(2, 4.0, 5.0, 9, reads=True, worker=1, downgrades=True)[0], called=3.0)
    calls = [*turn(1, 1.0, 2.9, 7, reads=False), downgrade]
    assert not found(calls, turn(3, 3.2, 6.0, 10, reads=True))
    assert found(calls, turn(3, 3.2, 3.8, 8, reads=False)) == {"readers"}


def test_a_writers_loss_is_told_beside_its_hold_as_a_reader() -> None:
    write, lost = turn(1, 1.0, 3.0, 7, reads=False)
    calls = [write, *turn(2, 2.0, 2.5, 8, reads=True, worker=1), evolve(lost, outcome="failed")]
    history = History(calls, ended=frozenset({"p1"}))
    assert [one.check for one in check_told(history)] == ["told"]
