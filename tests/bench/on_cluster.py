"""Compare hand-offs on a Redis Cluster with those on a lone master: ``python -m bench.on_cluster`` in ``tests``.

The same processes hand a lock over on either in turn, round after round, with the servers on a CPU of their own.
"""

import os
import statistics
from collections.abc import Sequence
from contextlib import closing
from functools import partial

from support.cluster import ClusterOfServers
from support.servers import Server, find_servers

from bench.contestants import WORKERS
from bench.handoffs import Cell
from bench.machine import pin, placed, placements, servers_started
from bench.names import PROCESSES
from bench.quiet import undisturbed
from relock.cli._bench.crew import Program, play, start
from relock.cli._bench.words import RELOCKS_HOP

AMONG = (2, 8, 32)
ROUNDS = 10
SECONDS = 1.0


def rate(program: Program, servers: Sequence[Server], url: str, workers: int) -> float:
    """Return the hand-offs a second of one round."""
    cell = Cell(1, placements()[-1], PROCESSES, workers, 0.0)
    with placed(servers, cell.placement):
        pin(program.pid, os.sched_getaffinity(0))
        played = partial(play, [(program, cell.job(RELOCKS_HOP, [url]))], seconds=SECONDS)
        return undisturbed(played)[0].figures.handoffs_per_second


def main() -> None:
    with servers_started(1) as (lone,), closing(start(WORKERS)) as program:
        kind = lone.kind
        with closing(ClusterOfServers(kind, find_servers()[kind])) as cluster:
            for workers in AMONG:
                pairs = []
                for _ in range(ROUNDS):
                    beside = rate(program, [lone], lone.url, workers)
                    pairs.append((rate(program, cluster.members, cluster.url, workers), beside))
                found, floor = (statistics.median(rates) for rates in zip(*pairs, strict=True))
                ratios = sorted(one / other for one, other in pairs)
                print(
                    f"{workers:2} processes: {found:,.0f}/s on a Cluster, {floor:,.0f}/s on a lone master; "
                    f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
                )


if __name__ == "__main__":
    main()
