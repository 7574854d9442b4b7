"""Metrics of clients for Prometheus. Needs the extra `prometheus`, which installs prometheus_client."""

from collections.abc import Iterator

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from relock._events import Event, Granted, NotGranted
from relock._metrics import BUCKETS_SECONDS, MEASURES, outcome_of
from relock.aio_client import AsyncClient
from relock.client import Client


class RelockCollector(Collector):
    """Collector of prometheus_client: it reads the statistics of clients when it is scraped, and asks no master.

    The collector keeps its clients alive. Counts of a client begin at 0 again in a forked child. The name of a lock is
    no label, because there may be any number of names.

    Args:
        clients: the clients whose counts are added up.
    """

    def __init__(self, *clients: Client | AsyncClient) -> None:
        self._clients = list(clients)
        self._durations = Histogram(
            "relock_acquire_duration_seconds",
            "Time that an outermost acquire took, by its outcome.",
            ["kind", "outcome"],
            buckets=BUCKETS_SECONDS,
            registry=None,
        )

    def add(self, client: Client | AsyncClient) -> None:
        """Add a client, such as one that was made with `on_event` of this collector."""
        self._clients.append(client)

    def on_event(self, event: Event) -> None:
        """Note how long an acquire took: for the option ``on_event`` of a client; alone, or called by your function."""
        if isinstance(event, Granted | NotGranted):
            self._durations.labels(event.kind or "", outcome_of(event)).observe(event.waited)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without values, for the check of a registry that no two collectors share a name."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        seen = [client.statistics() for client in self._clients]
        for one in MEASURES:
            name, labels = one.name.replace(".", "_"), [_label(attribute) for attribute in one.attributes]
            name += "_seconds" if one.unit == "s" else ""
            family = (CounterMetricFamily if one.is_count else GaugeMetricFamily)(name, one.text, labels=labels)
            for values, number in one.read(seen):
                family.add_metric(values, number)
            yield family
        yield from self._durations.collect()


def _label(attribute: str) -> str:
    return attribute.removeprefix("relock.").replace(".", "_")
