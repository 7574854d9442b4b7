"""Floor of one run of ``relock bench``: the parts that can be measured on these masters, and why others can't be."""

from collections.abc import Callable

from relock.cli._bench.floor.hops import rehearse
from relock.cli._bench.floor.masters import FLOOR_ERRORS, bare_sockets, floor_keys, sweep
from relock.cli._bench.floor.pairs import Pair, pair_at_the_quorum, pair_of_one, with_small_scripts
from relock.cli._bench.floor.sockets import HAS_HIREDIS, BareSocket
from relock.cli._bench.words import NO_HOPS_OF_SEVERAL
from relock.cli._bench.work import Job

NO_HIREDIS = "hiredis is not installed, and the floor's replies are read by it: install the extra hiredis"


class Floor:
    """Floor of one run. Call `close` after it, also where `open` was interrupted: then nothing stays on the masters.

    Attributes:
        pair: an uncontended pair; None where there is none.
        has_hops: whether hand-offs can be measured.
        missing: why there is no more of it, in words.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._sockets: list[BareSocket] = []
        self.pair: Pair | None = None
        self.has_hops = False
        self.missing: list[str] = []

    def open(self) -> None:
        """Connect, and try all that is measured later."""
        if not HAS_HIREDIS:
            self.missing.append(NO_HIREDIS)
            return
        self._try("a pair", self._open_pair)
        if len(self._job.urls) > 1:
            self.missing.append(NO_HOPS_OF_SEVERAL)
        else:
            self._try("a hand-off", self._try_hops)

    def close(self) -> None:
        """Close the sockets, and delete what the floor has left."""
        for bare in self._sockets:
            bare.close()
        if HAS_HIREDIS:
            sweep(self._job)

    def _try(self, what: str, part: Callable[[], None]) -> None:
        try:
            part()
        except FLOOR_ERRORS as error:
            self.missing.append(f"{what} has no floor here: {error}")

    def _open_pair(self) -> None:
        key = floor_keys(self._job).pair
        self._sockets = bare_sockets(self._job)
        asked = [with_small_scripts(bare, key) for bare in self._sockets]
        pair = pair_of_one(asked[0]) if len(asked) == 1 else pair_at_the_quorum(asked)
        pair()  # whatever a master refuses, it refuses here
        self.pair = pair

    def _try_hops(self) -> None:
        rehearse(self._job)
        self.has_hops = True
