"""Who takes part in the demo, and how long its parts take."""

from attrs import frozen

from relock.cli._demo.job import TASKS, THREADS, Kind


@frozen(kw_only=True)
class DemoPlan:
    """Who takes part, and how long each part takes. All of it is about 12 seconds, 15 with tasks.

    Attributes:
        workers: how many each process has, and `kind` says what they are.
        locked: False plays the acts without the lock: the control of the verdict.
        patience_seconds: how long to wait for what should happen at once.
    """

    processes: tuple[str, ...] = ("alder", "birch", "cedar", "maple")
    workers: int = 3
    kind: Kind = THREADS
    ttl: float = 2.0
    locked: bool = True
    without_seconds: float = 1.5
    without_seconds_max: float = 4.0
    under_seconds: float = 2.0
    stay_seconds: float = 2.5
    short_stay_seconds: float = 0.7
    down_seconds: float = 0.8
    after_seconds: float = 0.7
    patience_seconds: float = 3.0

    @property
    def is_asyncio(self) -> bool:
        """Whether the workers are tasks."""
        return self.kind is TASKS
