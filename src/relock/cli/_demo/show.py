"""What people see: a live picture in a terminal, plain lines elsewhere, and the verdict as a table."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from attrs import frozen
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from relock import LockInfo
from relock.cli._demo.history import Finding
from relock.cli._demo.masters import MasterView

WITHOUT_A_LOCK, WITH_THE_LOCK = "without a lock", "with the lock"
MASTERS_KILLED, HOLDER_KILLED, WAITER_KILLED = "masters are killed", "a holder is killed", "a waiter is killed"
WAITER_CANCELLED = "a waiter is cancelled"
DRAW_SECONDS = 0.1
RATE_SECONDS = 0.25
RATES_SHOWN = 30
QUEUE_SHOWN = 6
UPPER_HEIGHT, LOWER_HEIGHT = QUEUE_SHOWN + 2, 6
SAID_SHOWN = 6
WIDTH_MAX = 104
SIDE_BY_SIDE_WIDTH = 76
_BARS = " ▁▂▃▄▅▆▇█"
_COLOURS = ("cyan", "magenta", "yellow", "blue")


@frozen
class Score:
    """How many updates were told of, how many entries the ledger has, and how many got lost, once that is known."""

    made: int = 0
    in_ledger: int = 0
    lost: int | None = None


@frozen
class View:
    """One moment: the lock as the server shows it, the ledger, the processes, the latest turns and their tokens."""

    info: LockInfo
    score: Score
    processes: tuple[tuple[str, str], ...] = ()
    recent: tuple[tuple[str, int], ...] = ()
    masters: tuple[MasterView, ...] = ()


def acts_of(*, kills_masters: bool, is_asyncio: bool) -> Sequence[str]:
    """The acts, in their order. Only a task can be cancelled."""
    killed = (MASTERS_KILLED,) if kills_masters else ()
    cancelled = (WAITER_CANCELLED,) if is_asyncio else ()
    return WITHOUT_A_LOCK, WITH_THE_LOCK, *killed, HOLDER_KILLED, *cancelled, WAITER_KILLED


def process_of(owner: str | None) -> str:
    """The name of the process in ``<client>:<uuid>``; relock makes the name unique with a suffix, which is left out."""
    return (owner or "").partition(":")[0].rpartition("-")[0]


class Stage:
    """Where the demo says what it does; in a terminal, with a picture of the lock beside it."""

    def __init__(self, console: Console, *, plain: bool, ttl: float, acts: Sequence[str]) -> None:
        self._console = console
        is_terminal = console.is_terminal and not console.is_dumb_terminal
        self._live = None if plain or not is_terminal else Live(console=console, auto_refresh=False, transient=True)
        self._ttl = ttl
        self._began = time.monotonic()
        self._title = ""
        self._acts = acts
        self._act, self._caption = 0, "starting"
        self._said: list[str] = []
        self._scores: dict[str, Score] = {}
        self._now = ""
        self._look: Callable[[], View] | None = None
        self._drawn_at = 0.0
        self._rates = _Rates()
        self._masters: Callable[[], Sequence[MasterView]] = tuple
        self._states: list[tuple[bool, bool]] = []

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def title(self, text: str) -> None:
        """What it is shown on."""
        self._title = text
        self._print(f"relock demo, on {text}")

    def act(self, name: str, caption: str) -> None:
        """The act that begins, and what it shows."""
        self._act, self._caption = self._acts.index(name), caption
        self._print(f"{self._act + 1}. {name}: {caption}")

    def say(self, text: str) -> None:
        """One line of the story."""
        self._said.append(f"{self.seconds:4.1f} s  {text}")
        self._print(f"   {text}")

    def _print(self, text: str) -> None:
        if self._live is None:
            self._console.print(f"{self.seconds:5.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    def look_at(self, name: str, look: Callable[[], View]) -> None:
        """From now on pictures are made of what `look` finds, and the score belongs to the act `name`."""
        self._now, self._look = name, look
        self._rates = _Rates()

    def settled(self, score: Score) -> None:
        """The final score of the act."""
        self._scores[self._now] = score

    def draw(self) -> None:
        """A picture of this moment, if it is time for one."""
        now = time.monotonic()
        if now < self._drawn_at + DRAW_SECONDS:
            return
        self._drawn_at = now
        if self._live is None:
            self._tell_of_masters()
            return
        if self._look is None:
            return
        view = self._look()
        self._scores[self._now] = view.score
        self._rates.count(now, view.score.made)
        self._live.update(self._picture(view), refresh=True)

    def watch(self, look: Callable[[], Sequence[MasterView]]) -> None:
        """From now on plain lines tell what `look` finds, each time that a master changes."""
        self._masters = look

    def _tell_of_masters(self) -> None:
        """A line, when a master is down that was not, or votes that did not, or the other way round."""
        masters = self._masters()
        states = [(view.up, view.votes) for view in masters]
        if states == self._states:
            return
        self._states = states
        told = ", ".join(f"{_short(view.address)} {_state(view)}" for view in masters)
        self._print(f"   masters: {told}; {holder_of(masters) or 'nobody'} holds")

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    # The picture ----------------------------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        return min(self._console.width, WIDTH_MAX)

    def _picture(self, view: View) -> RenderableType:
        lock, queue = self._lock(view), self._queue(view)
        if self._width >= SIDE_BY_SIDE_WIDTH:
            middle = Table.grid(expand=True, padding=(0, 0))
            middle.add_column(ratio=3)
            middle.add_column(ratio=2)
            middle.add_row(lock, queue)
            lower = Table.grid(expand=True, padding=(0, 0))
            lower.add_column(ratio=3)
            lower.add_column(ratio=2)
            lower.add_row(self._ledger(), self._voters(view) if view.masters else self._recent(view))
            parts: list[RenderableType] = [middle, lower]
        else:
            parts = [lock, queue, *([self._voters(view)] if view.masters else []), self._ledger()]
        frame = Table.grid(expand=False)
        frame.add_column(width=self._width)
        for part in (self._head(), *parts, self._story(SAID_SHOWN - self._lower_height(view) + LOWER_HEIGHT)):
            frame.add_row(part)
        return frame

    def _head(self) -> RenderableType:
        top = Table.grid(expand=True)
        top.add_column()
        top.add_column(justify="right")
        top.add_row(Text.assemble((" relock demo ", "bold reverse"), f"  {self._title}"), f"{self.seconds:.1f} s ")
        caption = Text(f" {self._caption}", style="italic", overflow="ellipsis", no_wrap=True)
        return Group(top, Text(), acts_line(self._acts, self._act, self._width), caption)

    def _lock(self, view: View) -> Panel:
        grid = Table.grid(padding=(0, 2), expand=True)
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
        info = view.info
        if self._act == 0:
            grid.add_row("holder", Text("nobody asks for it", style="dim"))
            grid.add_row("inside", Text("whoever likes", style="red"))
            grid.add_row("", "")
            grid.add_row("", "")
        else:
            grid.add_row("holder", self._holder(view))
            grid.add_row("hold count", Text("● " * info.hold_count + f"{info.hold_count}"))
            grid.add_row("lease left", self._lease(info))
            grid.add_row("token", Text(f"{info.token}" if info.token else "none yet"))
        kind = "updates" if self._act == 0 else "hand-offs"
        grid.add_row(
            kind,
            Text.assemble(
                (f"{self._rates.latest:4.0f} a second  ", "bold"),
                self._rates.bars(RATES_SHOWN if self._width == WIDTH_MAX else RATES_SHOWN // 2),
            ),
        )
        return _panel(grid, "the lock", UPPER_HEIGHT)

    def _holder(self, view: View) -> Text:
        process = process_of(view.info.owner)
        if not process:
            return Text("nobody, at this moment", style="dim")
        state = dict(view.processes).get(process, "works")
        text = self._worker(process, view)
        if state != "works":
            text.append(f"  {state}", style="bold red" if state == "killed" else "green")
        return text

    def _worker(self, worker: str, view: View) -> Text:
        processes = [process for process, _ in view.processes]
        process = worker.partition(".")[0]
        colour = _COLOURS[processes.index(process) % len(_COLOURS)] if process in processes else "white"
        return Text(worker, style=f"bold {colour}")

    def _lease(self, info: LockInfo) -> RenderableType:
        left = min(info.ttl, self._ttl)
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True, justify="right", min_width=11)
        style = "red" if left < self._ttl / 2 else "green"
        row.add_row(
            ProgressBar(total=self._ttl, completed=left, complete_style=style, finished_style=style),
            f"{left:.2f} of {self._ttl:g} s",
        )
        return row

    def _queue(self, view: View) -> Panel:
        waiters = view.info.queue if self._act else ()
        states = dict(view.processes)
        lines = Text()
        for place, waiter in enumerate(waiters[: QUEUE_SHOWN - (len(waiters) > QUEUE_SHOWN)], 1):
            process = process_of(waiter)
            dead = states.get(process) == "killed"
            lines.append(f"{place}. ", style="dim")
            lines.append(Text(process, style="strike red") if dead else self._worker(process, view))
            lines.append(f"  {waiter.partition(':')[2][:6]}{'  dead' if dead else ''}\n", style="dim")
        if len(waiters) > QUEUE_SHOWN:
            lines.append(f"   and {len(waiters) - QUEUE_SHOWN + 1} more", style="dim")
        if not waiters:
            lines.append("nobody waits", style="dim")
        return _panel(lines, f"the queue: {len(waiters)}", UPPER_HEIGHT)

    def _ledger(self) -> Panel:
        table = Table(box=None, expand=True, padding=(0, 1), header_style="dim")
        table.add_column("updates", no_wrap=True)
        for heading in ("made", "in the ledger", "lost"):
            table.add_column(heading, justify="right", no_wrap=True)
        for name, title in (("without", "no lock"), ("under", "lock")):
            score = self._scores.get(name)
            if score is None:
                table.add_row(title, "", "", "")
                continue
            known = "…" if score.lost is None else f"{score.lost:,}"
            lost = Text(known, style="bold red" if score.lost else "bold green")
            table.add_row(title, f"{score.made:,}", f"{score.in_ledger:,}", lost)
        return _panel(table, "the ledger, a plain file", LOWER_HEIGHT)

    def _voters(self, view: View) -> Panel:
        """Which masters have a vote, how long the others have none, and who holds the lock on each."""
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(no_wrap=True, overflow="ellipsis", style="dim", ratio=1)
        table.add_column(no_wrap=True, min_width=13)
        table.add_column(no_wrap=True, min_width=5, justify="right")
        for master in view.masters:
            style = "green" if master.votes else "yellow" if master.up else "bold red"
            holder = process_of(master.owner)
            table.add_row(_short(master.address), Text(_state(master), style=style), self._worker(holder, view))
        votes = sum(master.votes for master in view.masters)
        return _panel(table, f"the masters: {votes} of {len(view.masters)} vote", self._lower_height(view))

    def _lower_height(self, view: View) -> int:
        return max(LOWER_HEIGHT, len(view.masters) + 2)

    def _recent(self, view: View) -> Panel:
        lines = Text()
        for worker, token in view.recent[-4:]:
            lines.append(self._worker(worker, view))
            lines.append(f"  {token}\n" if token else "  no token\n", style="" if token else "dim")
        return _panel(lines, "latest turns: tokens", LOWER_HEIGHT)

    def _story(self, count: int) -> RenderableType:
        """The latest lines of the story; at least one, and where masters take room not more than leaves 24 lines."""
        lines = "\n".join(f" {line}" for line in self._said[-max(1, count) :])
        return Text(lines, style="dim", no_wrap=True, overflow="ellipsis")

    # The end --------------------------------------------------------------------------------------------------------

    def verdict(self, findings: Sequence[Finding]) -> None:
        """The table at the end, and the verdict in one line."""
        bad = sum(not finding.good for finding in findings)
        end = f"bad: {bad} of {len(findings)} findings" if bad else f"good: all {len(findings)} findings"
        if self._live is None:
            for finding in findings:
                text = f"{'ok ' if finding.good else 'BAD'}  {finding.what}: {finding.counted}"
                self._console.print(text, markup=False, highlight=False, soft_wrap=True)
            self._console.print(f"verdict: {end}", markup=False, highlight=False, soft_wrap=True)
            return
        table = Table(box=box.SIMPLE_HEAD, title=f"relock demo, on {self._title}", title_justify="left",
                      title_style="bold", width=None)  # fmt: skip
        table.add_column("")
        table.add_column("what was looked for")
        table.add_column("what was counted")
        for finding in findings:
            mark = Text("✓", style="bold green") if finding.good else Text("✗", style="bold red")
            counted = Text(finding.counted, style="" if finding.good else "bold red")
            table.add_row(mark, Text(finding.what), counted)
        self._console.print(table)
        self._console.print(Text(f" verdict: {end}", style="bold red" if bad else "bold green"))


def acts_line(acts: Sequence[str], present: int, width: int) -> Text:
    """All acts in a line, the present one marked; where they need more room, those that are over without names."""
    marks = [("✓", "green")] * present + [("▶", "bold")] + [("·", "dim")] * (len(acts) - present - 1)

    def line(names: Sequence[str]) -> Text:
        parts = [(f"{mark} {name}".rstrip(), style) for (mark, style), name in zip(marks, names, strict=True)]
        text = Text("  ").join(Text(*part) for part in parts)
        return Text.assemble(" ", text, no_wrap=True, overflow="ellipsis")

    full = line(acts)
    return full if full.cell_len <= width else line(["" if i < present else act for i, act in enumerate(acts)])


def _short(address: str) -> str:
    """Where a master is, without what all addresses have in common; of those on this machine the port."""
    return address.partition("://")[2].removeprefix("127.0.0.1").removesuffix("/0")


def _state(master: MasterView) -> str:
    if not master.up:
        return "is down"
    if master.votes:
        return "votes"
    return "no vote yet" if master.vote_in == float("inf") else f"no vote {master.vote_in:.1f} s"


def holder_of(masters: Sequence[MasterView]) -> str:
    """The process that holds the lock on a majority of the masters; empty for none."""
    holders = [process_of(master.owner) for master in masters if master.owner]
    return next((holder for holder in holders if 2 * holders.count(holder) > len(masters)), "")


def _panel(content: RenderableType, title: str, height: int) -> Panel:
    return Panel(content, title=f"[bold]{title}[/bold]", title_align="left", border_style="dim", height=height)


class _Rates:
    """Turns a second, over short stretches of time."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=RATES_SHOWN)
        self._since: tuple[float, int] | None = None

    @property
    def latest(self) -> float:
        return self._rates[-1] if self._rates else 0.0

    def count(self, now: float, turns: int) -> None:
        if self._since is None:
            self._since = (now, turns)
        seconds = now - self._since[0]
        if seconds >= RATE_SECONDS:
            self._rates.append((turns - self._since[1]) / seconds)
            self._since = (now, turns)

    def bars(self, count: int) -> Text:
        rates = list(self._rates)[-count:]
        top = max(rates, default=0.0) or 1.0
        return Text("".join(_BARS[round(rate / top * (len(_BARS) - 1))] for rate in rates), style="cyan")
