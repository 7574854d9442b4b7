"""Tracing instruction by instruction, on every Python."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def trace_instructions(trace: Callable[[FrameType, str, Any], Any]) -> None:
    """`sys.settrace` for a function that asks frames for their opcodes.

    CPython 3.12 looks once, when tracing begins, whether any frame has ever asked: without one, nobody hears of an
    instruction.
    """
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
