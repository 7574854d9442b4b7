"""Metrics and traces of clients for OpenTelemetry. Needs the extra `otel`, which installs opentelemetry-api."""

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from time import time_ns
from typing import TypeVar
from weakref import WeakKeyDictionary, WeakSet

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from opentelemetry.trace import StatusCode, TracerProvider

from relock import __version__
from relock._errors import ConfigurationError
from relock._events import Event, Granted, LoopStalled, Loss, Lost, NotGranted, Released, ReleaseUnconfirmed, Waiting
from relock._metrics import BUCKETS_SECONDS, LOSSES, MEASURES, ROUND_TRIP, ROUND_TRIP_TEXT, Measure, outcome_of
from relock.aio_client import AsyncClient
from relock.client import Client

logger: logging.Logger = logging.getLogger(__name__)

MANY = 100  # notes that are reported together: to wake a thread for each would cost more than all the rest
PENDING_MAX = 10_000  # if they can't be reported in time, the oldest are dropped
KEPT_MAX = 100_000  # waits, and holds, whose begin is remembered: not every end is told
CANCELLATIONS = ("CancelledError", "GeneratorExit", "KeyboardInterrupt", "SystemExit")

NameOf = Callable[[str], str | None]
OnLost = Callable[[Loss], object]
Attributes = dict[str, str | int | bool]
SPANS = ("waits", "all")
_ENDS = (Released, ReleaseUnconfirmed, Lost)
_UNKNOWN = (None, None)
V = TypeVar("V")

# Event, with what must be noted at once: the time (ns since 1970); when the wait that ended began, or when the hold was
# granted, if that is known; and the context variables of the acquire. A plain tuple, as a class would cost a call.
Note = tuple[Event, int, int | None, Context | None]


def instrument(
    client: Client | AsyncClient,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    name_of: NameOf | None = None,
    *,
    spans: str = "waits",
) -> None:
    """Report metrics and traces of a client to OpenTelemetry, for as long as the client lives.

    The values of all clients with the same meter provider are added up. No client is kept alive. In a forked child the
    client's copy is instrumented as well.

    Args:
        client: with an ``AsyncClient`` that was made of a ``Client``, both are instrumented.
        meter_provider: gets the metrics; default None: the global one.
        tracer_provider: gets the spans; default None: the global one.
        name_of: called with a lock's name, on the thread of events, or on one that collects metrics. If it returns a
            str, that is the attribute ``relock.name`` of metrics about the lock, so there must be few such values. If
            it raises, the log says so, and that event is not reported. Default None: no attribute.
        spans: ``"waits"``, the default: outermost acquires that waited or got no lock are spans; ``"all"``: also those
            that got the lock at once. Each span wakes the thread of events.

    Raises:
        ConfigurationError: the client is instrumented already; or `spans` is something else.
    """
    if spans not in SPANS:
        raise ConfigurationError(f'spans={spans!r}: write "waits" or "all"', option="spans")
    core = client._client if isinstance(client, AsyncClient) else client
    if any(isinstance(observer, _Observer) for observer in core._session.observers):
        raise ConfigurationError(f"{client!r} is instrumented already: call instrument once for each client")
    provider = metrics if meter_provider is None else meter_provider  # the module stands for the global one
    instruments = _by_provider.get(provider) or _by_provider.setdefault(provider, _Instruments(meter_provider))
    instruments.clients.add(core)
    tracer = trace.get_tracer("relock", __version__, tracer_provider)
    core._session.measure(instruments.note_round_trip)
    core._session.observe(_Observer(instruments, tracer, name_of, core._addresses, has_all_spans=spans == "all"))


class _Instruments:
    """Instruments of one meter provider.

    Attributes:
        clients: the clients whose statistics are reported.
        pending: notes of which metrics and spans are still to be made.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        meter = metrics.get_meter("relock", __version__, provider)
        self.clients: WeakSet[Client] = WeakSet()
        self.pending: deque[tuple[_Observer, Note]] = deque(maxlen=PENDING_MAX)
        for one in MEASURES:
            if one is LOSSES:  # events tell the codes as well
                self.losses = meter.create_counter(one.name, one.unit, one.text)
                continue
            create: Callable[..., object] = meter.create_observable_gauge
            if one.is_count:
                create = meter.create_observable_counter
            elif one.unit.startswith("{"):
                create = meter.create_observable_up_down_counter
            create(one.name, [partial(self._read, one)], one.unit, one.text)
        histogram = partial(meter.create_histogram, explicit_bucket_boundaries_advisory=BUCKETS_SECONDS)
        self.acquires = histogram("relock.acquire.duration", "s", "Time that an outermost acquire took.")
        self.holds = histogram("relock.hold.duration", "s", "Time from a grant to the end of the hold.")
        self.round_trips = histogram(ROUND_TRIP, "s", ROUND_TRIP_TEXT)
        self.stalls = meter.create_counter("relock.loop.stalls", "{stall}", "Event loops with holds that stood still.")

    def _read(self, measure: Measure, _: CallbackOptions) -> Iterable[Observation]:
        self.report()
        points = measure.read([client.statistics() for client in self.clients])
        return [Observation(number, dict(zip(measure.attributes, values, strict=True))) for values, number in points]

    def note_round_trip(self, address: str, seconds: float) -> None:
        """Record a round trip to the master at `address`; on the thread of events."""
        self.round_trips.record(seconds, {"server.address": address})

    def report(self, _: object = None) -> None:
        """Make metrics and spans of what is pending; on the thread of events, or on one that collects metrics."""
        for _ in range(len(self.pending)):
            try:
                observer, note = self.pending.popleft()
            except IndexError:  # another thread has taken the last one
                return
            try:
                observer.tell(*note)
            except Exception:  # of `name_of`, say; what comes after this note must still be reported
                logger.exception("%r is not reported to OpenTelemetry", note[0])


_by_provider: WeakKeyDictionary[object, _Instruments] = WeakKeyDictionary()


def _after_fork_in_child() -> None:
    for instruments in _by_provider.values():
        instruments.pending.clear()  # the parent reports its own


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class _Observer:
    """Observer of one client, which makes metrics and spans of events."""

    def __init__(
        self,
        instruments: _Instruments,
        tracer: trace.Tracer,
        name_of: NameOf | None,
        addresses: tuple[str, ...],
        *,
        has_all_spans: bool,
    ) -> None:
        self._has_all_spans = has_all_spans
        self._instruments = instruments
        self._tracer = tracer
        self._name_of = name_of
        self._server: Attributes = {"db.system.name": "redis"}
        if len(addresses) == 1:
            self._server["server.address"] = addresses[0]
        self._waits: dict[str | None, int] = {}  # when each wait began
        self._holds: dict[str | None, tuple[int, Context]] = {}  # when each hold was granted, and in which context

    def note(self, event: Event) -> Callable[[Event], object] | None:
        """Note an event, and have the pending notes reported if there is a span to make, or if there are many."""
        at, pending, is_urgent = time_ns(), self._instruments.pending, True
        if isinstance(event, Granted):
            began, context = self._end_wait(event) if self._waits else None, copy_context()
            is_urgent = began is not None or self._has_all_spans
            _keep(self._holds, event.owner, (at, context))
            pending.append((self, (event, at, began, context)))
        elif isinstance(event, _ENDS):
            is_urgent = isinstance(event, Lost)
            pending.append((self, (event, at, *self._holds.pop(event.owner, _UNKNOWN))))
        elif isinstance(event, NotGranted):
            pending.append((self, (event, at, self._end_wait(event), copy_context())))
        elif isinstance(event, LoopStalled):
            pending.append((self, (event, at, *_UNKNOWN)))
        else:
            is_urgent = False
            if isinstance(event, Waiting):
                _keep(self._waits, event.owner, at)
        return self._instruments.report if is_urgent or len(pending) >= MANY else None

    def _end_wait(self, event: Event) -> int | None:
        """Return when the wait began that an event ends; None if there was none."""
        return self._waits.pop(event.owner and event.owner.partition("~")[0], None)

    def within(self, loss: Loss, tell: OnLost) -> OnLost:
        """Return `tell`, in the context of the acquire whose hold was lost; as it is, if that is not known."""
        _, context = self._holds.get(loss.owner, _UNKNOWN)
        if context is None:
            return tell
        run: Callable[..., object] = context.copy().run  # a context may be entered once at a time
        return partial(run, tell)

    def end(self, _: object) -> None:
        """End: there is nothing to close, and what is pending is reported later."""

    def tell(self, event: Event, at: int, began: int | None, context: Context | None) -> None:
        """Make metrics and spans of an event."""
        about: Attributes = {"relock.kind": event.kind or ""}
        name = None if self._name_of is None or event.lock is None else self._name_of(event.lock)
        if name is not None:
            about["relock.name"] = name
        run = (context or Context()).copy().run
        if isinstance(event, Granted | NotGranted):
            run(self._tell_acquire, event, at, began, about)
        elif isinstance(event, LoopStalled):
            self._instruments.stalls.add(1)
        else:
            run(self._tell_end, event, at, began, about)

    def _tell_acquire(self, event: Granted | NotGranted, at: int, began: int | None, about: Attributes) -> None:
        """Report the end of an acquire: how long it took; and a span, if it has waited, got no lock, or all have."""
        contended = event.contended if isinstance(event, Granted) else began is not None
        about |= {"relock.outcome": outcome_of(event), "relock.contended": contended}
        error = event.error if isinstance(event, NotGranted) else None
        if error is not None:
            about["error.type"] = error
        self._instruments.acquires.record(event.waited, about)
        if isinstance(event, Granted) and began is None and not self._has_all_spans:
            return
        about = {**about, "relock.name": event.lock or "", **self._server}  # a new dict: an SDK may keep the other one
        if event.token is not None:
            about["relock.token"] = event.token
        start = at - int(event.waited * 1e9)
        span = self._tracer.start_span("relock.acquire", attributes=about, start_time=start)
        if began is not None:
            span.add_event("queued", timestamp=began)
        if error is not None and error not in CANCELLATIONS:
            span.set_status(StatusCode.ERROR, error)
        span.end(at)

    def _tell_end(self, event: Event, at: int, granted_at: int | None, about: Attributes) -> None:
        """Report the end of a hold; a loss also on the span that was current at the acquire, if that still goes on."""
        end, held_for = "unconfirmed", None if granted_at is None else (at - granted_at) / 1e9
        if isinstance(event, Released):
            end, held_for = "released", event.held_for
        elif isinstance(event, Lost):
            end, code = "lost", str(event.code)
            self._instruments.losses.add(1, {**about, "relock.loss.code": code})
            span = trace.get_current_span()
            if span.is_recording():
                span.add_event("relock.lost", {"relock.name": event.lock or "", "relock.loss.code": code}, at)
        if held_for is not None:  # None: it was granted before the client was instrumented
            self._instruments.holds.record(held_for, {**about, "relock.end": end})


def _keep(memory: dict[str | None, V], key: str | None, value: V) -> None:
    """Remember a value, and forget the oldest one if there are too many."""
    if len(memory) >= KEPT_MAX:
        with suppress(KeyError, RuntimeError):  # another thread has just forgotten it
            memory.pop(next(iter(memory)))
    memory[key] = value
