"""The lines that the demo prints; in a terminal, the ledger and the lock stay in sight below them."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from relock.cli._demo.verdict import Finding

REFRESHES_A_SECOND = 8


class Screen:
    """Printer of one line for each event of the story, with the seconds since the demo began.

    Args:
        plain: print nothing but these lines, also in a terminal.
        acts: how many acts there are.
    """

    def __init__(self, console: Console, *, plain: bool, acts: int) -> None:
        self._console, self._acts, self._act = console, acts, 0
        self._began = time.monotonic()
        self._status = ""
        self._is_live = console.is_terminal and not console.is_dumb_terminal and not plain

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def live(self) -> AbstractContextManager[Any]:
        """Keep the status in sight while the block lasts."""
        if not self._is_live:
            return nullcontext()
        return Live(
            get_renderable=lambda: Group(Text(self._status, style="bold"), ProgressBar(self._acts, self._act)),
            console=self._console,
            refresh_per_second=REFRESHES_A_SECOND,
            transient=True,
        )

    def status(self, text: str) -> None:
        """Show `text` below the story from now on."""
        self._status = text

    def act(self, text: str) -> None:
        """Print the heading of the next act."""
        self._act += 1
        self._print(f"{self.seconds:5.1f} s  {self._act}. {text}", "bold")

    def say(self, text: str) -> None:
        """Print one event."""
        self._print(f"{self.seconds:5.1f} s     {text}")

    def title(self, text: str) -> None:
        """Print a line that is no event."""
        self._print(text, "bold")

    def verdict(self, findings: Sequence[Finding], *, stopped: bool) -> None:
        """Print the findings, and one line: the verdict on them, or that the demo was stopped."""
        for finding in findings:
            style = "green" if finding.good else "bold red"
            self._print(f"{'ok ' if finding.good else 'BAD'}  {finding.what}: {finding.counted}", style)
        bad = sum(not finding.good for finding in findings)
        if stopped:
            self._print(f"stopped after {self.seconds:.1f} s: this was counted so far", "bold")
        else:
            text = f"bad: {bad} of {len(findings)} findings" if bad else f"good: all {len(findings)} findings"
            self._print(f"verdict: {text}", "bold red" if bad else "bold green")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=not self._is_live)
