"""The reader turns the workers' files into the history that the checker takes."""

from pathlib import Path

import pytest

from chaos.history import Reader, Recorder
from chaos.records import FOREVER, Operation


def told(folder: Path, *, lost_at: float | None = None, is_ended: bool = True) -> Operation:
    """Return a hold that was granted at 1.0, whose owner saw at 2.0 a deadline of 3.0, and recorded that."""
    recorder = Recorder(folder / "p4.jsonl", 4)
    number = recorder.call(0, "a", "acquire", 0)
    recorder.returned(number, 1.0, "ok", token=5, count=1, until=2.5)
    recorder.write("seen", grant=number, until=3.0, at=2.0)
    if lost_at is not None:
        recorder.write("lost", lock="a", token=5, at=lost_at, reason="why not")
    if is_ended:
        recorder.write("ended", at=9.0)
    history = Reader().read(folder)
    return history.operations[0]


def test_a_holder_believes_in_its_hold_to_the_deadline_that_it_saw_last(tmp_path: Path) -> None:
    grant = told(tmp_path)
    assert (grant.worker, grant.returned, grant.token, grant.count) == ("p4.t0", 1.0, 5, 1)
    assert (grant.until, grant.killed) == (3.0, FOREVER)


@pytest.mark.parametrize(("lost_at", "until"), [(2.4, 2.0), (3.1, 3.0)])
def test_a_hold_that_was_lost_early_was_believed_in_when_it_was_seen(
    tmp_path: Path, lost_at: float, until: float
) -> None:
    assert told(tmp_path, lost_at=lost_at).until == until


def test_a_process_that_did_not_say_that_it_ended_was_killed_after_its_last_line(tmp_path: Path) -> None:
    grant = told(tmp_path, is_ended=False)
    assert grant.killed >= 2.0
    assert grant.killed != FOREVER


def test_each_time_that_a_loss_was_told_is_known(tmp_path: Path) -> None:
    told(tmp_path, lost_at=2.4)
    Recorder(tmp_path / "p4.jsonl", 4).write("lost", lock="a", token=5, at=3.5, reason="again")
    history = Reader().read(tmp_path)
    assert [loss.at for loss in history.losses] == [2.4, 3.5]
    assert history.operations[0].until == 2.0, "the first loss counts"
    assert history.ended == {"p4"}


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    told(tmp_path)
    path = tmp_path / "p4.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event":"ret')
    assert len(Reader().read(tmp_path).operations) == 1
