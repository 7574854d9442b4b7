"""The size of the demo, how long its parts take, and where it is played."""

from attrs import field, frozen


@frozen(kw_only=True)
class Plan:
    """The workers, and the seconds of each part: about 14 in all, 17 with tasks, 20 with several masters."""

    processes: tuple[str, ...] = ("alder", "birch", "cedar", "maple")
    workers: int = 3  # of each process: threads, or tasks
    is_asyncio: bool = False
    limit: int = 2  # of the semaphore
    ttl: float = 2.0
    locked: bool = True  # False plays the acts without locks and permits: the control of the verdict
    act_seconds: float = 1.0
    stay_seconds: float = 2.5
    pause_seconds: float = 0.7
    patience_seconds: float = 5.0  # the longest wait for an event that should happen at once
    limit_seconds: float = 60.0  # the longest that the demo may take
    urls: tuple[str, ...] = field(default=(), repr=False)  # the masters; they may hold passwords
    prefix: str = "lock"
    name: str = ""  # of the lock, and of the semaphore
