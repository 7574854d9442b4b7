"""Tests without a server: relock on virtual masters, in virtual time. `Lab` needs the extra ``testing``.

`local_server` gives a real server to tests that need one, and `watch_order` finds locks that are taken in two orders.
These need no extra; neither do the fixtures `relock_server` and `relock_order`.

`Lab` is for tests of code that uses relock. relock itself is tested on the same virtual masters, by a simulator in the
`tests` of its repository.
"""

from typing import TYPE_CHECKING, Any

from relock._servers.server import LocalServer, NoServerError, local_server
from relock.testing._order import OrderError, OrderWatch, watch_order
from relock.testing._order_graph import OrderEdge

if TYPE_CHECKING:
    from relock.testing._lab import Lab

__all__ = [
    "Lab",
    "LocalServer",
    "NoServerError",
    "OrderEdge",
    "OrderError",
    "OrderWatch",
    "local_server",
    "watch_order",
]


def __getattr__(name: str) -> Any:
    """Import the lab when it is first used: the rest does without the packages that it needs."""
    if name != "Lab":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from relock.testing._lab import Lab

    return Lab
