"""What people see: a live picture in a terminal, plain lines elsewhere, and the verdict as a table."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from relock import Client, LockInfo, RelockError
from relock.cli._demo.history import Finding
from relock.cli._demo.worker import TTL_SECONDS

REFRESHES_PER_SECOND = 10
QUEUE_SHOWN = 6
TOKENS_SHOWN = 5


class Stage:
    """Where the demo says what it does; in a terminal, with a picture of the lock beside it."""

    def __init__(self, console: Console, *, plain: bool) -> None:
        self._console = console
        self._live = None if plain or not console.is_terminal else Live(console=console, auto_refresh=False)
        self._said: list[str] = []
        self._look: Callable[[], LockInfo | None] = lambda: None
        self._handed_over: Callable[[], int] = lambda: 0
        self._rate = _Rate()
        self._tokens: deque[int] = deque(maxlen=TOKENS_SHOWN)
        self._over = threading.Event()
        self._painter = threading.Thread(target=self._paint, daemon=True)

    def say(self, text: str) -> None:
        """One line of the story."""
        self._said.append(text)
        if self._live is None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def watch(self, client: Client, name: str, handed_over: Callable[[], int]) -> None:
        """Shows this lock from now on; `handed_over` counts the turns so far."""

        def look() -> LockInfo | None:
            try:
                return client.info(name)
            except RelockError:
                return None

        self._look, self._handed_over = look, handed_over

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
            self._painter.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if self._live is not None:
            self._painter.join(2.0)
            self._live.update(self._story(), refresh=True)
            self._live.stop()

    def _paint(self) -> None:
        while self._live is not None and not self._over.wait(1 / REFRESHES_PER_SECOND):
            self._live.update(Group(self._story(), self._picture(self._look())), refresh=True)

    def _story(self) -> Panel:
        return Panel(Text("\n".join(self._said)), title="relock demo", title_align="left", border_style="cyan")

    def _picture(self, info: LockInfo | None) -> Panel:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", justify="right", min_width=14)
        grid.add_column(min_width=60)
        if info is None:
            grid.add_row("", Text("no lock yet", style="dim"))
            return Panel(grid, title="the lock", title_align="left")
        if info.token and info.token not in self._tokens:
            self._tokens.append(info.token)
        left = 0.0 if info.owner is None else min(info.ttl, TTL_SECONDS)
        grid.add_row("holder", Text(short(info.owner) if info.owner else "nobody", style="green"))
        grid.add_row("hold count", str(info.hold_count))
        grid.add_row("lease left", ProgressBar(total=TTL_SECONDS, completed=left, width=30))
        grid.add_row("", f"{left:.2f} s of {TTL_SECONDS} s")
        grid.add_row("queue", _queue(info.queue))
        grid.add_row("tokens", "  ".join(f"…{token % 10**9:09d}" for token in self._tokens))
        grid.add_row("hand-offs", f"{self._rate.of(self._handed_over()):.0f} a second")
        return Panel(grid, title="the lock", title_align="left")

    def verdict(self, findings: Sequence[Finding]) -> None:
        """The table at the end."""
        if self._console.is_terminal:
            table = Table(title="Verdict", title_justify="left")
            for title in ("", "what was looked for", "counted"):
                table.add_column(title)
            for finding in findings:
                mark = Text("good", style="green") if finding.good else Text("BAD", style="bold red")
                table.add_row(mark, finding.what, finding.counted)
            self._console.print(table)
        else:
            for finding in findings:
                self._console.print(
                    f"{'good' if finding.good else 'BAD '}  {finding.what}: {finding.counted}",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )


class _Rate:
    """Turns a second, over the last second."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, count: int) -> float:
        now = time.monotonic()
        self._seen.append((now, count))
        while self._seen[0][0] < now - 1.0:
            self._seen.popleft()
        (then, before), seconds = self._seen[0], now - self._seen[0][0]
        return (count - before) / seconds if seconds and then else 0.0


def short(owner: str) -> str:
    """``<client>:<uuid>``, as much of it as tells two of them apart."""
    client, _, uuid = owner.partition(":")
    return f"{client.rpartition('-')[0]}:{uuid[:6]}"


def _queue(waiters: Sequence[str]) -> Text:
    shown = " ".join(short(waiter) for waiter in waiters[:2])
    more = f"  and {len(waiters) - 2} more" if len(waiters) > 2 else ""
    return Text(f"{shown}{more}" or "nobody waits")
