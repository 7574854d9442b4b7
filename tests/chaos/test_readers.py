"""Readers and writers in a history: no reader beside a writer, and tokens that rise from one kind to the other."""

from attrs import evolve

from chaos.field import FieldPlan
from chaos.records import History, Operation
from chaos.verdict import judge

PLAN = FieldPlan(masters=1, seed="test", ttl=1.0, reads=0.5)
END = 50.0


def turn(number: int, begin: float, end: float, token: int, *, reads: bool) -> list[Operation]:
    """Return the calls of a worker that has the lock from `begin` to `end`."""
    grant = Operation(
        number, f"p{number}.t0", "a", "acquire", begin - 0.1, begin, outcome="ok", token=token, count=1, until=40.0
    )
    release = Operation(number + 100, f"p{number}.t0", "a", "release", end, end + 0.01, outcome="ok", level=1)
    return [evolve(one, reads=reads) for one in (grant, release)]


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


def test_tokens_rise_from_readers_to_writers_and_back() -> None:
    assert found(turn(1, 1.0, 2.0, 7, reads=True), turn(2, 2.5, 4.0, 7, reads=False)) == {"readers"}
    assert found(turn(1, 1.0, 2.0, 8, reads=False), turn(2, 2.5, 4.0, 7, reads=True)) == {"readers"}


def test_writers_are_judged_as_the_holders_of_a_lock() -> None:
    assert "intervals" in found(turn(1, 1.0, 5.0, 7, reads=False), turn(2, 2.0, 4.0, 8, reads=False))
