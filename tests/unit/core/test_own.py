"""The token of an owner that reads inside its own writing is above that of its hold as the writer."""

from typing import Any

import pytest
from support.pure_host import JOB, OPTIONS, PureHost

from relock._core.call_record import CallFlow
from relock._core.effects import Ask, Failure
from relock._core.hold import Hold
from relock._core.own import beside_own
from relock._core.quorum import NoQuorum, judge
from relock._owner import as_reader

FENCED = [b"fenced", 0]
SILENT = Failure("c", "silent")


def read_inside(masters: int, *tokens: int) -> CallFlow[tuple[bytes, NoQuorum | None]]:
    """Let a caller ask to read that is the writer; the masters have given it these tokens."""
    host = PureHost(masters)
    answers = [([b"granted", 0, token],) for token in tokens]
    grant: Any = judge(answers, host.spec.masters, host.now + 10.0, host.now)
    host.holds["a", JOB.key] = Hold(host.spec, b"me:17@3000", JOB, grant, 1)
    return beside_own(host, host.spec.for_readers(OPTIONS), as_reader(JOB))


def test_the_token_is_written_where_masters_gave_different_ones() -> None:
    flow = read_inside(3, 5, 6, 9)
    ask = next(flow)
    assert isinstance(ask, Ask)
    assert [(call.script.name, call.own.split(b"\r\n")[1]) for call in ask.calls] == [("fence", b"9")]
    with pytest.raises(StopIteration) as end:
        flow.send([(FENCED,), (FENCED,), (SILENT,)])
    assert end.value.value == (b"17", None)


def test_too_few_masters_with_the_token_are_no_quorum() -> None:
    flow = read_inside(3, 5, 6, 9)
    next(flow)
    with pytest.raises(StopIteration) as end:
        flow.send([(FENCED,), (SILENT,), (SILENT,)])
    assert isinstance(end.value.value[1], NoQuorum)


@pytest.mark.parametrize("tokens", [(7,), (7, 7, 7)])
def test_nobody_is_asked_where_all_masters_gave_that_token(tokens: tuple[int, ...]) -> None:
    with pytest.raises(StopIteration) as end:
        next(read_inside(len(tokens), *tokens))
    assert end.value.value == (b"17", None)
