"""Readers of a command's arguments: they read them as Redis does, and raise its errors where it can't.

A script gives text or numbers; Redis turns the numbers into text before it reads them. This module knows no keys.
"""

import re
from math import isnan

Argument = bytes | int | float
"""Argument that a script gives: text, or a number, which Redis would turn into text."""

INTEGER_MAX = 2**63 - 1
EXACT_MAX = 10**17  # Redis writes a smaller number of a script in digits only
_INTEGER = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_DECIMAL = re.compile(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_INFINITIES = {b"inf": float("inf"), b"+inf": float("inf"), b"-inf": float("-inf")}

NO_INTEGER = "ERR value is not an integer or out of range"
NO_FLOAT = "ERR value is not a valid float"
NO_RANGE = "ERR min or max is not a float"
NO_ARGUMENT = "ERR Command arguments must be strings or integers"
OVERFLOW = "ERR increment or decrement would overflow"
SYNTAX = "ERR syntax error"


class ReplyError(Exception):
    """An error reply: the whole text of it, its first word included."""


def as_text(value: Argument) -> bytes:
    """Return an argument as Redis gets it: a script's number is written with up to 17 digits."""
    if type(value) is bytes:
        return value
    if type(value) is int or type(value) is float:
        return b"%.17g" % value
    raise ReplyError(NO_ARGUMENT)


def as_integer(value: Argument, error: str = NO_INTEGER) -> int:
    """Read an argument as a whole number of 64 bits; raise `ReplyError` with the text `error` if it is none."""
    if type(value) is int and abs(value) < EXACT_MAX:
        return value
    text = as_text(value)
    if _INTEGER.fullmatch(text) and -INTEGER_MAX - 1 <= int(text) <= INTEGER_MAX:
        return int(text)
    raise ReplyError(error)


def sum_of(number: int, step: int) -> int:
    """Return the sum that INCR and its like store; raise `ReplyError` if it does not fit into 64 bits."""
    if not -INTEGER_MAX - 1 <= number + step <= INTEGER_MAX:
        raise ReplyError(OVERFLOW)
    return number + step


def as_score(value: Argument, error: str = NO_FLOAT) -> float:
    """Read an argument as a number or an infinity; raise `ReplyError` with the text `error` if it is neither."""
    if type(value) is float and not isnan(value):  # its text of 17 digits would have the same value
        return value
    text = as_text(value)
    infinity = _INFINITIES.get(text.lower())
    if infinity is not None:
        return infinity
    if not _DECIMAL.fullmatch(text):
        raise ReplyError(error)
    return float(text)


def as_bound(value: Argument) -> tuple[float, bool]:
    """Read the bound of a range of scores; return it, and whether the range excludes it."""
    text = as_text(value)
    is_open = text.startswith(b"(")
    return as_score(text[is_open:], NO_RANGE), is_open


def limit_of(options: tuple[Argument, ...]) -> tuple[int, int]:
    """Return the offset and the count of LIMIT; a negative count stands for all."""
    if not options:
        return 0, -1
    if len(options) != 3 or as_text(options[0]).upper() != b"LIMIT":
        raise ReplyError(SYNTAX)
    return as_integer(options[1]), as_integer(options[2])


_ONLY_GET = (b"GET",)


def set_options(options: tuple[Argument, ...]) -> tuple[tuple[bytes, ...], int | None]:
    """Return the words of SET's options without PX, and the milliseconds of PX or None."""
    if len(options) == 3 and options[0] == b"PX" and options[2] == b"GET":  # scripts call SET only in this way
        return _ONLY_GET, _lifetime(options[1])
    words = tuple([as_text(option).upper() for option in options])
    lifetime = None
    if b"PX" in words:
        at = words.index(b"PX")
        if at + 1 == len(words):
            raise ReplyError(SYNTAX)
        lifetime = words[at + 1]
        words = words[:at] + words[at + 2 :]
    is_known = all(word in (b"NX", b"XX", b"GET", b"KEEPTTL") for word in words)
    if not is_known or {b"NX", b"XX"} <= set(words) or (lifetime is not None and b"KEEPTTL" in words):
        raise ReplyError(SYNTAX)
    return words, None if lifetime is None else _lifetime(lifetime)


def _lifetime(value: Argument) -> int:
    """Return the milliseconds of PX; raise `ReplyError` if they are not above 0."""
    ttl_ms = as_integer(value)
    if ttl_ms <= 0:
        raise ReplyError("ERR invalid expire time in 'set' command")
    return ttl_ms
