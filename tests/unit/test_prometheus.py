"""Metrics for Prometheus, of clients whose statistics are given; and the rules and the dashboard that use them."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import evolve
from prometheus_client import CollectorRegistry

from relock import Client, Granted, MasterDown, NotGranted
from relock._statistics import MasterState, Statistics
from relock.prometheus import RelockCollector

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations"
UP = MasterState("redis://a:1/0", "7.0", None, 0.0, (), 1, 1)
SOME = Statistics(
    grants=5, refusals=2, waits=3, handovers=11, woken_grants=12, polled_grants=13, renewals=7, losses=1, deadlocks=4,
    undos=9, clock_steps=10, callbacks_dropped=6, records_dropped=8,
    held=3, waiting=9, held_of_semaphores=1, waiting_for_semaphores=2, least_lease_left=12.5, masters=(UP,),
)  # fmt: skip


class Fixed:
    """Client with the statistics that it was given."""

    def __init__(self, seen: Statistics) -> None:
        self.seen = seen

    @property
    def _session(self) -> "Fixed":
        return self

    def measure(self, tell: Callable[[str, float], object]) -> None:
        self.tell = tell

    def statistics(self) -> Statistics:
        return self.seen


def registry_of(*clients: Fixed) -> tuple[CollectorRegistry, RelockCollector]:
    registry, collector = CollectorRegistry(), RelockCollector(*cast(tuple[Client, ...], clients))
    registry.register(collector)
    return registry, collector


def test_the_counts_of_all_clients_are_added_up() -> None:
    registry, collector = registry_of(Fixed(SOME))
    other = Fixed(evolve(SOME, held=1, held_of_semaphores=0, least_lease_left=2.5, grants=10))
    collector.add(cast(Client, other))
    values: dict[str, Any] = {
        "grants_total": 15,
        "refusals_total": 4,
        "waits_total": 6,
        "renewals_total": 14,
        "losses_total": 2,
        "deadlocks_total": 8,
        "undos_total": 18,
        "clock_steps_total": 20,
        "callbacks_dropped_total": 12,
        "hold_remaining_min_seconds": 2.5,
    }
    assert {name: registry.get_sample_value(f"relock_{name}") for name in values} == values
    for how, number in (("given", 22), ("woken", 24), ("polled", 26)):
        assert registry.get_sample_value("relock_handovers_total", {"how": how}) == number
    for name, of_locks, of_semaphores in (("hold", 3, 1), ("waiter", 14, 4)):
        kinds = [registry.get_sample_value(f"relock_{name}_count", {"kind": kind}) for kind in ("lock", "semaphore")]
        assert kinds == [of_locks, of_semaphores]


def test_without_holds_no_lease_is_the_least() -> None:
    registry, _ = registry_of(Fixed(evolve(SOME, least_lease_left=None)))
    assert registry.get_sample_value("relock_hold_remaining_min_seconds") is None


@pytest.mark.parametrize(
    ("masters", "state"),
    [
        ([UP], "up"),
        ([evolve(UP, vote_in=3.0)], "without_vote"),
        ([evolve(UP, vote_in=3.0, down="no answer")], "down"),
        ([evolve(UP, down="no answer"), UP], "down"),
        ([UP, evolve(UP, vote_in=1.0)], "without_vote"),
    ],
)
def test_a_master_is_in_the_worst_state_that_a_client_knows(masters: list[MasterState], state: str) -> None:
    registry, _ = registry_of(*(Fixed(evolve(SOME, masters=(master,))) for master in masters))
    for name in ("up", "without_vote", "down"):
        labels = {"server_address": UP.address, "state": name}
        assert registry.get_sample_value("relock_master_state", labels) == (name == state)


def test_events_say_how_long_acquires_took() -> None:
    registry, collector = registry_of()
    for event in (
        *(Granted("a", 0.2, 1, kind="lock"), Granted("a", 0.4, 2, kind="lock"), NotGranted("a", 3.0, kind="read")),
        NotGranted("a", 1.0, kind="lock", error="QuorumError"),
        MasterDown(None, "redis://a:1/0", "no answer"),
    ):
        collector.on_event(event)
    name = "relock_acquire_duration_seconds"
    granted, refused = {"kind": "lock", "outcome": "granted"}, {"kind": "read", "outcome": "refused"}
    assert registry.get_sample_value(f"{name}_count", granted) == 2
    assert registry.get_sample_value(f"{name}_sum", granted) == pytest.approx(0.6)
    assert registry.get_sample_value(f"{name}_bucket", {**granted, "le": "0.25"}) == 1
    assert registry.get_sample_value(f"{name}_bucket", {**refused, "le": "5.0"}) == 1
    assert registry.get_sample_value(f"{name}_count", {"kind": "lock", "outcome": "failed"}) == 1


def test_round_trips_are_told_apart_by_their_master() -> None:
    client = Fixed(SOME)
    registry, _ = registry_of(client)
    for address, seconds in (("a", 0.002), ("a", 0.2), ("b", 0.002)):
        client.tell(address, seconds)
    name = "relock_master_roundtrip_duration_seconds"
    counts = [registry.get_sample_value(f"{name}_count", {"server_address": address}) for address in "ab"]
    assert counts == [2, 1]
    assert registry.get_sample_value(f"{name}_bucket", {"server_address": "a", "le": "0.0025"}) == 1


def test_the_alerts_and_the_dashboard_use_metrics_that_there_are() -> None:
    client = Fixed(SOME)
    _, collector = registry_of(client)
    collector.on_event(Granted("a", 0.2, 1, kind="lock"))
    client.tell(UP.address, 0.002)
    there = {sample.name for metric in collector.collect() for sample in metric.samples}
    rules = re.findall(r"expr: (.*)", (OPERATIONS / "alerts.yml").read_text())
    panels = json.loads((OPERATIONS / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    assert len(rules) == 10
    assert len(queries) == 17
    used = {name for text in (*rules, *queries) for name in re.findall(r"relock_[a-z_]+", text)}
    assert used <= there
    told = set(re.findall(r"`(relock_[a-z_]+)`", (OPERATIONS.parent / "how-to" / "metrics.md").read_text()))
    histograms = ("relock_acquire_duration_seconds", "relock_master_roundtrip_duration_seconds")
    assert told == {*histograms, *(name for name in there if not name.startswith(histograms))}
