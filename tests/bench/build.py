"""How this CPython was built: without a profile it takes up to a third longer for a call than what most users have."""

import sys
import sysconfig
from pathlib import Path

NOT_PUBLISHED = (
    "this CPython was not optimised by a profile, so users get other figures, and these are not published: use one "
    "that was built with --enable-optimizations"
)


def how_optimised() -> str | None:
    """What shows that this CPython was optimised by a profile (PGO); None where nothing does.

    python.org, conda, uv and the container images build with ``--enable-optimizations``. Debian and its kin build the
    profile by steps of their own, which leave no trace in what the interpreter knows of its build.
    """
    if "--enable-optimizations" in str(sysconfig.get_config_var("CONFIG_ARGS")):
        return "built with --enable-optimizations"
    if sys.base_prefix == "/usr" and Path("/etc/debian_version").exists():
        return "of a Debian package"
    return None
