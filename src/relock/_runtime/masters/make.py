"""Masters of a client, made from its nodes: several for a quorum, one, or a Cluster as one."""

from collections.abc import Sequence

from relock._core.asking import Panel
from relock._core.master_facts import make_facts
from relock._options import ClientOptions, wrong
from relock._runtime.masters.master import Master
from relock._runtime.masters.opener import MasterListener, Opener
from relock._runtime.net.node import Node
from relock._runtime.platform import Platform
from relock._scripts import load_for_redisson


def make_panel(
    nodes: Sequence[Node], options: ClientOptions, platform: Platform, listener: MasterListener
) -> Panel[Master]:
    """Make one master of each of `nodes`, in their order, or one of a whole Cluster; return their panel.

    Raises:
        ConfigurationError: the options can't work with a cluster, or with several masters.
    """
    first = nodes[0]
    if options.redisson:
        if first.cluster is not None or len(nodes) > 1:
            found = f"{len(nodes)} masters" if first.cluster is None else "a Cluster"
            raise wrong("redisson", True, f"False with {found}: a lock is shared with Redisson on one master only")
        load_for_redisson()
    if first.cluster is not None:
        from relock._runtime.masters.cluster import Cluster

        return Cluster(first, first.cluster, options, platform, listener)
    facts = make_facts([node.address for node in nodes], options)
    openers = [Opener(node, own, options, platform, listener) for node, own in zip(nodes, facts, strict=True)]
    return Panel([*map(Master, openers)])


def lone_master(panel: Panel[Master]) -> Master | None:
    """Return the only master of a panel if calls can go straight to it; None where they need a `FanOut`.

    A grant that waits for replicas has two replies.
    """
    first = panel.masters[0]
    return None if len(panel.masters) > 1 or first.opener.options.min_replicas else first
