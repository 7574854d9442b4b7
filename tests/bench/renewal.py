"""Measure the cost of renewing: ``python -m bench.renewal`` in ``tests``.

One client has many holds, all granted as fast as they come. Meanwhile another lock is acquired and released again and
again: by another process (``python -m bench.renewal URL``), then by a thread beside the watchdog. Delays while renewals
are under way are set against those of the time between.
"""

import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing

from support.processes import Worker

from bench.machine import servers_started
from relock import Client
from relock._core.hold import RENEW_PART
from relock._core.renewal import BATCH_MIN

HOLDS = 10_000
TTL_SECONDS = 30.0
PERIODS = 2
SAMPLE_SECONDS = 0.01
NEAR_SECONDS = 0.02  # a delay counts as a renewal's if a renewal was counted so shortly before or after
PAUSE_SECONDS = 0.001  # between two acquires of the bystander

Delays = list[tuple[float, float]]
"""The beginning of each acquire, by `time.monotonic`, and how long (s) it took."""


class Bystander:
    """A thread that acquires and releases a lock of its own, and notes the delay of each acquire."""

    def __init__(self, url: str) -> None:
        self._client, self._delays, self._is_over = Client(url), Delays(), False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        lock = self._client.lock("bystander")
        while not self._is_over:
            began = time.monotonic()
            with lock:
                self._delays.append((began, time.monotonic() - began))
            time.sleep(PAUSE_SECONDS)

    def take(self) -> Delays:
        """Return the delays since the last call."""
        delays, self._delays = self._delays, []
        return delays

    def close(self) -> None:
        """End the thread."""
        self._is_over = True
        self._thread.join()
        self._client.close()


def stand_by(url: str) -> None:
    """Serve as the other process: print the delays since the last line on stdin, at each line."""
    with closing(Bystander(url)) as bystander:
        for _ in sys.stdin:
            print(json.dumps(bystander.take()), flush=True)


def main() -> None:
    """Renew the holds for some periods, first beside another process, then beside another thread."""
    with servers_started(1) as (server,), ExitStack() as stack:
        client = stack.enter_context(closing(Client(server.url, ttl=TTL_SECONDS)))
        for number in range(HOLDS):
            client.lock(f"held-{number}").acquire()
        worker = Worker("bench.renewal", server.url)
        stack.callback(worker.close)
        server.cli("CONFIG", "RESETSTAT")
        worker.send("from now on")
        worker.receive()
        renewed, cpu = client.statistics().renewals, time.process_time()
        moments = watch_renewals(client)
        cpu_seconds, renewals = time.process_time() - cpu, client.statistics().renewals - renewed
        worker.send("until now")
        in_process = worker.receive()
        scripts = server.client().info("commandstats")["cmdstat_evalsha"]
        worker.close()
        show_costs(renewals, cpu_seconds / renewals, scripts["usec_per_call"])
        print(f"renewals are under way for {len(moments) * SAMPLE_SECONDS / PERIODS:.2f} s of each period")
        show_delays("another process", in_process, moments)
        thread = stack.enter_context(closing(Bystander(server.url)))
        moments = watch_renewals(client)
        show_delays("another thread", thread.take(), moments)
        assert client.statistics().losses == 0


def watch_renewals(client: Client) -> list[float]:
    """Return the moments at which renewals were counted, over some periods."""
    counters = client._session.counters
    moments, end, before = [], time.monotonic() + PERIODS * TTL_SECONDS / RENEW_PART, counters.renewals
    while (now := time.monotonic()) < end:
        time.sleep(SAMPLE_SECONDS)
        after = counters.renewals
        if after != before:
            moments.append(now)
            before = after
    return moments


def show_costs(renewals: int, cpu_seconds: float, server_us: float) -> None:
    """Print for how long one renewal keeps the client's CPU and the master busy."""
    part = cpu_seconds * HOLDS / (TTL_SECONDS / RENEW_PART)
    print(f"{renewals} renewals: {cpu_seconds * 1e6:.1f} us of the client's CPU each, {part:.2%} of one in all")
    write_ms = server_us * BATCH_MIN / 1000
    print(f"the master is busy for {server_us:.1f} us with each, for {write_ms:.2f} ms with those of one write")


def show_delays(who: str, delays: Delays, moments: Sequence[float]) -> None:
    """Print the delays of acquires while renewals are under way, and those of the time between."""
    near = {round(moment / NEAR_SECONDS) + offset for moment in moments for offset in (-1, 0, 1)}
    groups: dict[str, list[float]] = {"between": [], "while renewing": []}
    for began, seconds in delays:
        groups["while renewing" if round(began / NEAR_SECONDS) in near else "between"].append(seconds * 1000)
    for when, times in groups.items():
        middle, most = statistics.median(times), statistics.quantiles(times, n=100)[-1]
        print(f"an acquire of {who}, {when}: {middle:.2f} ms, 99 % within {most:.2f} ms ({len(times)})")


if __name__ == "__main__":
    stand_by(sys.argv[1]) if sys.argv[1:] else main()
