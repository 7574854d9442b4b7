"""The gates at which threads of one ``owner=`` queue: one of them at a time takes or leaves a level of their hold."""

import logging
import threading
from typing import Any

from relock._core.book import HoldKey
from relock._core.call_record import CallRecord
from relock._runtime.platform import Platform

logger = logging.getLogger(__name__)


class Gates:
    """Lets one thread of an ``owner=`` in at a time; the others wait, and join the hold that it gets."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._gates: dict[HoldKey, Any] = {}

    def enter(self, record: CallRecord, key: HoldKey, until: float) -> bool:
        """Waits until `until` at most; returns whether the caller is in."""
        while True:
            gate = self._gates.setdefault(key, self._platform.gate())
            record.gate_key = key
            record.gate = gate  # Note, then send: an interrupt must find the gate that is about to be entered
            left = until - self._platform.clock()
            if not gate.acquire(timeout=min(max(left, 0.0), threading.TIMEOUT_MAX)):
                record.gate = None
                return False
            if self._gates.get(key) is gate:
                return True
            gate.release()

    def leave(self, record: CallRecord) -> None:
        """Lets the next thread in, if this one is in."""
        if record.gate is not None:
            try:
                record.gate.release()
            except RuntimeError:  # interrupted before it got in, or right after it left
                self._platform.log.debug(logger, "a gate was left by a thread that was not in")
            record.gate = None  # Undo, then forget: an interrupt must find the gate until it is left

    def remove(self, key: HoldKey) -> None:
        """The hold of this owner has ended: a thread that waits at its gate notices, and goes to the next one."""
        self._gates.pop(key, None)
