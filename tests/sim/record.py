"""The results of simulator runs, in a file that grows: ranges of seeds, each with the commit that was played.

Adjacent ranges of one commit are joined. So a long run can be stopped and go on later, and several machines can share
it.
"""

import json
import subprocess
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from attrs import Factory, asdict, define, evolve, fields
from support import compact

from relock import __version__
from sim.shards import run_of
from sim.simulation import ViolationError

DIRTY = "-dirty"
PIECE_SEEDS = 100  # between two writes of the file
_HERE = Path("tests/sim/record.py")  # in relock's repository
_PLAYED = ("src", "lua", "tests/sim", ":(exclude)tests/sim/test_*.py")  # on which a run depends


@define
class Run:
    """The result of a range of seeds.

    Attributes:
        commit: the code that was played; see `commit`.
        first: the first seed.
        last: the last seed; the range includes it.
        grants: how often a thread got the lock.
        faults: how often each fault struck.
        violations: the seeds with a violation.
        seconds: processor time, which does not count other programs of the machine.
    """

    commit: str
    first: int
    last: int
    grants: int = 0
    faults: dict[str, int] = Factory(dict)
    violations: list[int] = Factory(list)
    seconds: float = 0.0

    @property
    def seeds(self) -> range:
        """The seeds of the range."""
        return range(self.first, self.last + 1)

    @property
    def grants_per_second(self) -> int:
        """Grants per second of one core's time."""
        return round(self.grants / self.seconds) if self.seconds else 0


@define
class Piece:
    """Piece of a record: seeds that were played at one go.

    Attributes:
        reports: the seed of each violation, and its report, whose first line is the violation.
    """

    run: Run
    reports: list[str] = Factory(list)


def play(commit: str, seeds: range, *, stops: bool) -> Piece:
    """Play some seeds; with `stops`, only to the first violation."""
    begin = time.process_time()
    faults: Counter[str] = Counter()
    piece = Piece(Run(commit, seeds.start, seeds.stop - 1))
    for seed in seeds:
        simulation = run_of(seed)
        try:
            simulation.run()
        except ViolationError as error:
            piece.run.violations.append(seed)
            piece.reports.append(str(error))
        except Exception:  # a mistake of the simulator: it must be seen, and must cost no other run
            piece.run.violations.append(seed)
            piece.reports.append(f"seed {seed}: it could not be played to its end\n{traceback.format_exc()}")
        piece.run.grants += simulation.grants
        faults.update(simulation.faults)
        if stops and piece.reports:
            piece.run.last = seed
            break
    piece.run.faults = dict(sorted(faults.items()))
    piece.run.seconds = round(time.process_time() - begin, 3)
    return piece


def pieces(seeds: range) -> Iterator[range]:
    """Split a range into short ones."""
    for first in range(seeds.start, seeds.stop, PIECE_SEEDS):
        yield range(first, min(first + PIECE_SEEDS, seeds.stop))


# Adding up ----------------------------------------------------------------------------------------------------------


def add_up(runs: Iterable[Run]) -> list[Run]:
    """Return the same runs in the order in which their commits first come, with adjacent ranges joined.

    Raises:
        ValueError: a seed would count twice.
    """
    runs = list(runs)
    commits = list(dict.fromkeys(run.commit for run in runs))
    added: list[Run] = []
    for run in sorted(runs, key=lambda run: (commits.index(run.commit), run.first)):
        before = added[-1] if added and added[-1].commit == run.commit else None
        if before is not None and run.first <= before.last:
            raise ValueError(f"seed {run.first} was counted already, on {run.commit}")
        if before is not None and run.first == before.last + 1:
            added[-1] = _joined(before, run)
        else:
            added.append(run)
    return added


def _joined(run: Run, other: Run) -> Run:
    return evolve(
        run,
        last=other.last,
        grants=run.grants + other.grants,
        faults=dict(sorted((Counter(run.faults) + Counter(other.faults)).items())),
        violations=run.violations + other.violations,
        seconds=round(run.seconds + other.seconds, 3),
    )


def missing(runs: Iterable[Run], commit: str, seeds: range) -> list[range]:
    """Return the seeds that have not been played on this commit."""
    left, start = [], seeds.start
    for run in sorted((run for run in runs if run.commit == commit), key=lambda run: run.first):
        left.append(range(start, min(run.first, seeds.stop)))
        start = max(start, run.last + 1)
    left.append(range(start, seeds.stop))
    return [part for part in left if part]


# The file -----------------------------------------------------------------------------------------------------------


def read(path: Path) -> list[Run]:
    """Return the runs of a file; none if there is no file yet.

    Raises:
        ValueError: the file has another content.
    """
    if not path.exists():
        return []
    names = [field.name for field in fields(Run)]
    try:
        return [Run(**{name: entry[name] for name in names}) for entry in json.loads(path.read_text())["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no result of the simulator") from error


def write(path: Path, runs: Iterable[Run]) -> None:
    """Write all runs in one step: a process that is stopped leaves the old file or the new one."""
    entries = [{**asdict(run), "grants_per_second": run.grants_per_second} for run in runs]
    compact.write(path, {"runs": entries})


# The code that is played ----------------------------------------------------------------------------------------------


def commit(folder: Path | None = None) -> str:
    """Return the last commit that changed code on which a run depends, with ``-dirty`` if the tree changes it further.

    So a commit of something else, such as a result, does not make a long run another one. Outside of relock's
    repository, this is the version.

    Args:
        folder: the repository's folder; by default the one that this file lies in.
    """
    root = folder or Path(__file__).resolve().parents[len(_HERE.parents) - 1]
    if _git(root, "ls-files", "--", str(_HERE)) != str(_HERE):
        return __version__
    is_dirty = bool(_git(root, "status", "--porcelain", "--", *_PLAYED))
    return _git(root, "log", "-1", "--format=%H", "--", *_PLAYED) + DIRTY * is_dirty


def _git(root: Path, *words: str) -> str:
    """Return git's answer about the repository that has its root here; empty if there is none, or no git."""
    command = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}", *words]
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
