"""The program that plays jobs with relock's lock, or the floor's: ``python -m relock.cli._bench.worker``."""

import logging
import warnings

from relock.cli._bench.floor import hops
from relock.cli._bench.site import Site
from relock.cli._bench.words import ONE_HOP, RELOCK
from relock.cli._bench.work import Enter, Job, serve
from relock.cli._bench.work import Site as AnySite

SITES: dict[str, Enter] = {RELOCK: Site, ONE_HOP: hops.Site}


def enter(job: Job) -> AnySite:
    """Return the site with which a process begins a job."""
    return SITES[job.contestant](job)


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the command has said it, once
    logging.getLogger("relock").addHandler(logging.NullHandler())
    serve(enter)
