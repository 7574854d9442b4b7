"""The demo in a small terminal: no sentence is cut, and the ledger stays in sight."""

import re
from io import StringIO

import pytest
from rich.console import Console

from relock.cli._demo.screen import Screen
from relock.cli._demo.verdict import Finding

SENTENCE = "masters are killed: 2 of 5; the others are a quorum, and the workers notice nothing of that at all"
STATUS = "12 s · ledger: 1,203 updates, 0 lost · semaphore: birch for 1.9 s, maple for 2.0 s, 4 wait"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20)])
def test_every_word_is_shown_on_a_terminal(width: int, height: int) -> None:
    shown = StringIO()
    screen = Screen(Console(file=shown, force_terminal=True, width=width, height=height, color_system=None), acts=4)
    with screen.live() as live:
        screen.act(SENTENCE)
        screen.status = STATUS
        live.refresh()
    screen.verdict([Finding("at most 1 at a time", "1 at once in 803 updates", good=True)], stopped=False)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", " ", shown.getvalue()).replace("\r", "\n")  # without control codes
    words = text.split()
    for said in (SENTENCE, STATUS, "at most 1 at a time: 1 at once", "verdict: good: all 1 findings"):
        assert any(words[i : i + len(said.split())] == said.split() for i in range(len(words))), said
    assert max(len(line.strip()) for line in text.splitlines()) <= width
    assert "…" not in text


def test_a_demo_that_was_stopped_has_no_verdict() -> None:
    shown = StringIO()
    screen = Screen(Console(file=shown), acts=4)
    screen.verdict([Finding("at most 1 at a time", "1 at once in 803 updates", good=True)], stopped=True)
    assert "1 at once in 803 updates" in shown.getvalue()
    assert "counted so far" in shown.getvalue()
    assert "verdict" not in shown.getvalue()
