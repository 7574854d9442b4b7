"""What one lock asks of the masters, worked out once from its options."""

import math

from attrs import frozen

from relock._core.quorum import drift_of
from relock._keys import LockKeys
from relock._options import ClientOptions, LockOptions


@frozen(eq=False)
class Terms:
    """The terms of one lock; times are seconds, but for `lease_ms`.

    Attributes:
        node_timeout: the longest wait for one master in one attempt.
        validity: for how long a lease counts from the moment before its request was sent.
    """

    keys: LockKeys
    masters: tuple[str, ...]
    ttl: float
    lease_ms: bytes
    fair: bytes
    node_timeout: float
    validity: float
    patience: float

    @classmethod
    def of(cls, keys: LockKeys, masters: tuple[str, ...], options: LockOptions, client: ClientOptions) -> "Terms":
        """The terms of the lock with these keys and options."""
        return cls(
            keys=keys,
            masters=masters,
            ttl=options.ttl,
            lease_ms=b"%d" % lease_ms(options.ttl),
            fair=b"1" if options.fair else b"0",
            node_timeout=client.node_timeout_for(options.ttl),
            validity=options.ttl - drift_of(options.ttl, client.drift_factor),
            patience=client.patience,
        )


def lease_ms(ttl: float) -> int:
    """A ttl in whole milliseconds, never less than asked."""
    return math.ceil(ttl * 1000)
