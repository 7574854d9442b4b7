"""An exception at any instruction, on every Python, as a signal handler may raise one."""

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import relock
from relock._core.interrupts import Interrupted

SOURCE = str(Path(relock.__file__).parent)


class Interrupt(BaseException):
    """Exception that the tests raise; relock does not know the class."""


def is_of_relock(code: CodeType) -> bool:
    """Return whether the code is relock's own."""
    return code.co_filename.startswith(SOURCE)


def is_any(_: CodeType) -> bool:
    """Return True: every function counts that is called from here on, also of the standard library."""
    return True


def is_closing(frame: FrameType) -> bool:
    """Return whether a generator expression is being closed, after its last yield.

    Python drops an exception there, and looks for no signal. CPython 3.14 reports the instruction, which has no line.
    """
    return frame.f_code.co_name == "<genexpr>" and frame.f_lineno is None


def points(total: int, seed: int, count: int) -> range:
    """Return about `count` numbers of instructions to raise at, which the seed chooses."""
    step = max(1, total // count)
    return range(1 + seed % step, total + 1, step)


class Strike:
    """Counter of the instructions that this thread executes in the body of a ``with``, which raises `Interrupt` at one.

    The garbage collector is off meanwhile: it would run finalizers of objects that other tests have left, and a strike
    in a finalizer would miss the body.

    Args:
        raise_at: the number of the instruction at which to raise, from 1; None only counts.
        within: whether the instructions of a function count, by its code.

    Attributes:
        count: the number of instructions so far.
        where: function and line of the instruction at which `Interrupt` was raised.
    """

    def __init__(self, raise_at: int | None = None, within: Callable[[CodeType], bool] = is_of_relock) -> None:
        self.count = 0
        self.where = ""
        self._raise_at = raise_at
        self._within = within
        self._collects = False

    def __enter__(self) -> "Strike":
        self._collects = gc.isenabled()
        gc.disable()
        # CPython 3.12 looks once, when tracing begins, whether any frame has ever asked for its opcodes: without one,
        # it reports no instruction.
        sys._getframe().f_trace_opcodes = True
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)
        if self._collects:
            gc.enable()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code is Strike.__exit__.__code__ or not self._within(frame.f_code):
            return None
        frame.f_trace_opcodes = True  # beside its lines: without those, CPython 3.13 reports no opcodes in a first call
        if event == "opcode" and not is_closing(frame):
            self.count += 1
            if self.count == self._raise_at:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                sys.settrace(None)
                frame.f_trace = None
                raise Interrupt(self.where)
        return self._trace


def strike_clean_up(monkeypatch: pytest.MonkeyPatch, method: str, second: Strike, play: Callable[[], object]) -> None:
    """Make a call that is interrupted, with a second strike in the method of `Interrupted` that cleans up after it."""
    clean_up = getattr(Interrupted, method)

    def struck(self: Interrupted, *words: Any) -> None:
        monkeypatch.undo()
        with second:
            clean_up(self, *words)

    monkeypatch.setattr(Interrupted, method, struck)
    play()
    monkeypatch.undo()
