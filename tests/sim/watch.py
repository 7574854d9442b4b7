"""Run that is watched for its picture: messages, holds, what masters keep, faults and violations, at their moments.

To watch a run changes nothing in it. After each event the world looks around, draws no chance, reads no clock that a
task could pause after, and reads a master only in a copy: a look at a key that has expired would remove the key.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from redis import exceptions as redis_errors

from relock._scripts import load, script_names
from relock.testing import _network
from relock.testing._master import VirtualMaster
from relock.testing._network import VirtualConnection
from relock.testing._server import Server
from relock.testing._world import Event, World
from sim import leftovers
from sim.beliefs import Belief
from sim.picture import Bar, Mark, Message, Story
from sim.simulation import Simulation

SCRIPTS = {name: script for script in map(load, script_names()) for name in (script.sha.encode(), script.source)}
GRANT = ("has it as", "releases")  # these notes are bars of the picture, and no marks
STATUS = re.compile("(?!None)[A-Za-z_]+")  # a reply that begins with another word has no label
TEXT_MAX = 90  # characters of an argument or a reply in a hover text


def watched(seed: int) -> tuple[Simulation, Story]:
    """Return the run of a seed, still to be played, and the story that comes about when it is."""
    world = _WatchedWorld(seed)
    simulation = world.simulation = Simulation(seed, world=world)
    return simulation, world.story


class _WatchedWorld(World):
    """World that notes in a `Story` what is to be seen."""

    simulation: Simulation | None = None  # there is nothing to be seen before it is made

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.story = Story(f"seed {seed}")
        self._open: dict[object, Bar] = {}
        self._beliefs: dict[Belief, float] = {}  # those that were seen, and the last D of each
        self._copies: dict[str, VirtualMaster] = {}
        self._failed = 0  # errors that have a mark

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> None:
        """Let events happen, and watch them."""
        with patch.object(_network, "VirtualConnection", _WatchedConnection):
            super().run(until, is_over)
        self._look()
        for bar in self._open.values():
            bar.end = self.now  # unless it goes on in the next part of the run

    def at(self, when: float, action: Callable[[], object]) -> Event:
        """Do `action` at a true time; note the message if `action` is its arrival."""
        arrival: Any = action if isinstance(action, partial) else None
        raw = getattr(arrival and arrival.func, "__self__", None)
        if not isinstance(raw, VirtualConnection):
            return super().at(when, partial(self._act, action))
        message = self.message(raw, arrival.args[0], is_request=arrival.func == raw._arrive)
        message.arrives = when
        return super().at(when, partial(self._arrive, action, raw, message))

    def after(self, seconds: float, action: Callable[[], object]) -> Event:
        """Do `action` in so many seconds."""
        return super().after(seconds, partial(self._act, action))

    def _act(self, action: Callable[[], object]) -> None:
        action()
        self._look()

    def _arrive(self, action: Callable[[], object], raw: VirtualConnection, message: Message) -> None:
        message.is_lost = _is_lost(raw, is_request=message.kind == "request")
        self._act(action)

    def note(self, who: str, what: str) -> None:
        """Add one line to the timeline, and a mark if it is no grant and no release."""
        super().note(who, what)
        self._look()
        if not what.startswith(GRANT):
            kind = "violation" if who == "referee" else "fault"
            self.story.marks.append(Mark(who, kind, self.now, what.removesuffix(" 0.0")))

    def message(self, raw: VirtualConnection, parts: Sequence[Any], *, is_request: bool) -> Message:
        """Note a message that is sent now on a connection: commands, or replies."""
        client, server = raw.process.name, raw.server.name
        kind, label, title = _request(parts) if is_request else _reply(parts)
        ends = (client, server) if is_request else (server, client)
        message = Message(*ends, client, kind, self.now, self.now, label, title)
        self.story.messages.append(message)
        return message

    # What is to be seen at a moment ---------------------------------------------------------------------------------

    def _look(self) -> None:
        if self.simulation is None:
            return
        cast, servers = self.simulation.cast, self.simulation.everywhere
        processes = [*cast.processes, *cast.strangers]
        self.story.processes = [*dict.fromkeys(one.name for one in processes)]  # all operators have one name
        self.story.masters = [one.name for one in servers]
        now: dict[object, Bar] = {}
        for process in processes:
            self._see_state(now, process.name, {"dead": process.is_dead, "stands still": process.is_paused})
        for server in servers:
            apart = {f"apart from {name}": True for name in sorted(server.unreachable)}
            self._see_state(now, server.name, {"down": not server.is_up, "stopped": server.is_stopped, **apart})
            now.update(self._kept(server))
        now.update(self._held())
        for key in [key for key in self._open if key not in now]:
            self._open.pop(key).close(self.now)
        for key, bar in now.items():
            if key in self._open:
                self._open[key].until = bar.until
            else:
                self._open[key] = bar
                self.story.bars.append(bar)
        for who, error in self.errors[self._failed :]:
            self.story.marks.append(Mark(who, "violation", self.now, f"{who}: {error!r}"))
        self._failed = len(self.errors)

    def _see_state(self, now: dict[object, Bar], name: str, states: dict[str, bool]) -> None:
        for state in [state for state, is_so in states.items() if is_so]:
            now[name, state] = Bar(name, "state", "", self.now, state, state)

    def _held(self) -> Iterator[tuple[object, Bar]]:
        """Yield the holds in which owners believe now, and those of new owners in any case."""
        assert self.simulation is not None
        for referee in self.simulation.referee.family.values():
            for one in referee.beliefs:
                process, hold = one.process, one.hold
                is_new = one not in self._beliefs
                believes = not one.has_left and not process.is_dead and hold.remaining(process.local()) > 0
                if not (is_new or (believes and one in self._open)):
                    continue
                name, until = process.name, process.true(hold.deadline)
                bar = Bar(name, "hold", name, self.now, f"{_short(hold.owner)}, {hold.token}", "", until)
                told = self._open.get(one, bar)
                if is_new:
                    told.title = f"{referee.keys.name}: {hold.owner.decode()}\ntoken {hold.token}"
                if self._beliefs.get(one) != hold.deadline:
                    told.title += f"\n{self.now:.4f} s: believed until D = {until:.4f} s"
                    told.ticks[self.now] = f"D = {until:.4f} s"
                self._beliefs[one] = hold.deadline
                yield one, bar

    def _kept(self, server: Server) -> Iterator[tuple[object, Bar]]:
        """Yield the holds that a master keeps now."""
        assert self.simulation is not None
        if not server.is_up:
            return
        copy = self._copies.setdefault(server.name, VirtualMaster(server.clock_us, "copy"))
        copy.restart("copy", server.master.snapshot())
        seen: Any = SimpleNamespace(master=copy, clock_us=server.clock_us)
        referee = self.simulation.referee
        for keys in [one.keys for one in referee.family.values()]:
            for owner, left in leftovers.holds_on(seen, keys).items():
                whose = [process.name for process, session in referee._sessions if leftovers.is_of(session, owner)]
                until, title = self.now + left / server.rate, f"{server.name} keeps {keys.name}: {owner.decode()}"
                bar = Bar(server.name, "kept", whose[-1] if whose else "", self.now, _short(owner), title, until)
                yield (server.name, keys.name, owner), bar


class _WatchedConnection(VirtualConnection):
    """Connection that notes also the messages that are lost before they are under way."""

    def _publish(self, kind: bytes, channel: bytes, payload: bytes) -> None:
        world: Any = self.world
        count = len(world.story.messages)
        super()._publish(kind, channel, payload)
        if len(world.story.messages) == count:
            world.message(self, [[kind, channel, payload]], is_request=False).is_lost = True


def _is_lost(raw: VirtualConnection, *, is_request: bool) -> bool:
    """Return whether a message that arrives now is lost, as the connection will find."""
    if raw.process.name in raw.server.unreachable:
        return True
    return not (raw in raw.server.connections and raw.server.is_up if is_request else raw.is_open and not raw.is_broken)


# Words --------------------------------------------------------------------------------------------------------------


def _short(owner: bytes) -> str:
    """Return the name of a hold without those of its client and its owner, shortened."""
    name = re.split("[@~]", owner.decode().partition(":")[2])[0].rpartition(".")[2]
    return f"{name[:4]}…{name[-3:]}"


def _request(commands: Sequence[Sequence[bytes]]) -> tuple[str, str, str]:
    """Return the kind, the label and the hover text of commands."""
    lines = []
    for command in commands:
        script = SCRIPTS.get(command[1]) if len(command) > 1 else None
        label = command[0].decode().lower() if script is None else script.name
        keys = 0 if script is None else int(command[2])
        names = [] if script is None else [parameter.name for parameter in script.arguments]
        lines.append(f"{label} {_text(command[1:] if script is None else command[3 : 3 + keys])}")
        lines += [f"{name} = {_text(value)}" for name, value in zip(names, command[3 + keys :], strict=False)]
    return "request", label + f" +{len(commands) - 1}" * (len(commands) > 1), "\n".join(lines)


def _reply(replies: Sequence[Any]) -> tuple[str, str, str]:
    """Return the kind, the label and the hover text of replies, or of a published message."""
    texts = [_text(reply) for reply in replies]
    is_published = texts[0].startswith(("message ", "smessage "))
    words = texts[0].split()[2:] if is_published else texts[-1].split()
    label = words[0] if words and STATUS.fullmatch(words[0]) else ""
    return "published" if is_published else "reply", label, "\n".join(texts)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(_text, value))
    if isinstance(value, redis_errors.ResponseError):
        return str(value)[:TEXT_MAX]
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"
