"""Reader of one connection of a subscription, which passes what comes to those that it is for.

A thread of the user's may read here, and an exception (a signal handler's, say) may strike that thread between any two
instructions. So what has come is in `_taken` until it is parsed, then in `_replies` until it is acted on, and the next
reader goes on there. Only an exception in the midst of parsing leaves bytes half parsed. Then the connection is given
up; when another one stands, a heartbeat finds out whose turn it is.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any

from redis import exceptions as redis_errors

from relock._runtime.net.channel import Channel

_ONCE: Iterable[tuple[()]] = ((),)
TRIES_MAX = 3  # of one message: then the connection is given up, or it would fail in every waiting thread


class Ear:
    """Subscribed connection, which one thread at a time reads, as `relock._runtime.wakeups.reading` describes.

    Args:
        act: acts on one reply. Acting twice on the same one does no harm.

    Attributes:
        call: wakes the subscription's thread.
        error: why the connection can't be used any more; None while it can.
        heard: how often something has come.
        is_led: True while the connection is shared with the waiting threads, and its own thread does not read it.
    """

    def __init__(self, channel: Channel, act: Callable[[Any], object], call: Callable[[], object]) -> None:
        self.channel = channel
        self.error: Exception | None = None
        self.heard = 0
        self.is_led = False
        self._act_on = act
        self.call = call
        self._taken: deque[Any] = deque()  # as it came
        self._replies: deque[Any] = deque()
        self._is_parsing = False
        self._tries = 0  # of the first reply

    @property
    def is_amid(self) -> bool:
        """True if something has come that is not acted on yet: the reader is about to act, or an exception struck."""
        return bool(self._taken or self._replies)

    def hear(self, take: Callable[[], Any]) -> None:
        """Take what has come, with one of the functions of the channel, and act on it.

        Raises:
            redis.RedisError, OSError: the connection broke.
        """
        self._taken.extend(starmap(take, _ONCE))  # one step: no handler runs between receiving and storing
        self.heard += 1
        self.act()

    def hear_now(self) -> None:
        """Take what has come and act on it, for the leader: never wait, and raise the socket's errors as redis-py's."""
        take = self.channel.take_now
        try:
            if take is not None:
                self._taken.extend(starmap(take, _ONCE))
        except OSError as error:
            if error.errno is None:
                raise  # not the socket's: a signal handler's
            if isinstance(error, BlockingIOError):
                self.act()  # what the last reader has left, if it was struck
                return
            raise redis_errors.ConnectionError(f"reading failed: {error}") from error
        self.heard += 1
        self.act()

    def act_on(self, replies: Sequence[Any]) -> None:
        """Act on replies that came before the ear was made; raise as `act` does."""
        self._replies.extend(replies)
        self.act()

    def act(self) -> None:
        """Act on all that was taken.

        Raises:
            redis.RedisError: no server sends this; or an exception has struck in the midst of parsing, or struck every
                try to act on one reply.
        """
        replies, taken = self._replies, self._taken
        while True:
            while replies:
                self._tries += 1
                if self._tries > TRIES_MAX:
                    raise redis_errors.ConnectionError(f"nobody could act on a message: {replies[0]!r:.100}")
                self._act_on(replies[0])
                self._tries = 0
                replies.popleft()  # Act, then forget
            if self._is_parsing:
                raise redis_errors.ConnectionError("an exception has struck while a message was parsed")
            if not taken:
                return
            self._is_parsing = True
            replies.extend(self.channel.parse(taken[0]))
            taken.popleft()
            self._is_parsing = False

    def fail(self, error: Exception) -> None:
        """Note that the connection can't be used any more, and have the subscription's thread open another one."""
        self.error = error
        self.call()
