"""What `Client.check` asks of each master beside its own connections."""

import os

from relock._core.info import read_info
from relock._doctor.asking import close, try_to_ask
from relock._doctor.scratch import refusal_to_subscribe
from relock._runtime.net.node import Node


def look_at(node: Node, prefix: str, timeout: float) -> tuple[str, str | None]:
    """What a client does not see on its own connections: which server it is, and whether waiters can be woken by it.

    Args:
        node: the master.
        prefix: that of the locks' channels.
        timeout: seconds to wait for each reply.

    Returns:
        The run_id, empty where INFO is refused; and what is wrong with Pub/Sub, in words, or None.

    Raises:
        redis.RedisError, OSError: it can't be reached, or refuses more than that.
    """
    listener = node.raw_connection(timeout)
    try:
        listener.connect()
        info = try_to_ask(listener, "INFO", "server")
        # Not on the channel of a client in use: while this listens, a message there would count as received.
        refusal = refusal_to_subscribe(listener, prefix, f"check-{os.urandom(8).hex()}")
    finally:
        close(listener)
    run_id = "" if isinstance(info, Exception) else read_info(info).run_id
    return run_id, None if refusal is None else f"{node.address}: {refusal.says}: {refusal.advice}"
