"""Machine of this process, as the platform of the runtime."""

from relock._runtime.background.telling import Log
from relock._runtime.platform import Platform


class Machine(Platform):
    """Platform with a log."""

    @property
    def log(self) -> Log:  # type: ignore[override]
        """Writer of the log, made when it is first needed; without a lock, because callers may be interrupted."""
        made: Log | None = self.__dict__.get("_log")
        return made or self.__dict__.setdefault("_log", Log(self))


THREADS = Machine()
