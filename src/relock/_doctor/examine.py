"""Examination of each master by ``doctor``, which tries everything that locks need there.

The scripts run on a scratch lock and a scratch semaphore with a random name, which no other program uses; all of their
keys have a short TTL. Nothing else is written.
"""

from collections.abc import Sequence

from relock._doctor.asking import ask, close
from relock._doctor.findings import Examination, Verdict
from relock._doctor.scratch import Scratch, try_locks
from relock._doctor.state import look_at_state, look_briefly
from relock._errors import ConfigurationError
from relock._runtime.masters.errors import NETWORK_ERRORS
from relock._runtime.net.failures import failure_of
from relock._runtime.net.node import Node
from relock._runtime.net.slots import Range, members


def examine_all(nodes: Sequence[Node], prefix: str, timeout: float, *, brief: bool = False) -> list[Examination]:
    """Examine each master, as `examine` does; of a cluster, each node that serves slots."""
    cluster = nodes[0].cluster
    if cluster is None:
        return [examine(node, prefix, timeout, len(nodes), brief=brief) for node in nodes]
    try:
        found = members(cluster, timeout)
    except (*NETWORK_ERRORS, ConfigurationError) as error:
        failed = Examination(nodes[0].address)
        failed.add("reachable", Verdict.WRONG, failure_of(failed.address, error, sent=False).why)
        return [failed]
    return [examine(node, prefix, timeout, ranges=ranges, brief=brief) for node, ranges in found]


def examine(
    node: Node,
    prefix: str,
    timeout: float,
    masters: int = 1,
    ranges: Sequence[Range] | None = None,
    *,
    brief: bool = False,
) -> Examination:
    """Examine one master; a failure becomes a finding, and is never raised.

    Args:
        node: the master.
        prefix: the prefix of the locks' keys and channels, on which a user's rights may depend.
        timeout: seconds to wait for each reply.
        masters: the number of masters, of which this is one.
        ranges: the slots that it serves, as a node of a cluster.
        brief: look only at its INFO, clock and vote, by commands that read.
    """
    found = Examination(node.address)
    if ranges is not None:
        found.slots = sum(last + 1 - first for first, last, *_ in ranges)
    raw = node.raw_connection(timeout)
    try:
        raw.connect()
        ask(raw, "PING")
        found.reachable = True
        found.add("reachable", Verdict.OK, "it answers, and takes the credentials")
        if brief:
            look_briefly(raw, found, prefix, masters)
        else:
            look_at_state(raw, found, prefix, masters)
            try_locks(node, Scratch(raw, prefix, ranges), found, timeout)
    except NETWORK_ERRORS as error:
        says = failure_of(node.address, error, sent=False).why
        found.add("answers" if found.reachable else "reachable", Verdict.WRONG, says)
    finally:
        close(raw)
    return found
