"""Stand-ins for a session's hubs."""

from typing import Any

from relock._runtime.wakeups.hubs import Hubs


def hubs_of(hub: Any, *, client: str = "me") -> Hubs:
    """Return the hubs of a client that has only this hub."""
    hubs, hub.client, hub.channels = Hubs(), client, None
    hubs.add(hub)
    return hubs
