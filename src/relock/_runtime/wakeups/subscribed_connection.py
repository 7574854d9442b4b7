"""Reader of one connection of a subscription, which passes messages to the hub.

A thread of the user's may read here, and an exception (a signal handler's, say) may strike that thread between any two
instructions. So bytes stay in `_taken` until they are parsed, then replies stay in `_replies` until they are acted on,
and the next reader goes on there. Only an exception in the middle of parsing leaves bytes half parsed. Then the
connection is given up; when a new one is confirmed, a heartbeat finds out whose turn it is.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any

from redis import exceptions as redis_errors

from relock._runtime.net.channel import Channel

_ONCE: Iterable[tuple[()]] = ((),)
TRIES_MAX = 3  # of acting on one message; then the connection is given up, before each waiting thread fails on it


class SubscribedConnection:
    """Connection of a subscription, which one thread at a time reads: see `wakeups.shared_subscriptions`.

    Args:
        act: acts on one reply; a second time does no harm.

    Attributes:
        call: wakes the subscription's thread.
        error: why the connection can't be used any more; None while it can be used.
        heard: how often bytes were received.
        is_led: True while the connection is shared with the waiting threads, so that its own thread does not read.
    """

    def __init__(self, channel: Channel, act: Callable[[Any], object], call: Callable[[], object]) -> None:
        self.channel = channel
        self.error: Exception | None = None
        self.heard = 0
        self.is_led = False
        self._act_on = act
        self.call = call
        self._taken: deque[Any] = deque()  # received and not parsed yet
        self._replies: deque[Any] = deque()  # parsed and not acted on yet
        self._is_parsing = False
        self._tries = 0  # of acting on the first reply

    @property
    def has_unhandled(self) -> bool:
        """True if a message is not acted on yet: the reader is about to do so, or an exception struck it."""
        return bool(self._taken or self._replies)

    def hear(self, take: Callable[[], Any]) -> None:
        """Receive by `take`, a function of the channel, and act on the messages.

        Raises:
            redis.RedisError, OSError: the connection broke.
        """
        self._taken.extend(starmap(take, _ONCE))  # one step: no handler runs between receiving and storing
        self.heard += 1
        self.act()

    def hear_now(self) -> None:
        """Receive without waiting, and act on the messages; raise the socket's errors as redis-py's."""
        take = self.channel.take_now
        try:
            if take is not None:
                self._taken.extend(starmap(take, _ONCE))
        except OSError as error:
            if error.errno is None:
                raise  # the error comes from a signal handler, not from the socket
            if isinstance(error, BlockingIOError):
                self.act()  # an exception may have kept the last reader from acting
                return
            raise redis_errors.ConnectionError(f"reading failed: {error}") from error
        self.heard += 1
        self.act()

    def act_on(self, replies: Sequence[Any]) -> None:
        """Act on replies that came before this reader was made; raise as `act` does."""
        self._replies.extend(replies)
        self.act()

    def act(self) -> None:
        """Parse all that was received, and act on the replies.

        Raises:
            redis.RedisError: no server sends such a reply; or an exception has cut parsing off, or has struck each of
                `TRIES_MAX` tries to act on one reply.
        """
        replies, taken = self._replies, self._taken
        while True:
            while replies:
                self._tries += 1
                if self._tries > TRIES_MAX:
                    raise redis_errors.ConnectionError(f"each try to act on a message failed: {replies[0]!r:.100}")
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
