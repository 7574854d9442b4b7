"""Histories on disk: a file for each process, a JSON object a line, written at once so that SIGKILL loses nothing."""

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from chaos.records import FOREVER, Collision, History, Kind, Loss, Operation, Outcome, Update, Write

NUMBERS_PER_PROCESS = 10_000_000

Event = dict[str, Any]

_encode = json.JSONEncoder(separators=(",", ":")).encode


def clock() -> float:
    """Return the time (s) of all stamps; it goes on while the machine is suspended, if the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Recorder:
    """Recorder of the history of one process, which its threads share."""

    def __init__(self, path: Path, process: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count(process * NUMBERS_PER_PROCESS + 1)
        self.process = process

    def write(self, event: str, **what: Any) -> None:
        """Write one line. Appending is one system call, so lines of several threads don't mix."""
        os.write(self._file, _encode({"event": event, **what}).encode() + b"\n")

    def call(self, thread: int, lock: str, kind: Kind, level: int, **what: Any) -> int:
        """Note that a call begins; return its number."""
        number = next(self._numbers)
        worker = f"p{self.process}.t{thread}"
        self.write("call", number=number, worker=worker, lock=lock, kind=kind, level=level, at=clock(), **what)
        return number

    def returned(self, number: int, at: float, outcome: Outcome, **what: Any) -> None:
        """Note that the call has returned."""
        self.write("returned", number=number, at=at, outcome=outcome, **what)


@define
class _Call:
    """A call, as far as its lines have been read."""

    called: Event
    returned: Event | None = None
    until: float | None = None  # the deadline D that was seen last
    seen_at: float = 0.0  # when `until` was seen
    gone_at: float = FOREVER  # when the hold was first seen to be lost
    released: bool = False


@define
class Reader:
    """Reader of the files of all processes, which makes one history of them."""

    calls: dict[int, _Call] = field(factory=dict)
    writes: list[Write] = field(factory=list)
    updates: dict[int, Update] = field(factory=dict)
    collisions: list[Collision] = field(factory=list)
    losses: dict[tuple[str, str, int], Loss] = field(factory=dict)  # the first time that each loss was told
    told: list[Loss] = field(factory=list)
    errors: list[str] = field(factory=list)
    last_seen: dict[str, float] = field(factory=lambda: defaultdict(float))
    ended: set[str] = field(factory=set)

    def read(self, folder: Path) -> History:
        """Return the history of all processes whose files are in the folder."""
        for path in sorted(folder.glob("p*.jsonl")):
            for event in lines(path):
                event["process"] = path.stem
                self.last_seen[path.stem] = max(self.last_seen[path.stem], event.get("at", 0.0))
                getattr(self, f"_{event.pop('event')}")(event)
        calls = [self._operation(call) for call in self.calls.values()]
        operations = [one for one in calls if one.kind in ("acquire", "release")]
        latches = [one for one in calls if one.kind in ("arrive", "wait")]
        updates, ended = list(self.updates.values()), frozenset(self.ended)
        return History(operations, self.writes, updates, self.collisions, self.told, ended, latches)

    # What the lines say -------------------------------------------------------------------------------------------

    def _call(self, event: Event) -> None:
        self.calls[event["number"]] = _Call(event)

    def _returned(self, event: Event) -> None:
        call = self.calls[event["number"]]
        call.returned = event
        call.until, call.seen_at = event.get("until"), event["at"]

    def _seen(self, event: Event) -> None:
        call = self.calls[event["grant"]]
        call.until, call.seen_at = event["until"], event["at"]

    def _gone(self, event: Event) -> None:
        call = self.calls[event["grant"]]
        call.gone_at = min(call.gone_at, event["at"])

    def _released(self, event: Event) -> None:
        self.calls[event["grant"]].released = True

    def _wrote(self, event: Event) -> None:
        self.writes.append(Write(returned=event["at"], **_fields(event)))

    def _updating(self, event: Event) -> None:
        self.updates[event["grant"]] = Update(called=event["at"], **_fields(event))

    def _updated(self, event: Event) -> None:
        self.updates[event["grant"]] = evolve(self.updates[event["grant"]], returned=event["at"])

    def _collided(self, event: Event) -> None:
        self.collisions.append(Collision(returned=event["at"], **_fields(event)))

    def _lost(self, event: Event) -> None:
        loss = Loss(event["process"], event["lock"], event["token"], event["at"], event["reason"])
        self.losses.setdefault((loss.process, loss.lock, loss.token), loss)
        self.told.append(loss)

    def _error(self, event: Event) -> None:
        self.errors.append(f"{event['process']}: {event['what']}")

    def _ended(self, event: Event) -> None:
        self.ended.add(event["process"])

    def _operation(self, call: _Call) -> Operation:
        """Return the call as the checker takes it."""
        process = call.called["worker"].partition(".")[0]
        called = call.called["at"]
        fields = _fields(call.called)
        if call.returned is not None and "slot" in call.returned:
            fields["slot"] = call.returned["slot"]
        if call.returned is None:
            return Operation(**fields, called=called, outcome="unknown")
        is_open = process not in self.ended and not call.released
        return Operation(
            **fields,
            called=called,
            returned=call.returned["at"],
            outcome=call.returned["outcome"],
            token=call.returned.get("token", 0),
            count=call.returned.get("count", 0),
            cycle=call.returned.get("cycle", ()),
            until=self._until(call, process, called),
            killed=self.last_seen[process] if is_open else FOREVER,
        )

    def _until(self, call: _Call, process: str, called: float) -> float:
        """Return until when the worker believed in its hold: the deadline that it saw last.

        If the hold was lost before (masters forgot it, a clock stepped), return only when the worker last saw the hold:
        an owner gives up a hold that it lost early, and others may come at once.
        """
        if call.until is None or call.returned is None:
            return called
        loss = self.losses.get((process, call.called["lock"], call.returned.get("token", 0)))
        gone_at = min(call.gone_at, FOREVER if loss is None else loss.at)
        return call.until if gone_at >= call.until else call.seen_at


def _fields(event: Event) -> Event:
    """Return the fields of the event's record, which names the event's moment in its own way."""
    return {key: value for key, value in event.items() if key not in ("at", "process")}


def lines(path: Path) -> Iterator[Event]:
    """Yield the objects of a file; SIGKILL may have cut the last one off."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)


def grants(operations: Iterable[Operation]) -> list[Operation]:
    """Return the outermost acquires that were granted, in the order in which they returned."""
    return sorted((one for one in operations if one.is_grant), key=lambda one: one.returned)
