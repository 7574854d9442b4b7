"""A thread of its own that writes to stderr: in order, complete if stderr is read, and no caller waits for it."""

import os
import re
from collections.abc import Iterator

import pytest

from relock.cli._scribe import LINES_MAX, Scribe

WITHIN = 30.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def read_until(reader: int, end: bytes) -> list[bytes]:
    got = b""
    while not got.endswith(end):
        got += os.read(reader, 65536)
    return got.splitlines()


def fill(writer: int) -> int:
    os.set_blocking(writer, False)
    count = 0
    try:
        while True:
            count += os.write(writer, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
    return count


def test_lines_come_in_their_order_and_are_there_after_a_flush(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    scribe = Scribe(writer)
    for number in range(100):
        scribe.write(b"%d\n" % number)
    scribe.flush(WITHIN)
    os.set_blocking(reader, False)
    assert os.read(reader, 65536).splitlines() == [b"%d" % number for number in range(100)]


def test_if_nobody_reads_nobody_waits_and_lines_that_are_too_many_are_counted(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    filled = fill(writer)
    scribe = Scribe(writer)
    for number in range(LINES_MAX + 10):
        scribe.write(b"%d\n" % number)
    scribe.flush(0.0)
    left = filled
    while left:
        left -= len(os.read(reader, left))
    *written, last = read_until(reader, b"in time\n")
    assert written == [b"%d" % number for number in range(len(written))]
    missing = re.match(rb"relock: (\d+) lines are missing", last)
    assert missing is not None
    assert len(written) + int(missing[1]) == LINES_MAX + 10
    assert len(written) >= LINES_MAX


def test_a_line_is_complete_also_where_the_descriptor_does_not_block(pipe: tuple[int, int]) -> None:
    """Descriptors may not block: any process that shares the open file may have set that property."""
    reader, writer = pipe
    os.set_blocking(writer, False)
    long = b"x" * 1_000_000 + b"\n"
    Scribe(writer).write(long)
    assert read_until(reader, b"\n") == [long[:-1]]


def test_a_reader_that_is_gone_harms_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    scribe = Scribe(writer)
    scribe.write(b"a\n")
    scribe.flush(WITHIN)
    os.close(writer)
