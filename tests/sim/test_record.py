"""The record of long runs: it adds up pieces, lets a run go on later, and names the code that was played."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from relock import __version__
from sim import record
from sim.__main__ import main
from sim.record import Piece, Run
from sim.simulation import Simulation

COMMIT = "c" * 40


@pytest.fixture
def result(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace the simulator by a faster function; return the seeds that it plays, of which 13 is bad."""
    seeds_played: list[int] = []

    def play(commit: str, seeds: range, *, stops: bool) -> Piece:
        seeds_played.extend(seeds)
        bad = [seed for seed in seeds if seed == 13]
        run = Run(commit, seeds.start, seeds.stop - 1, 10 * len(seeds), {"crash": 1}, bad, 2.0)
        return Piece(run, [f"seed {seed}: something\nits timeline" for seed in bad])

    monkeypatch.setattr(record, "play", play)
    monkeypatch.setattr(record, "commit", lambda: COMMIT)
    monkeypatch.setattr(record, "PIECE_SEEDS", 5)
    return seeds_played


def run_main(*arguments: str) -> int:
    return CliRunner().invoke(main, arguments, catch_exceptions=False).exit_code


# Adding up ----------------------------------------------------------------------------------------------------------


def test_adjacent_ranges_are_joined() -> None:
    one = Run(COMMIT, 0, 9, 100, {"crash": 1, "stop": 2}, [3], 1.0)
    two = Run(COMMIT, 10, 19, 50, {"crash": 4, "flush": 1}, [12], 2.0)
    apart = Run(COMMIT, 30, 39)
    both = Run(COMMIT, 0, 19, 150, {"crash": 5, "flush": 1, "stop": 2}, [3, 12], 3.0)
    assert record.add_up([two, apart, one]) == [both, apart]
    assert both.grants_per_second == 50


def test_commits_are_kept_apart_and_in_their_order() -> None:
    newer, older = Run("b", 10, 19), Run("a", 0, 9)
    assert record.add_up([newer, older]) == [newer, older]


def test_no_seed_counts_twice() -> None:
    with pytest.raises(ValueError, match="seed 9 was counted already"):
        record.add_up([Run(COMMIT, 0, 9), Run(COMMIT, 9, 12)])


def test_seeds_that_no_run_of_this_commit_has_are_missing() -> None:
    runs = [Run(COMMIT, 10, 19), Run(COMMIT, 0, 4), Run("other", 5, 9)]
    assert record.missing(runs, COMMIT, range(2, 25)) == [range(5, 10), range(20, 25)]
    assert record.missing(runs, COMMIT, range(12, 18)) == []
    assert record.missing([], COMMIT, range(3)) == [range(3)]


def test_a_file_reads_as_it_was_written(result: Path) -> None:
    runs = [Run(COMMIT, 0, 9, 100, {"crash": 1}, [3], 1.0)]
    record.write(result, runs)
    assert record.read(result) == runs


def test_another_file_is_not_overwritten(result: Path, played: list[int]) -> None:
    result.write_text('{"runs": [{"seed": 1}]}')
    assert run_main("--seeds", "0-10", "--result", str(result)) == 2
    assert played == []
    assert result.read_text() == '{"runs": [{"seed": 1}]}'


# Playing ------------------------------------------------------------------------------------------------------------


def test_a_run_that_was_killed_can_go_on_later(
    monkeypatch: pytest.MonkeyPatch, result: Path, played: list[int]
) -> None:
    play: Callable[..., Piece] = record.play

    def dies(commit: str, seeds: range, *, stops: bool) -> Piece:
        if seeds.start == 110:
            raise KeyboardInterrupt
        return play(commit, seeds, stops=stops)

    with monkeypatch.context() as patched:
        patched.setattr(record, "play", dies)
        run_main("--seeds", "100-120", "--result", str(result))
    assert [run.last for run in record.read(result)] == [109]
    assert run_main("--seeds", "100-120", "--result", str(result)) == 0
    assert played == list(range(100, 120)), "each seed is played once"
    assert record.read(result) == [Run(COMMIT, 100, 119, 200, {"crash": 4}, [], 8.0)]


def test_a_violation_is_printed_and_kept_and_sets_the_exit_code(result: Path, played: list[int]) -> None:
    done = CliRunner().invoke(main, ["--seeds", "0-20", "--first", "--result", str(result)])
    assert done.exit_code == 1
    assert done.output.startswith("seed 13: something\n15 seeds")
    assert played[-1] == 14
    assert record.read(result)[0].violations == [13]


def test_a_tree_with_changes_is_played_anew(monkeypatch: pytest.MonkeyPatch, result: Path, played: list[int]) -> None:
    run_main("--seeds", "20-25", "--result", str(result))
    monkeypatch.setattr(record, "commit", lambda: COMMIT + record.DIRTY)
    for _ in range(2):
        run_main("--seeds", "20-25", "--result", str(result))
    assert played == 3 * list(range(20, 25))
    assert [run.commit for run in record.read(result)] == [COMMIT, COMMIT + record.DIRTY]


def test_several_processes_count_what_one_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(record, "PIECE_SEEDS", 1)
    found = []
    for jobs in ("1", "2"):
        path = tmp_path / jobs
        assert run_main("--seeds", "1-4", "--jobs", jobs, "--result", str(path)) == 0
        (run,) = record.read(path)
        run.seconds = 0.0
        found.append(run)
    assert found[0] == found[1]
    assert found[0].grants
    assert found[0].seeds == range(1, 4)


# The code that was played ---------------------------------------------------------------------------------------------


def test_the_commit_is_that_of_the_sources(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=somebody", "-c", "user.email=", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    for name in ("tests/sim/record.py", "tests/sim/test_record.py", "src/old.py", "lua/acquire.lua", "docs/index.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("as committed")
    git("add", ".")
    git("commit", "-q", "-m", "everything")
    head = git("rev-parse", "HEAD")
    assert record.commit(tmp_path) == head
    (tmp_path / "docs" / "index.md").write_text("changed, but not played")
    assert record.commit(tmp_path) == head
    git("commit", "-q", "-a", "-m", "documents only")
    assert record.commit(tmp_path) == head
    (tmp_path / "lua" / "acquire.lua").write_text("changed")
    assert record.commit(tmp_path) == head + "-dirty"
    git("checkout", "lua")
    (tmp_path / "tests" / "sim" / "test_record.py").write_text("changed, but not played")
    assert record.commit(tmp_path) == head
    (tmp_path / "tests" / "sim" / "record.py").write_text("changed")
    assert record.commit(tmp_path) == head + "-dirty"
    git("checkout", "tests")
    (tmp_path / "src" / "new.py").write_text("not committed")
    assert record.commit(tmp_path) == head + "-dirty"


def test_outside_of_the_repository_it_is_the_version(tmp_path: Path) -> None:
    assert record.commit(tmp_path) == __version__


def test_a_run_that_can_not_be_played_to_its_end_is_bad_and_stops_no_other_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(simulation: Simulation) -> None:
        if simulation.world.seed == 3:
            raise AttributeError("it has no such thing")

    monkeypatch.setattr(Simulation, "run", run)
    piece = record.play(COMMIT, range(2, 5), stops=False)
    assert (piece.run.first, piece.run.last, piece.run.violations) == (2, 4, [3])
    (report,) = piece.reports
    assert report.startswith("seed 3: it could not be played to its end\n")
    assert report.rstrip().endswith("AttributeError: it has no such thing")
