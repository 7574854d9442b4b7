"""The lines that the demo prints; in a terminal, the ledger and the lock stay in sight below them."""

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from relock.cli._demo.verdict import Finding


class Screen:
    """Printer of one line for each event of the story, with the seconds since the demo began."""

    def __init__(self, console: Console, *, acts: int) -> None:
        self._console, self._acts, self._act = console, acts, 0
        self._began = time.monotonic()
        self.status = ""  # the text that stays in sight below the story

    @property
    def seconds(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self._began

    def live(self) -> Live:
        """Keep the status in sight while the block lasts, in a terminal."""
        return Live(self, console=self._console, refresh_per_second=8, transient=True)

    def __rich__(self) -> Group:
        return Group(Text(self.status, style="bold"), ProgressBar(self._acts, self._act))

    def act(self, text: str) -> None:
        """Print the heading of the next act."""
        self._act += 1
        self.show(f"{self.seconds:5.1f} s  {self._act}. {text}", "bold")

    def say(self, text: str) -> None:
        """Print one event."""
        self.show(f"{self.seconds:5.1f} s     {text}")

    def verdict(self, findings: Sequence[Finding], *, stopped: bool) -> None:
        """Print the findings, and one line: the verdict on them, or that the demo was stopped."""
        for finding in findings:
            mark, style = ("ok ", "green") if finding.good else ("BAD", "bold red")
            self.show(f"{mark}  {finding.what}: {finding.counted}", style)
        bad = sum(not finding.good for finding in findings)
        count, style = (f"bad: {bad} of", "bold red") if bad else ("good: all", "bold green")
        so_far = f"stopped after {self.seconds:.1f} s: this was counted so far"
        self.show(so_far if stopped else f"verdict: {count} {len(findings)} findings", "bold" if stopped else style)

    def show(self, text: str, style: str = "") -> None:
        """Print a line that is no event."""
        self._console.print(Text(text, style=style), soft_wrap=not self._console.is_terminal)
