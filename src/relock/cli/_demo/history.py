"""What the workers told, and the verdict on it: counted, not assumed. Pure functions over values."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from attrs import define, field, frozen

from relock.cli._demo.ledger import Entry

HEIR_SECONDS_MAX = 1.5 + 3.0  # the killed holder's lease, and the longest that a lost wake-up costs
HANDOVER_SECONDS_MAX = 1.0


@frozen
class Update:
    """One update that a worker told of, after it was written; times of CLOCK_MONOTONIC, in seconds."""

    worker: str
    serial: int
    token: int
    levels: int
    entered: float
    left: float


@define
class History:
    """All that happened in one phase."""

    updates: list[Update] = field(factory=list)
    entries: Sequence[Entry] = ()
    killed: set[str] = field(factory=set)
    heir_after: float | None = None
    handover_after: float | None = None


@frozen
class Finding:
    """One line of the verdict."""

    what: str
    counted: str
    good: bool


def lost_updates(history: History) -> int:
    """How many updates that were told of are not in the ledger."""
    written = {(entry.worker, entry.serial) for entry in history.entries}
    return sum((update.worker, update.serial) not in written for update in history.updates)


def strangers(history: History) -> int:
    """How many entries are in the ledger twice, or were told of by nobody, killed workers aside."""
    told = {(update.worker, update.serial) for update in history.updates}
    seen: set[tuple[str, int]] = set()
    count = 0
    for entry in history.entries:
        key = (entry.worker, entry.serial)
        count += key in seen or (key not in told and entry.worker not in history.killed)
        seen.add(key)
    return count


def overlaps(updates: Iterable[Update]) -> int:
    """How many updates began before the one before them had ended."""
    ordered = sorted(updates, key=lambda update: update.entered)
    latest, count = float("-inf"), 0
    for update in ordered:
        count += update.entered < latest
        latest = max(latest, update.left)
    return count


def falling_tokens(entries: Sequence[Entry]) -> int:
    """How many entries have a token that is not above the one before."""
    return sum(after.token <= before.token for before, after in pairwise(entries))


def verdict(without: History, under: History, expected: int) -> list[Finding]:
    """The findings on a phase without the lock and one under it, where `expected` updates were to be made."""
    lost, made = lost_updates(without), len(without.updates)
    wrong_levels = sum(update.levels != 2 for update in under.updates)
    return [
        Finding("without the lock", f"{lost} of {made} updates lost, {overlaps(without.updates)} overlaps", lost > 0),
        Finding("with it, updates made", f"{len(under.updates)} of {expected}", len(under.updates) == expected),
        Finding("with it, updates lost", f"{lost_updates(under)}", lost_updates(under) == 0),
        Finding("entries that nobody made", f"{strangers(under)}", strangers(under) == 0),
        Finding("overlaps", f"{overlaps(under.updates)}", overlaps(under.updates) == 0),
        Finding("tokens that do not rise", f"{falling_tokens(under.entries)}", falling_tokens(under.entries) == 0),
        Finding("nested holds miscounted", f"{wrong_levels}", wrong_levels == 0),
        _within("holder killed: the next one had it", under.heir_after, HEIR_SECONDS_MAX),
        _within("waiter killed: the one behind it had it", under.handover_after, HANDOVER_SECONDS_MAX),
    ]


def _within(what: str, seconds: float | None, limit: float) -> Finding:
    if seconds is None:
        return Finding(what, "never", False)
    return Finding(what, f"after {seconds:.3f} s (at most {limit} s)", seconds <= limit)
