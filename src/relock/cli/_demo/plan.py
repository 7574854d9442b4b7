"""The size of the demo, how long its parts take, and where it is played."""

from attrs import field, frozen


@frozen(kw_only=True)
class Plan:
    """The workers, and the seconds of each part: about 12 in all, 15 with tasks, 17 with several masters.

    Attributes:
        workers: how many each process has: threads, or tasks where `is_asyncio` is set.
        locked: False plays the acts without the lock: the control of the verdict.
        patience_seconds: the longest wait for an event that should happen at once.
        limit_seconds: the longest that the demo may take.
        urls: the masters; they may hold passwords. The lock there has this `prefix` and this `name`.
    """

    processes: tuple[str, ...] = ("alder", "birch", "cedar", "maple")
    workers: int = 3
    is_asyncio: bool = False
    ttl: float = 2.0
    locked: bool = True
    without_seconds: float = 1.0
    without_seconds_max: float = 4.0
    under_seconds: float = 1.5
    stay_seconds: float = 2.5
    down_seconds: float = 0.8
    after_seconds: float = 0.7
    transfer_seconds: float = 1.0
    patience_seconds: float = 5.0
    limit_seconds: float = 60.0
    urls: tuple[str, ...] = field(default=(), repr=False)
    prefix: str = "lock"
    name: str = ""
