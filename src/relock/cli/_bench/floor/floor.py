"""Floor of one run of ``relock bench``: the parts that can be measured on these masters, and why others can't be."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

from attrs import frozen

from relock.cli._bench.floor.hops import rehearse
from relock.cli._bench.floor.masters import FLOOR_ERRORS, bare_sockets, floor_keys, sweep
from relock.cli._bench.floor.pairs import Pair, pair_of, with_small_scripts
from relock.cli._bench.floor.sockets import HAS_HIREDIS
from relock.cli._bench.words import NO_HOPS_OF_SEVERAL
from relock.cli._bench.work import Job

NO_HIREDIS = "hiredis, which reads the floor's replies, is not installed: install the extra hiredis"


@frozen
class Floor:
    """The floor of one run."""

    pair: Pair | None  # an uncontended pair; None without a floor for it
    has_hops: bool  # True if hand-offs can be measured
    missing: list[str]  # the reasons for figures without a floor


@contextmanager
def floor_of(job: Job) -> Iterator[Floor]:
    """Connect, and try each script that is measured later; at the end, delete the floor's keys from the masters."""
    if not HAS_HIREDIS:
        yield Floor(None, False, [NO_HIREDIS])
        return
    with ExitStack() as stack:
        stack.callback(sweep, job)
        pair, has_hops, missing = None, False, []
        try:
            asked = [stack.enter_context(closing(bare)) for bare in bare_sockets(job)]
            tried = pair_of([with_small_scripts(bare, floor_keys(job).pair) for bare in asked])
            tried()  # a master that refuses a script of the floor refuses it here
            pair = tried
        except FLOOR_ERRORS as error:
            missing.append(f"a pair has no floor here: {error}")
        if len(job.urls) > 1:
            missing.append(NO_HOPS_OF_SEVERAL)
        else:
            try:
                rehearse(job)
                has_hops = True
            except FLOOR_ERRORS as error:
                missing.append(f"a hand-off has no floor here: {error}")
        yield Floor(pair, has_hops, missing)
