"""Parser of replies in Python, used if hiredis is not installed.

redis-py's own parser would not do: it reads the socket itself, and waits there for the rest of a reply. Of the protocol
(RESP 2, as Redis documents it), this parser knows the types that masters send: lines, numbers, errors, strings, lists.
"""

from collections.abc import Generator
from typing import Any

from redis import exceptions as redis_errors

DEPTH_MAX = 8  # no reply of a master has lists nested so deep
DIGITS_MAX = 20  # a number and its sign have no more characters

Parsing = Generator[None, None, Any]


class Parser:
    """Parser that takes bytes as they come, and returns complete replies."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._parsing: Parsing | None = None  # the parsing of a reply that has begun

    def has_part(self) -> bool:
        """Return whether the parser has a part of a reply whose rest is yet to come."""
        return self._parsing is not None or bool(self._data)

    def parse(self, data: bytes) -> list[Any]:
        """Return the replies that are complete with `data`; an error among them is a `redis.ResponseError`.

        Raises:
            redis.RedisError: the connection was closed, or `data` is no reply of a master.
        """
        if not data:
            raise redis_errors.ConnectionError("the server closed the connection")
        self._data += data
        replies: list[Any] = []
        while self._data or self._parsing is not None:
            parsing = self._parsing or self._reply(0)
            try:
                next(parsing)
            except StopIteration as end:
                self._parsing = None
                replies.append(end.value)
            else:
                self._parsing = parsing
                break
        return replies

    def _reply(self, depth: int) -> Parsing:
        line = yield from self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return redis_errors.ResponseError(rest.decode(errors="replace"))
        if kind == b":":
            return _number(rest)
        if kind == b"$":
            return (yield from self._string(_number(rest)))
        if kind == b"*" and depth < DEPTH_MAX:
            return (yield from self._list(_number(rest), depth))
        raise redis_errors.InvalidResponse(f"this is no reply of a master: {line!r:.100}")

    def _line(self) -> Parsing:
        while (end := self._data.find(b"\r\n")) < 0:
            yield
        line = bytes(self._data[:end])
        del self._data[: end + 2]
        return line

    def _string(self, length: int) -> Parsing:
        if length < 0:
            return None
        while len(self._data) < length + 2:
            yield
        string = bytes(self._data[:length])
        if self._data[length : length + 2] != b"\r\n":
            raise redis_errors.InvalidResponse("a string in the reply is longer than its stated length")
        del self._data[: length + 2]
        return string

    def _list(self, length: int, depth: int) -> Parsing:
        if length < 0:
            return None
        items = []
        for _ in range(length):
            items.append((yield from self._reply(depth + 1)))  # noqa: PERF401 -- no comprehension may yield
        return items


def _number(digits: bytes) -> int:
    """Return a number of the protocol.

    Raises:
        redis.InvalidResponse: `digits` is no number, or longer than any that a master sends.
    """
    if not digits.removeprefix(b"-").isdigit() or len(digits) > DIGITS_MAX:
        raise redis_errors.InvalidResponse(f"{digits!r:.100} stands where the reply must have a number")
    return int(digits)
