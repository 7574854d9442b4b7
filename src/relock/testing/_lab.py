"""Lab for tests of code that uses relock: virtual masters and clients, in virtual time."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self, Unpack

from greenlet import GreenletExit, getcurrent

from relock import Client
from relock._keys import master_key
from relock._options import ClientArguments
from relock.testing._conditions import Conditions
from relock.testing._network import node_of
from relock.testing._platform import VirtualPlatform
from relock.testing._process import Process, current_task
from relock.testing._server import Server
from relock.testing._world import World

EPOCH_SECONDS = 1_700_000_000.0
MINUTE_SECONDS = 60.0
CALLBACK_SECONDS = 0.001  # a run goes on so long after the last function, for callbacks on other threads


class VirtualClient(Client):
    """A `relock.Client` whose masters, threads and time are virtual."""

    def __init__(self, process: Process, servers: Sequence[Server], **options: Unpack[ClientArguments]) -> None:
        self._platform = VirtualPlatform(process)
        # Only a simulation has nodes of this kind.
        nodes: Any = [node_of(process, servers, number) for number in range(len(servers))]
        super().__init__(nodes, **options)


class Lab:
    """Virtual masters, and functions that use locks on them. A lab needs no server, and waits take no real time.

    Functions that use a client run inside `run`, each as a thread of its own. The lab changes from one to another only
    where a function waits for relock or calls `sleep`. Code that waits in another way, with `time.sleep` or for a real
    thread, takes real time, and stops all the others meanwhile.

    Args:
        masters: how many masters there are.
        seed: decides everything that is left to chance, such as delays of messages.

    Attributes:
        masters: the masters, each with the methods ``crash()``, ``restart()``, ``stop()``, ``go_on()`` and
            ``step(seconds)``.
    """

    masters: list[Server]

    def __init__(self, *, masters: int = 1, seed: int = 0) -> None:
        self._world = World(seed)
        self._process = Process(self._world, "lab")
        self._processes = [self._process]
        conditions = Conditions(delay=0.0002)
        self.masters = [
            Server(self._world, number, conditions, rate=1.0, offset=EPOCH_SECONDS) for number in range(masters)
        ]

    @property
    def now(self) -> float:
        """Virtual time (s) since the beginning."""
        return self._world.now

    def client(self, name: str = "client", **options: Unpack[ClientArguments]) -> Client:
        """Return a client in a process of its own, which `crash` and `pause` of that name can strike.

        Args:
            name: what the client is called, unless ``client_name`` says otherwise.
            options: as for `relock.Client`. With a restart guard, each master has its vote at once, as if a client had
                seen it before.
        """
        options.setdefault("client_name", name)
        process = Process(self._world, name)
        self._processes.append(process)
        client = VirtualClient(process, self.masters, **options)
        for server in self.masters:
            self._give_vote(server, client)
        return client

    def _give_vote(self, server: Server, client: VirtualClient) -> None:
        key = master_key(client._session.prefix).encode()
        incarnation = f"{server.master.incarnation}:{server.master.incarnation}"
        if server.master.read("HGET", key, b"incarnation") is None and client._session.options.guard_ms:
            guard_ms = client._session.options.guard_ms
            server.master.read("HSET", key, b"incarnation", incarnation.encode())
            server.master.read("HSET", key, b"no_vote_until_us", b"0", b"guard_ms", b"%d" % guard_ms)

    def run(self, *functions: Callable[[], Any], within: float = 60 * MINUTE_SECONDS) -> list[Any]:
        """Run functions side by side to their ends; return what they return, in their order.

        Args:
            functions: they take no arguments.
            within: virtual seconds after which they should have ended.

        Raises:
            TimeoutError: one has not ended.
            RuntimeError: one of these functions called it.
            BaseException: what a function raised; if several did, the first of these.
        """
        if hasattr(getcurrent(), "task"):
            raise RuntimeError("run can't be called inside run: give one run all the functions")
        results: list[Any] = [None] * len(functions)
        errors: list[BaseException] = []
        tasks = [
            self._process.start(partial(self._call, function, results, number, errors), f"function {number}")
            for number, function in enumerate(functions)
        ]
        self._world.run(self._world.now + within, is_over=lambda: bool(errors) or all(task.is_over for task in tasks))
        self._world.run(self._world.now + CALLBACK_SECONDS)
        if errors:
            raise errors[0]
        if not all(task.is_over for task in tasks):
            raise TimeoutError(f"not all functions have ended within={within:g} virtual seconds")
        return results

    def _call(self, function: Callable[[], Any], results: list[Any], number: int, errors: list[BaseException]) -> None:
        try:
            results[number] = function()
        except GreenletExit:  # the lab ends the function
            raise
        except BaseException as error:  # the test must see every error of its code and of pytest
            errors.append(error)
        finally:
            del current_task().owner  # without it the thread counts as ended, and no watchdog renews its hold

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the calling function, inside `run`."""
        current_task().process.sleep(seconds)

    def crash(self, name: str) -> None:
        """End the process of the client with this name, as by SIGKILL.

        A function ends where it uses that client next; `run` returns None for it.
        """
        self._process_of(name).crash()

    def pause(self, name: str, seconds: float) -> None:
        """Stop the process of the client with this name for so many seconds, as by SIGSTOP."""
        process = self._process_of(name)
        process.pause()
        self._world.after(seconds, process.resume)

    def _process_of(self, name: str) -> Process:
        for process in self._processes:
            if process.name == name:
                return process
        raise ValueError(f"no client of this lab is called {name!r}")

    def close(self) -> None:
        """End everything that still runs: functions end where they wait, and release nothing on their way out."""
        for process in self._processes:
            # All processes die first: a function that ends would wait without end for the reply to its release.
            process.is_dead = True
        for process in self._processes:
            process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
