"""What one lock asks of the masters, worked out once from its options."""

import math

from attrs import frozen

from relock._core.quorum import drift_of, quorum_of
from relock._keys import LockKeys
from relock._options import ClientOptions, LockOptions
from relock._scripts import Prepared, load

HANDED_LEASE_SECONDS = 3.0  # what a releaser may give: so much is lost where the message is


@frozen(eq=False)
class Terms:
    """The terms of one lock; times are seconds, but for `lease_ms`.

    Attributes:
        node_timeout: the longest wait for one master in one attempt.
        validity: for how long a lease counts from the moment before its request was sent.
        take: the script that takes the lock for one level, prepared but for the owner.
        give: the script that ends a hold whose token every master knows, prepared but for the owner.
        hand: whether a release gives the lock to the first waiter, or only wakes it.
        mark: what the names of its waiters end with: the lease that a releaser may give them, if any.
        keep: the script that renews a hold, prepared but for the owner.
    """

    keys: LockKeys
    masters: tuple[str, ...]
    quorum: int
    options: LockOptions
    ttl: float
    lease_ms: bytes
    fair: bytes
    node_timeout: float
    drift_factor: float
    validity: float
    patience: float
    take: Prepared
    give: Prepared
    hand: bytes
    mark: bytes
    keep: Prepared

    @classmethod
    def of(cls, keys: LockKeys, masters: tuple[str, ...], options: LockOptions, client: ClientOptions) -> "Terms":
        """The terms of the lock with these keys and options."""
        lease, fair = b"%d" % lease_ms(options.ttl), b"1" if options.fair else b"0"
        takes_grants = options.fair and client.handoff == "grant"
        hand = b"1" if takes_grants else b"0"
        handed = min(options.ttl, HANDED_LEASE_SECONDS)
        return cls(
            keys=keys,
            masters=masters,
            quorum=quorum_of(len(masters)),
            options=options,
            ttl=options.ttl,
            lease_ms=lease,
            fair=fair,
            node_timeout=client.node_timeout_for(options.ttl),
            drift_factor=client.drift_factor,
            validity=options.ttl - drift_of(options.ttl, client.drift_factor),
            patience=client.patience,
            take=load("acquire").prepare(keys, count=1, lease_ms=lease, fair=fair),
            give=load("release").prepare(keys, fence=0, lease_ms=lease, hand=hand),
            hand=hand,
            # A grant that replicas are to have is worth nothing before they have it: the waiter asks for that itself.
            mark=b"@%d" % lease_ms(handed) if takes_grants and not client.min_replicas else b"",
            keep=load("extend").prepare(keys, lease_ms=lease),
        )


def lease_ms(ttl: float) -> int:
    """A ttl in whole milliseconds, never less than asked."""
    return math.ceil(ttl * 1000)
