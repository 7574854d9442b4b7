"""The program that plays jobs with relock's lock: ``python -m relock.cli._bench.worker``, told on stdin."""

import logging
import warnings

from relock.cli._bench.site import Site
from relock.cli._bench.work import serve

if __name__ == "__main__":
    warnings.simplefilter("ignore")  # the command has said it, once
    logging.getLogger("relock").addHandler(logging.NullHandler())
    serve(Site)
