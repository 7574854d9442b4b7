"""Checks of `Client.check` on each master that the client's own connections do not make."""

import os

from relock._core.info import read_info
from relock._doctor.asking import close, try_to_ask
from relock._doctor.commands import ADVICE, missing_commands
from relock._doctor.scratch import refusal_to_publish, refusal_to_subscribe
from relock._runtime.net.node import Node

KINDS = ("commands", "waking")  # `look_at` may find these wrong: missing commands, and Pub/Sub


def look_at(node: Node, prefix: str, timeout: float) -> tuple[str, dict[str, str]]:
    """Return the run_id of a master, and the faults that a client does not see on its own connections.

    Args:
        node: the master.
        prefix: the prefix of the locks' channels.
        timeout: seconds to wait for each reply.

    Returns:
        The run_id, empty if INFO is refused; and the faults in words, by those of the `KINDS` that have one.

    Raises:
        redis.RedisError, OSError: the master can't be reached, or refuses another command.
    """
    listener = node.raw_connection(timeout)
    try:
        listener.connect()
        info = try_to_ask(listener, "INFO", "server")
        missing = missing_commands(listener)
        # The channel must be no client's own: while this listens, a message there would count as received.
        client = f"check-{os.urandom(8).hex()}"
        # PUBLISH comes first: a connection that has subscribed may not publish.
        unheard = None if "PUBLISH" in missing else refusal_to_publish(listener, prefix, client)
        refusal = refusal_to_subscribe(listener, prefix, client) or unheard
    finally:
        close(listener)
    run_id = "" if isinstance(info, Exception) else read_info(info).run_id
    problems = {}
    if missing:
        problems["commands"] = f"{node.address}: it does not know {', '.join(missing)}: {ADVICE}"
    if refusal is not None:
        problems["waking"] = f"{node.address}: {refusal.says}: {refusal.advice}"
    return run_id, problems
