"""Episodes: workers at work, faults in waves, and then the verdict on the histories of the workers."""

import random
import shutil
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from chaos.catalogue import KINDS
from chaos.faults import LEASES_AHEAD_MAX
from chaos.field import Blow, Field, FieldPlan
from chaos.history import Reader, clock
from chaos.kinds import Kind
from chaos.permits import left_over
from chaos.verdict import Finding, judge
from chaos.waiting import wait_until

WARM_UP_SECONDS = 1.0
FINISH_SECONDS = 60.0  # far beyond every bound: a longer wait would never end
ALONE_PART = 0.6  # of the waves: one fault strikes alone
MIXED_MAX = 3
MINORITY_PART = 0.6
OVERSLEEP_SECONDS = 0.01


@frozen
class Episode:
    """Episode: its faults, their masters and their times; the same seed makes the same choices.

    Attributes:
        kinds: the faults to choose from; all of them, if it is empty.
        reach: the part of several masters that faults strike; None for now a minority, now a majority.
        pause: the longest time (s) between two waves of faults.
        calm: for how many seconds nothing strikes at the end.
        first: the faults that come before all others, each once and alone, however long that takes.
    """

    plan: FieldPlan
    seconds: float
    kinds: Sequence[str] = ()
    reach: str | None = None
    pause: float = 0.5
    calm: float = 3.0
    first: Sequence[str] = ()


SHAPES: dict[str, dict[str, Any]] = {
    "crowded": {"locks": 3, "long": 0.01},  # all workers want the same locks, and every fault may strike
    "several": {"locks": 4, "long": 0.01, "several": 0.5},  # the same, and half of the turns take two locks at once
    "crossed": {"locks": 4, "crossed": 0.4},  # as crowded, but workers with a lock take another one, in no order
    "permits": {"locks": 2, "long": 0.01, "limit": 2},  # as crowded, but of semaphores
    "readers": {"locks": 2, "long": 0.02, "reads": 0.6},  # as crowded, but most turns read
    "latches": {"locks": 3, "parties": 4},  # as crowded, but half of the turns are visits to latches
    "busy": {"locks": 48, "crowd": 0.2, "think": 0.0005, "long": 0.001, "is_direct": True},  # many short holds
    "moving": {"locks": 3, "long": 0.02, "has_replicas": True, "caches": 8},  # masters change places with replicas
    "unguarded": {"locks": 3, "long": 0.02, "has_replicas": True, "guard": 0.0},  # moves that lose no grant
}
PAUSES = {"busy": 3.0}  # between faults; other shapes have shorter ones
FIRST = {  # the faults that only these shapes have
    "moving": sorted(kind.name for kind in KINDS.values() if kind.needs_replicas or kind.is_inside),
    "unguarded": sorted(kind.name for kind in KINDS.values() if kind.needs_replicas and kind.keeps),
}


def shaped(shape: str, masters: int, seed: str, seconds: float, kinds: Sequence[str] = (), **plan: Any) -> Episode:
    """Return an episode of one of the shapes above."""
    first = () if kinds else FIRST.get(shape, ())
    pause = PAUSES.get(shape, 0.5)
    return Episode(FieldPlan(masters, seed, **SHAPES[shape], **plan), seconds, kinds, pause=pause, first=first)


def run(episode: Episode, keep: Path | None = None) -> Finding:
    """Run an episode and judge it; copy a bad history to the folder `keep`."""
    with Field(episode.plan) as field_, Stalls() as stalls:
        field_.wait_for_workers()
        begin = clock()
        time.sleep(WARM_UP_SECONDS)
        Waves(episode, field_).run()
        time.sleep(episode.calm)
        calm_end = clock()
        stuck = field_.finish(FINISH_SECONDS)
        left = left_over(field_.servers) if (episode.plan.limit or episode.plan.reads) and not stuck else []
        reader = Reader()
        history = reader.read(field_.folder)
        finding = judge(episode.plan, history, field_.blows, stalls.longest, calm_end)
        finding.violations += left
        finding.expected = {*episode.first}
        finding.seconds = calm_end - begin
        finding.servers = {field_.server_name}
        finding.errors += [*reader.errors, *field_.failures, *(f"{process} did not end" for process in stuck)]
        if keep is not None and not finding.is_good:
            _keep(field_, finding, keep)
        return finding


def _keep(field_: Field, finding: Finding, folder: Path) -> None:
    target = folder / f"chaos-{field_.plan.masters}-{field_.plan.seed}".replace(" ", "-")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for path in field_.folder.glob("*.jsonl"):
        shutil.copy(path, target)
    text = [*map(str, finding.violations), *finding.errors, *finding.late, "", *map(str, field_.blows)]
    (target / "finding.txt").write_text("\n".join(text))
    finding.kept = str(target)


class Stalls:
    """Stalls of this process, which could not run when it should have: all others may be late by as much."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            before = clock()
            time.sleep(OVERSLEEP_SECONDS)
            self.longest = max(self.longest, clock() - before - OVERSLEEP_SECONDS)

    def __enter__(self) -> "Stalls":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


@define
class Waves:
    """The faults of an episode, wave after wave: one alone, or some that overlap."""

    episode: Episode
    field_: Field
    dice: random.Random = field(init=False)
    number: int = 0
    _first: list[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.dice = random.Random(f"{self.episode.plan.seed} waves")
        self._first = self.dice.sample(self.episode.first, len(self.episode.first))

    def run(self) -> None:
        """Strike until the time is over, and all faults that must come first have come."""
        end = clock() + self.episode.seconds
        while clock() < end or self._first:
            kinds, blows = self.choose()
            self._strike(kinds, blows)
            self._rest(kinds)

    def choose(self) -> tuple[list[Kind], list[Blow]]:
        """Return the kinds of the next wave, and a blow for each."""
        self.number += 1
        kinds = self._kinds()
        return kinds, [self._blow(kind) for kind in kinds]

    def _kinds(self) -> list[Kind]:
        if self._first:
            return [KINDS[self._first.pop()]]
        plan, named = self.episode.plan, [KINDS[name] for name in self.episode.kinds]
        kinds = named or [kind for _, kind in sorted(KINDS.items()) if kind.is_borne(plan)]
        kinds = [kind for kind in kinds if kind.is_possible(plan)]
        first = self.dice.choices(kinds, [kind.weight for kind in kinds])[0]
        rest = [kind for kind in kinds if kind is not first and first.may_come_with(kind)]
        if not rest or self.dice.random() < ALONE_PART:
            return [first]
        return [first, *self.dice.sample(rest, min(len(rest), self.dice.randrange(1, MIXED_MAX)))]

    def _blow(self, kind: Kind) -> Blow:
        if kind.whom != "masters":
            return Blow(kind.name, kind.whom, wave=self.number)
        masters = range(self.episode.plan.masters)
        if len(masters) == 1:
            return Blow(kind.name, "all", (0,), wave=self.number)
        reach = self.episode.reach or ("minority" if self.dice.random() < MINORITY_PART else "majority")
        if kind.minority:
            return Blow(kind.name, "minority", (self.dice.choice(masters),), wave=self.number)
        minority = (len(masters) - 1) // 2
        sizes = range(1, minority + 1) if reach == "minority" else range(minority + 1, len(masters) + 1)
        return Blow(kind.name, reach, tuple(self.dice.sample(masters, self.dice.choice(sizes))), wave=self.number)

    def _strike(self, kinds: Sequence[Kind], blows: Sequence[Blow]) -> None:
        """Strike with all faults at about the same time; return when all is mended."""
        self.field_.blows += blows
        threads = []
        for kind, blow in zip(kinds, blows, strict=True):
            offset = 0.0 if len(kinds) == 1 else self.dice.uniform(0.0, 0.5)
            dice = random.Random(f"{self.episode.plan.seed} {self.number} {kind.name}")
            threads.append(threading.Thread(target=self._one, args=(kind, blow, dice, offset)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _one(self, kind: Kind, blow: Blow, dice: random.Random, offset: float) -> None:
        time.sleep(offset)
        blow.begin = clock()
        try:
            kind.strike(self.field_, dice, blow)
        except Exception:
            self.field_.failures.append(f"{kind.name}: {traceback.format_exc()}")
        blow.end = clock()

    def _rest(self, kinds: Sequence[Kind]) -> None:
        """Wait for the effect of a fault that struck alone, so that the next fault is not blamed for it."""
        plan = self.episode.plan
        time.sleep(self.dice.uniform(0.0, self.episode.pause))
        if any(kind.lonely for kind in kinds):
            # A clock may have been ahead. If its master forgot the tokens before the clock shows that time again,
            # tokens would fall, which is the exception of guarantee 4.
            time.sleep(LEASES_AHEAD_MAX * plan.ttl)
        if len(kinds) > 1:
            return
        before = dict(self.field_.store.entries)
        if kinds[0].forgets:
            time.sleep(1.05 * plan.guard)
        wait_until(lambda: self._have_entered_since(before), kinds[0].bound(plan.ttl, plan.guard))

    def _have_entered_since(self, before: dict[str, int]) -> bool:
        """Return whether each lock has had a new holder."""
        now = self.field_.store.entries
        return len(now) >= self.episode.plan.locks and all(now[lock] > before.get(lock, 0) for lock in list(now))
