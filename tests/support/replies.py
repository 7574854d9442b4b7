"""What scripts reply, read by another parser than relock's."""

from typing import Any


def as_list(reply: Any) -> Any:
    """A reply in words as the array that it stands for; any other reply as it is."""
    if not isinstance(reply, bytes):
        return reply
    status, *numbers = reply.decode().split(" ")
    return [status.encode(), *(int(number) for number in numbers)]
