"""Replies of scripts, read by another parser than relock's."""

from typing import Any


def as_list(reply: Any) -> Any:
    """Return a reply in words as the array that it stands for; any other reply as it is."""
    if not isinstance(reply, bytes):
        return reply
    status, *numbers = reply.split(b" ")
    if status in (b"queued", b"proposed"):  # the holder, whose name may have blanks, is the last but one
        ahead, (_, holder) = 3, reply.rsplit(b" ", 1)[0].split(b" ", 4)[3:]
        return [status, *map(int, numbers[:ahead]), holder, int(numbers[-1])]
    return [status, *map(int, numbers)]
