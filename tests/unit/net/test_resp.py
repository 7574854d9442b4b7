"""The parser that takes bytes as they come: wherever they are cut, the replies are those that hiredis finds."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import exceptions as redis_errors

from relock._runtime.net.resp import DEPTH_MAX, Parser

hiredis = pytest.importorskip("hiredis")

Reply = bytes | int | list[Any] | None

REPLIES: st.SearchStrategy[Reply] = st.recursive(
    st.one_of(st.binary(max_size=20), st.integers(-(2**62), 2**62), st.none()),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)


def packed(reply: Reply) -> bytes:
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n%b" % (len(reply), b"".join(map(packed, reply)))


@given(replies=st.lists(REPLIES, min_size=1, max_size=5), cuts=st.lists(st.integers(1, 40), min_size=1))
def test_replies_are_found_wherever_they_are_cut(replies: list[Reply], cuts: list[int]) -> None:
    data, parser, found, at = b"".join(map(packed, replies)), Parser(), list[Any](), 0
    while at < len(data):
        size = cuts[len(found) % len(cuts)]
        found += parser.parse(data[at : at + size])
        at += size
    assert found == replies
    assert not parser.has_part()


def test_errors_and_lines_are_what_hiredis_makes_of_them() -> None:
    data = b"+OK\r\n-NOSCRIPT No matching script.\r\n*2\r\n+a b\r\n*-1\r\n"
    reader = hiredis.Reader(replyError=redis_errors.ResponseError)
    reader.feed(data)
    ok, error, mixed = Parser().parse(data)
    assert ok == reader.gets()
    assert (type(error), str(error)) == (type(known := reader.gets()), str(known))
    assert mixed == reader.gets()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n",
        b":one\r\n",
        b":--1\r\n",
        b"$1\r\nabc\r\n",
        b"*1\r\n" * (DEPTH_MAX + 1) + b":1\r\n",
        b"$" + b"9" * 30 + b"\r\n",
    ],
)
def test_what_no_master_sends_breaks_the_connection(data: bytes) -> None:
    with pytest.raises(redis_errors.RedisError):
        Parser().parse(data)


def test_a_part_is_known_to_be_one() -> None:
    parser = Parser()
    assert parser.parse(b"*2\r\n:1\r\n") == []
    assert parser.has_part()
    assert parser.parse(b":2\r\n") == [[1, 2]]
    assert not parser.has_part()
