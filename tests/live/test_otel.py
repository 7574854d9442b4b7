"""Metrics and traces of clients that wait and lose on a real server: of threads and of tasks."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.masters import Deployment
from support.until import until

from relock import AsyncClient, Client, LockLostError, Loss
from relock.otel import instrument

PATIENCE_SECONDS = 60.0


class Telemetry:
    """Telemetry of one test: its providers, and the traces in which ``on_lost`` was called."""

    def __init__(self) -> None:
        self.reader, self.spans, self.traces = InMemoryMetricReader(), InMemorySpanExporter(), TracerProvider()
        self.traces.add_span_processor(SimpleSpanProcessor(self.spans))
        self.meters = MeterProvider([self.reader])
        self.tracer = trace.get_tracer("job", tracer_provider=self.traces)
        self.lost_in: list[int] = []

    def on_lost(self, _: Loss) -> None:
        self.lost_in.append(trace.get_current_span().get_span_context().span_id)

    def acquires(self) -> Any:
        """Return the numbers of acquires, by outcome and whether they waited."""
        data: Any = self.reader.get_metrics_data()
        metrics = data.resource_metrics[0].scope_metrics[0].metrics
        points = next((one.data.data_points for one in metrics if one.name == "relock.acquire.duration"), ())
        return {
            (point.attributes["relock.outcome"], point.attributes["relock.contended"]): point.count for point in points
        }

    def check(self, name: str) -> None:
        """Expect one job that has waited for the lock `name`, and then lost it."""
        until(lambda: self.lost_in, within=PATIENCE_SECONDS, what="the loss is told")
        until(lambda: len(self.spans.get_finished_spans()) == 2, within=PATIENCE_SECONDS, what="both spans have ended")
        spans: dict[str, ReadableSpan] = {span.name: span for span in self.spans.get_finished_spans()}
        job, acquire = spans["job"], spans["relock.acquire"]
        assert acquire.parent is not None
        assert job.context is not None
        assert acquire.parent.span_id == job.context.span_id
        assert job.start_time is not None
        assert acquire.start_time is not None
        assert job.start_time <= acquire.start_time
        assert dict(acquire.attributes or {})["relock.name"] == name
        assert self.lost_in == [job.context.span_id]
        until(lambda: self.acquires() == {("granted", True): 1}, within=PATIENCE_SECONDS, what="the acquire is counted")


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.meters.shutdown()
    telemetry.traces.shutdown()


@pytest.fixture
def others(connect: Callable[..., Client], server: Deployment) -> Client:
    """Return a client that is not instrumented."""
    return connect(server.url)


def test_a_job_of_a_thread_waits_and_loses_within_its_trace(
    telemetry: Telemetry, connect: Callable[..., Client], others: Client, server: Deployment, name: str
) -> None:
    client = connect(server.url, on_lost=telemetry.on_lost)
    instrument(client, telemetry.meters, telemetry.traces)
    holder, lock = others.lock(name), client.lock(name)
    holder.acquire()

    def job() -> None:
        with telemetry.tracer.start_as_current_span("job"):
            lock.acquire()
            lock.force_release()
            with pytest.raises(LockLostError):
                lock.extend()

    thread = threading.Thread(target=job)
    thread.start()
    until(lambda: client.statistics().waits, within=PATIENCE_SECONDS, what="the job waits")
    holder.release()
    thread.join()
    telemetry.check(name)


async def test_a_job_of_a_task_waits_and_loses_within_its_trace(
    telemetry: Telemetry, others: Client, server: Deployment, name: str
) -> None:
    async with AsyncClient(server.url, on_lost=telemetry.on_lost) as client:
        instrument(client, telemetry.meters, telemetry.traces)
        holder, lock = others.lock(name), client.lock(name)
        holder.acquire()

        async def job() -> None:
            with telemetry.tracer.start_as_current_span("job"):
                await lock.acquire()
                await lock.force_release()
                with pytest.raises(LockLostError):
                    await lock.extend()

        task = asyncio.create_task(job())
        while not client.statistics().waits:
            await asyncio.sleep(0.01)
        holder.release()
        await task
        while not telemetry.lost_in:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(telemetry.check, name)
