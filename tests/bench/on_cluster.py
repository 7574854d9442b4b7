"""Compare hand-offs on a Redis Cluster with those on a lone master, in turn: ``python -m bench.on_cluster``."""

import os
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from statistics import median

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
ROUNDS, SECONDS = 10, 1.0


def rate(program: Program, servers: Sequence[Server], url: str, workers: int) -> float:
    """Return the hand-offs a second of one round."""
    cell = Cell(1, placements()[-1], PROCESSES, workers, 0.0)
    with placed(servers, cell.placement):
        pin(program.pid, os.sched_getaffinity(0))
        played = partial(play, [(program, cell.job(RELOCKS_HOP, [url]))], seconds=SECONDS)
        figures = undisturbed(played)[0].figures
        assert figures.overlaps + figures.out_of_order == 0, "the lock was broken"
        return figures.handoffs_per_second


def main() -> None:
    with (
        servers_started(1) as (lone,),
        closing(start(WORKERS)) as program,
        closing(ClusterOfServers(lone.kind, find_servers()[lone.kind])) as cluster,
    ):
        for workers in AMONG:
            beside, found = [], []
            for _ in range(ROUNDS):
                beside.append(rate(program, [lone], lone.url, workers))
                found.append(rate(program, cluster.members, cluster.url, workers))
            rates = f"{median(found):,.0f}/s on a Cluster, {median(beside):,.0f}/s on a lone master"
            ratios = sorted(one / other for one, other in zip(found, beside, strict=True))
            print(f"{workers}: {rates}; ratio {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
