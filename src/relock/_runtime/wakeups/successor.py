"""Second connection of a subscription, which takes over from the first when there are new credentials.

In RESP 2, a connection that has subscribed takes no ``AUTH``. So with new credentials a second connection is opened and
subscribed, and a ping goes over the first one. When that is answered, all messages that the second one lacks have been
acted on, and it takes over. What is published between comes twice, which does no harm.
"""

from contextlib import suppress
from typing import Any, NamedTuple

from relock._core.effects import Clock
from relock._core.quorum import NEVER
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.net.channel import Channel
from relock._runtime.net.credentials import Credentials, Words
from relock._runtime.net.raw_connection import RawConnection

RETRY_SECONDS = 1.0


class Subscribed(NamedTuple):
    """Connection that has just been subscribed.

    Attributes:
        incarnation: the incarnation of the server that it leads to.
        messages: the messages that came right behind the confirmation.
        login: the newest credentials when it was opened.
    """

    raw: RawConnection
    channel: Channel
    incarnation: bytes
    messages: list[Any]
    login: Words | None


class Successor:
    """Successor of a subscription's connection, if there is one.

    Attributes:
        stands_by: True if there is one.
        login: the credentials of the first connection.
    """

    def __init__(self, credentials: Credentials, clock: Clock) -> None:
        self.login: Words | None = None
        self._credentials = credentials
        self._clock = clock
        self._made: Subscribed | None = None
        self._pongs = 0  # on the first connection, after which it takes over
        self._try_at = NEVER  # when to open one, if the last try has failed

    @property
    def stands_by(self) -> bool:
        """True if there is one."""
        return self._made is not None

    @property
    def is_wanted(self) -> bool:
        """True if one must be opened, because there are new credentials."""
        return self.login is not self._credentials.latest and self._made is None and self._clock() >= self._try_at

    def set(self, made: Subscribed, pongs: int) -> None:
        """Have `made` take over when so many pings over the first connection were answered."""
        self._made, self._pongs = made, pongs

    def put_off(self) -> None:
        """Note that none could be opened; the first connection works for as long as the server lets it."""
        self._try_at = self._clock() + RETRY_SECONDS

    def take(self, pongs: int) -> Subscribed | None:
        """Return the one that takes over now, after so many answers to pings; None if none does."""
        if self._made is None or pongs < self._pongs:
            return None
        made, self._made = self._made, None
        return made

    def close(self) -> None:
        """Close it, because the first connection has ended."""
        made, self._made = self._made, None
        if made is not None:
            with suppress(*NETWORK_ERRORS):
                made.raw.disconnect()
