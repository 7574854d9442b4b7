"""Stand-ins for what a session has of hubs."""

from typing import Any

from relock._runtime.wakeups.hubs import Hubs


def hubs_of(hub: Any, *, client: str = "me") -> Hubs:
    """The hubs of a client that has only this one."""
    hubs, hub.client = Hubs(), client
    hubs.add(hub)
    return hubs
