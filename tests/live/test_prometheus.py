"""Metrics of a real client, as a scrape over HTTP shows them."""

import urllib.request
from collections.abc import Callable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families
from support.masters import Deployment
from support.until import until

from relock import Client
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
