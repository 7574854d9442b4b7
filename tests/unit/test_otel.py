"""Metrics and spans for OpenTelemetry, made of events and statistics that are given."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import frozen
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import relock.otel
from relock import (
    AsyncClient,
    Client,
    ConfigurationError,
    Event,
    Granted,
    LoopStalled,
    LossCode,
    Lost,
    NotGranted,
    Released,
    ReleaseUnconfirmed,
    Waiting,
)
from relock._core.master_facts import RoundTrip
from relock._metrics import BUCKETS_SECONDS, MEASURES
from relock.otel import MANY, instrument

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "metrics.md"
NOWHERE = "redis://127.0.0.1:1/0"
OWNER = "host:7-1@3000"
ABOUT: Any = {"kind": "lock", "owner": OWNER}


@frozen
class Scope:
    """Providers of one test, and what they have got."""

    reader: InMemoryMetricReader
    meters: MeterProvider
    spans: InMemorySpanExporter
    traces: TracerProvider

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        found = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return {metric.name: metric for metric in found}

    def points(self, name: str) -> dict[tuple[object, ...], Any]:
        """Return the points of a metric by the values of their attributes, in the order of the attributes' names."""
        metric = self.metrics().get(name)
        points = [] if metric is None else metric.data.data_points
        return {tuple(point.attributes[key] for key in sorted(point.attributes)): point for point in points}

    def span(self) -> ReadableSpan:
        (span,) = self.spans.get_finished_spans()
        return span


@pytest.fixture
def scope() -> Iterator[Scope]:
    reader, spans, traces = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    scope = Scope(reader, MeterProvider([reader]), spans, traces)
    yield scope
    scope.meters.shutdown()
    traces.shutdown()


@pytest.fixture
def client(scope: Scope) -> Iterator[Client]:
    with Client(NOWHERE) as client:
        instrument(client, scope.meters, scope.traces)
        yield client


def tell(client: Client, *events: Event) -> None:
    """Report events; return once the thread of events has done its part."""
    for event in events:
        client._session.emit(event)
    client._session.events.settle(60.0)


def sample(client: Client, seconds: float) -> None:
    """Report a round trip to the master; return once the thread of events has done its part."""
    client._session.reports.hear(client._session.masters[0].facts, RoundTrip(seconds))
    client._session.events.settle(60.0)


def test_the_statistics_of_all_clients_are_added_up(scope: Scope, client: Client) -> None:
    with Client(NOWHERE) as other:
        instrument(other, scope.meters, scope.traces)
        for one, grants in ((client, 5), (other, 2)):
            one._session.counters.grants = grants
        assert scope.points("relock.grants")[()].value == 7
        assert {kind: point.value for kind, point in scope.points("relock.hold.count").items()} == {
            ("lock",): 0,
            ("semaphore",): 0,
        }
        states = {key: point.value for key, point in scope.points("relock.master.state").items()}
        assert states == {("up", NOWHERE): 1, ("without_vote", NOWHERE): 0, ("down", NOWHERE): 0}


def test_instruments_are_those_of_the_page(scope: Scope, client: Client) -> None:
    lost = Lost("a", "it is gone", code=LossCode.FORGOTTEN, token=1, **ABOUT)
    tell(client, Granted("a", 0.1, 1, **ABOUT), Released("a", 0.1, token=1, **ABOUT), lost, LoopStalled(None, 1.0))
    sample(client, 0.002)
    there = {name: (metric.unit, type(metric.data).__name__) for name, metric in scope.metrics().items()}
    assert there["relock.hold.count"] == ("{hold}", "Sum")
    assert there["relock.master.state"] == ("1", "Gauge")
    assert there["relock.acquire.duration"] == ("s", "Histogram")
    seconds = scope.points("relock.acquire.duration").popitem()[1].explicit_bounds
    assert tuple(seconds) == BUCKETS_SECONDS
    told = {line.split("`")[1] for line in HOW_TO.read_text().splitlines() if line.startswith("| `relock.")}
    assert told == {*there, "relock.hold.remaining.min"}
    assert {one.name for one in MEASURES} <= told


def test_an_acquire_is_measured_by_how_it_ended(scope: Scope, client: Client) -> None:
    tell(
        client,
        Granted("a", 0.2, 1, **ABOUT),
        Granted("a", 0.4, 2, **ABOUT),
        Granted("a", 0.8, 3, how="polled", **ABOUT),  # it began to wait before the client was instrumented
        NotGranted("a", 3.0, kind="read", owner=None),
        Waiting("a", kind="lock", owner="w"),
        NotGranted("a", 1.0, kind="lock", owner="w", error="QuorumError"),
    )
    ends = {key: (point.count, point.sum) for key, point in scope.points("relock.acquire.duration").items()}
    assert ends == {
        (False, "lock", "granted"): (2, pytest.approx(0.6)),
        (True, "lock", "granted"): (1, 0.8),
        (False, "read", "refused"): (1, 3.0),
        ("QuorumError", True, "lock", "failed"): (1, 1.0),
    }


def test_a_hold_is_measured_by_its_end(scope: Scope, client: Client) -> None:
    tell(
        client,
        *(Granted("a", 0.0, 1, kind="lock", owner=owner) for owner in "xyz"),
        Released("a", 2.0, kind="lock", owner="x", token=1),
        Lost("a", "gone", code=LossCode.EXPIRED, kind="lock", owner="y", token=1),
        ReleaseUnconfirmed("a", 5.0, kind="lock", owner="z", token=1),
        ReleaseUnconfirmed("a", 5.0, kind="lock", owner="from before", token=1),
    )
    ends = scope.points("relock.hold.duration")
    assert {key: point.count for key, point in ends.items()} == {
        ("released", "lock"): 1,
        ("lost", "lock"): 1,
        ("unconfirmed", "lock"): 1,
    }
    assert ends["released", "lock"].sum == 2.0
    assert 0 < ends["lost", "lock"].sum < 60
    assert scope.points("relock.losses")["lock", "expired"].value == 1


def test_name_of_says_what_may_be_told_of_a_name(scope: Scope) -> None:
    with Client(NOWHERE) as client:
        names = {"orders:42": "orders"}
        instrument(client, scope.meters, scope.traces, names.get)
        tell(client, Granted("orders:42", 0.0, 1, **ABOUT), Granted("secret", 0.0, 2, **ABOUT))
        keys = [*scope.points("relock.acquire.duration")]
    assert sorted(keys, key=len) == [(False, "lock", "granted"), (False, "lock", "orders", "granted")]


def test_a_name_of_that_raises_costs_only_the_events_for_which_it_does(
    scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(NOWHERE) as client:
        instrument(client, scope.meters, scope.traces, {"orders:42": "orders"}.__getitem__)
        grants = [Granted(name, 0.0, 1, **ABOUT) for name in ("a", "b", "orders:42")]
        tell(client, *grants)
        assert scope.points("relock.grants")
        assert [*scope.points("relock.acquire.duration")] == [(False, "lock", "orders", "granted")]
    assert [record.args for record in caplog.records if record.name == "relock.otel"] == [(grants[0],), (grants[1],)]


def test_round_trips_are_told_apart_by_their_master(scope: Scope, client: Client) -> None:
    for seconds in (0.002, 0.2):
        sample(client, seconds)
    ((server, point),) = scope.points("relock.master.roundtrip.duration").items()
    assert (server, point.count, point.sum) == ((NOWHERE,), 2, pytest.approx(0.202))


def test_an_acquire_that_waited_is_a_span_of_its_callers_trace(scope: Scope, client: Client) -> None:
    with trace.get_tracer("test", tracer_provider=scope.traces).start_as_current_span("request") as request:
        tell(client, Waiting("a", kind="lock", owner=OWNER))
        tell(client, Granted("a", 0.5, 7, how="given", kind="lock", owner=f"{OWNER}~1.5"))
    scope.metrics()
    span, _ = sorted(scope.spans.get_finished_spans(), key=lambda span: span.name == "request")
    assert (span.name, span.kind, span.parent) == ("relock.acquire", SpanKind.INTERNAL, request.get_span_context())
    assert dict(span.attributes or {}) == {
        "relock.name": "a",
        "relock.kind": "lock",
        "relock.token": 7,
        "relock.outcome": "granted",
        "relock.contended": True,
        "db.system.name": "redis",
        "server.address": NOWHERE,
    }
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 500_000_000
    assert [event.name for event in span.events] == ["queued"]
    assert span.status.status_code is StatusCode.UNSET


def test_an_acquire_that_got_the_lock_at_once_is_no_span(scope: Scope, client: Client) -> None:
    tell(client, Granted("a", 0.1, 1, **ABOUT))
    assert scope.points("relock.acquire.duration")
    assert not scope.spans.get_finished_spans()


def test_with_all_spans_it_is_one_of_its_callers_trace_and_at_once(scope: Scope) -> None:
    with Client(NOWHERE) as client:
        instrument(client, scope.meters, scope.traces, spans="all")
        with scope.traces.get_tracer("test").start_as_current_span("job"):
            tell(client, Granted("a", 0.1, 1, **ABOUT))
            span = scope.span()
        assert span.parent is not None
        assert span.name == "relock.acquire"
        assert (span.attributes or {}).get("relock.contended") is False
        assert not span.events


def test_another_choice_of_spans_is_refused(scope: Scope) -> None:
    with Client(NOWHERE) as client:
        with pytest.raises(ConfigurationError, match='spans=\'some\': write "waits" or "all"') as caught:
            instrument(client, scope.meters, scope.traces, spans="some")
        assert caught.value.option == "spans"


@pytest.mark.parametrize(
    ("error", "status"),
    [("QuorumError", StatusCode.ERROR), ("CancelledError", StatusCode.UNSET), (None, StatusCode.UNSET)],
)
def test_a_span_is_an_error_if_the_acquire_was(
    scope: Scope, client: Client, error: str | None, status: StatusCode
) -> None:
    tell(client, NotGranted("a", 0.1, error=error, **ABOUT))
    scope.metrics()
    span = scope.span()
    assert span.status.status_code is status
    assert (span.attributes or {}).get("error.type") == error


def test_a_loss_is_told_on_the_span_of_the_acquire_while_that_goes_on(
    scope: Scope, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    tracer = trace.get_tracer("test", tracer_provider=scope.traces)
    lost = Lost("a", "gone", code=LossCode.MAX_HOLD, token=1, **ABOUT)
    with tracer.start_as_current_span("request"):
        tell(client, Granted("a", 0.0, 1, **ABOUT))
        with tracer.start_as_current_span("another"):
            tell(client, lost)
            scope.metrics()
        tell(client, Granted("a", 0.0, 2, **ABOUT))
    tell(client, lost)
    scope.metrics()
    told = {span.name: [event.name for event in span.events] for span in scope.spans.get_finished_spans()}
    assert told == {"request": ["relock.lost"], "another": []}
    assert scope.points("relock.losses")["lock", "max_hold"].value == 2
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_many_ends_are_reported_together_before_any_metrics_are_collected(client: Client) -> None:
    (observer,) = client._session.observers
    released = Released("a", 0.1, token=1, **ABOUT)
    works = [observer.note(released) for _ in range(MANY)]
    assert not any(works[:-1])
    assert works[-1] is not None
    works[-1](released)
    assert observer.note(released) is None


@pytest.mark.parametrize("memory", ["_waits", "_holds"])
def test_what_is_remembered_is_bounded(client: Client, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relock.otel, "KEPT_MAX", 3)
    for number in range(10):
        tell(
            client, Waiting("a", kind="lock", owner=f"w{number}"), Granted("a", 0.0, 1, kind="lock", owner=f"{number}")
        )
    (observer,) = client._session.observers
    assert len(getattr(observer, memory)) == 3


def test_a_client_is_instrumented_once(scope: Scope, client: Client) -> None:
    with pytest.raises(ConfigurationError, match="already"):
        instrument(client, scope.meters)
    with pytest.raises(ConfigurationError, match="already"):
        instrument(AsyncClient(client))
    instrument(AsyncClient(NOWHERE), scope.meters)


def test_no_client_is_kept_alive(scope: Scope) -> None:
    client = Client(NOWHERE)
    instrument(client, scope.meters)
    client._session.counters.grants = 1
    client.close()
    assert scope.points("relock.grants")[()].value == 1
    del client
    gc.collect()
    assert not scope.points("relock.master.state")


def test_what_came_before_a_client_was_closed_is_still_reported(scope: Scope) -> None:
    with Client(NOWHERE) as client:
        instrument(client, scope.meters)
        tell(client, Granted("a", 0.0, 1, **ABOUT))
    assert scope.points("relock.acquire.duration")


def test_a_forked_child_is_instrumented_and_reports_nothing_of_its_parent(client: Client) -> None:
    tell(client, Granted("a", 0.0, 1, **ABOUT))
    (observer,) = client._session.observers
    pending = cast(Any, observer)._instruments.pending
    child = os.fork()
    if child == 0:
        session, before = client._session, len(pending)
        if len(session.measures) != 1 or session.masters[0].facts.sample_at > 0:
            os._exit(2)
        tell(client, Granted("a", 0.0, 1, **ABOUT))
        os._exit(
            0 if (before, len(pending), session.observers, session.logs_events()) == (0, 1, (observer,), True) else 1
        )
    assert os.waitpid(child, 0)[1] == 0
    assert len(pending) == 1
