"""Checks of `Client.check` on each master that the client's own connections do not make."""

import os
from functools import partial

from relock._core.effects import Failure
from relock._core.info import one_server, read_info, refused_in_scripts, shared_servers
from relock._doctor.asking import close, try_to_ask
from relock._doctor.commands import ADVICE, missing_commands, refusals_in_scripts
from relock._doctor.scratch import has_sharded_channels, refusal_to_publish, refusal_to_subscribe, without_probes
from relock._errors import ConfigurationError
from relock._options import ClientOptions
from relock._runtime.masters.errors import NETWORK_ERRORS, protocol_errors
from relock._runtime.masters.master import Master
from relock._runtime.session.session import Session

KINDS = ("commands", "scripts", "waking")  # `look_at` finds missing commands, commands refused in scripts, no Pub/Sub


def look_at_all(session: Session, options: ClientOptions) -> list[Failure]:
    """Connect to each master of a client, and note its faults, as `look_at` does; return why others did not answer.

    Raises:
        ConfigurationError: a master can't be used at all; or two are the same server, and a quorum has answered.
    """
    failures, run_ids = [], []
    for master in session.masters:
        session.check_open()
        try:
            master.ask_again(master.probe)
            run_ids.append((master.address, master.ask_again(partial(look_at, master, options))))
        except NETWORK_ERRORS as error:
            failures.append(master.failed(error, sent=False))
    for addresses in shared_servers(run_ids) if len(run_ids) >= session.quorum else ():
        raise ConfigurationError(one_server(addresses), option="nodes")
    return failures


@protocol_errors()
def look_at(master: Master, options: ClientOptions) -> str:
    """Return the run_id of a master, and note as its problems the faults that a client does not see itself.

    Args:
        master: the master, of a client.
        options: the client's.

    Returns:
        The run_id, empty if INFO is refused.

    Raises:
        redis.RedisError, OSError: the master can't be reached, or refuses another command.
    """
    node, facts, prefix = master.opener.node, master.facts, options.prefix
    listener = node.raw_connection(master.node_timeout)
    try:
        listener.connect()
        info = try_to_ask(listener, "INFO", "server")
        missing = missing_commands(listener)
        refused = refusals_in_scripts(listener, prefix)
        if facts.guard_ms == 0 or facts.by_marker or isinstance(info, Exception):  # scripts then ask for no INFO
            refused.pop("INFO", None)
        # The channel must be no client's own: while this listens, a message there would count as received.
        client = f"check-{os.urandom(8).hex()}"
        # PUBLISH comes first: a connection that has subscribed may not publish.
        unheard = None if "PUBLISH" in missing else refusal_to_publish(listener, prefix, client)
        refusal = refusal_to_subscribe(listener, prefix, client) or unheard
        if refusal is not None and master.is_cluster and has_sharded_channels(listener, prefix, client):
            refusal = without_probes(refusal)
    finally:
        close(listener)
    run_id = "" if isinstance(info, Exception) else read_info(info).run_id
    problems = {}
    if missing:
        problems["commands"] = f"{node.address}: it does not know {', '.join(missing)}: {ADVICE}"
    if refused:
        says = "; ".join(refused_in_scripts(command, words) for command, words in refused.items())
        problems["scripts"] = f"{node.address}: {says}"
    if refusal is not None:
        problems["waking"] = f"{node.address}: {refusal.says}: {refusal.advice}"
    for kind in KINDS:
        facts.problems.pop(kind, None)
    facts.problems.update(problems)
    return run_id
