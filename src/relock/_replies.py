"""Forms of the replies of scripts, by the lines of RETURNS in their headers.

A line has a status, names of fields, and, after two blanks, its meaning. A reply is an array with the status first, or
*words*: one string of status and fields, separated by single blanks. At most one field of words is text.
"""

import re
from collections.abc import Callable

Matcher = Callable[[bytes], re.Match[bytes] | None]

_TYPES = {
    "holder": bytes,
    "note": bytes,
    "turn": bytes,
    "head": bytes,
    "free": bytes,
    "queue": list,
    "holders": list,
    "members": list,
}  # fields without an entry are ints
_FIELDS = {
    "pttl_ms": rb"(-?[0-9]{1,19})",
    "holder": rb"(.*)",
    "slot": rb"(-?[0-9]{1,19})",
}  # fields without an entry are never below 0
_NUMBER = rb"([0-9]{1,19})"
_USUAL_FIELDS = {
    "now_us": rb"([0-9]{16})",
    "token": rb"([1-7][0-9]{15})",  # the largest is TOKEN_MAX, 7999999999999999
    "pttl_ms": rb"(-?[0-9]{1,14})",
    "ahead": rb"([0-9]{1,9})",
    "holder": rb"([!-~]*)",
    "ticket": rb"([0-9]{16})",
    "slot": rb"(-?[0-9]{1,4})",
}
_OF_16_DIGITS = {"now_us", "token"}


def fields_of(status: str, line: str) -> list[str]:
    """Return the names of a line's fields, after the status."""
    return re.split(r"\s{2,}", line[len(status) :].strip())[0].split()


def shape_of(status: str, line: str) -> list[type]:
    """Return the types of a line's status and fields."""
    return [bytes, *(_TYPES.get(name, int) for name in fields_of(status, line))]


def pattern_of(status: str, line: str) -> re.Pattern[bytes]:
    """Return the pattern of a reply in words, with a group for the status, and one for each field."""
    fields = [_FIELDS.get(name, _NUMBER) for name in fields_of(status, line)]
    return re.compile(b" ".join([b"(%b)" % status.encode(), *fields]), re.DOTALL)


def matcher_of(status: str, line: str) -> Matcher:
    """Return a function that matches a usual reply in words, on the wire and alone; groups as in `pattern_of`.

    In a usual reply, a clock, a token and a ticket have 16 digits, and a name has neither blanks nor line ends in it.
    """
    names = fields_of(status, line)
    words = b" ".join([b"(%b)" % status.encode(), *[_USUAL_FIELDS[name] for name in names]])
    if _OF_16_DIGITS.issuperset(names):
        return re.compile(rb"\$%d\r\n%b\r\n" % (len(status) + 17 * len(names), words)).fullmatch
    match = re.compile(rb"\$[0-9]{1,4}\r\n%b\r\n" % words).fullmatch

    def match_whole(taken: bytes) -> re.Match[bytes] | None:
        found = match(taken)
        if found is None or len(taken) - found.start(1) - 2 != int(taken[1 : found.start(1) - 2]):
            return None  # the string may be longer, and cut after a line end in it
        return found

    return match_whole


def match_nothing(_: bytes) -> None:
    """Match nothing: for a script whose usual reply is not in words."""
