"""Tests without a server: relock on virtual masters, in virtual time. Needs the extra ``testing``.

`local_server` gives a real server to tests that need one; so does the fixture `relock_server`, which needs no extra.

`Lab` is for tests of code that uses relock. relock itself is tested on the same virtual masters, by a simulator in the
`tests` of its repository.
"""

from relock._servers.server import LocalServer, NoServerError, local_server
from relock.testing._lab import Lab

__all__ = ["Lab", "LocalServer", "NoServerError", "local_server"]
