"""Metrics of a real client, as a scrape over HTTP shows them."""

import urllib.request
from collections import Counter
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from support.masters import Deployment
from support.until import until

from relock import Client
from relock._runtime.masters import connections
from relock.prometheus import RelockCollector


def test_a_scrape_shows_what_a_client_does_and_asks_no_master(
    server: Deployment, connect: Callable[..., Client], name: str
) -> None:
    registry, collector = CollectorRegistry(), RelockCollector()
    client = connect(server.url, ttl=600.0, on_event=collector.on_event)
    collector.add(client)
    registry.register(collector)
    http, thread = start_http_server(0, "127.0.0.1", registry)

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{http.server_port}/metrics", timeout=30) as reply:
            families = text_string_to_metric_families(reply.read().decode())
        return {
            f"{sample.name} {sample.labels.get('outcome', sample.labels.get('kind', ''))}".strip(): sample.value
            for family in families
            for sample in family.samples
            if sample.labels.get("state", "up") == "up" and "le" not in sample.labels
        }

    try:
        with client.lock(name), client.semaphore(name, 2):
            until(lambda: "relock_acquire_duration_seconds_count granted" in scrape(), within=30, what="events came")
            before = server.calls()
            seen = scrape()
            after = server.calls()
        assert client.lock(name).acquire(blocking=False)
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
    assert (seen["relock_grants_total"], seen["relock_losses_total"], seen["relock_master_state"]) == (2, 0, 1)
    assert (seen["relock_hold_count lock"], seen["relock_hold_count semaphore"]) == (1, 1)
    assert 0 < seen["relock_hold_remaining_min_seconds"] <= 600
    assert after["evalsha"] == before["evalsha"]
    assert sum(number for key, number in seen.items() if key.startswith("relock_master_roundtrip_duration")) > 0


@pytest.mark.every_quorum
@pytest.mark.parametrize("pause", [1e-9, 600.0])
def test_a_reply_is_at_most_one_sample_of_the_round_trip_to_its_master(
    server: Deployment,
    connect: Callable[..., Client],
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    pause: float,
) -> None:
    """Each of six replies is a sample, or the first one only."""
    each = 6 if pause < 1.0 else 1
    monkeypatch.setattr(connections, "SAMPLE_SECONDS", pause)
    samples: list[tuple[str, float]] = []
    measured, other = (connect(server.url, ttl=600.0, node_timeout=60.0) for _ in range(2))
    masters = [master.facts.address for master in measured._session.masters]
    measured.check()  # it connects
    measured._session.measure(lambda *sample: samples.append(sample))
    for client in (measured, other):
        for _ in range(3):
            with client.lock(name):
                pass
    measured._session.events.settle(60.0)
    counts = Counter(address for address, _ in samples)
    assert {*counts} <= {*masters}
    assert all(number <= each for number in counts.values())
    assert len(counts) > len(masters) / 2, "a quorum is enough for a caller: the last replies may still be unread"
    assert len(masters) > 1 or counts[masters[0]] == each
    assert all(0 < seconds < 60 for _, seconds in samples)
    assert not other._session.events.running
