"""Counts, by the servers themselves, of the scripts that calls cost."""

from collections.abc import Callable, Iterable

from relock._scripts import load, script_names
from support.masters import Deployment
from support.servers import Server


def learn_scripts(server: Deployment) -> None:
    """Let the masters load every script, because a client sends a script twice the first time."""
    for member in server.members:
        with member.client() as client:
            for name in script_names():
                client.script_load(load(name).source)


def check_costs(server: Server, deeds: Iterable[tuple[Callable[[], object], int]]) -> None:
    """Check that each deed costs so many scripts, and no other command."""
    for do, scripts in deeds:
        before = server.calls()
        do()
        after = server.calls()
        asked = {command: after[command] - before.get(command, 0) for command in after}
        assert {command: count for command, count in asked.items() if count and command != "info"} == (
            {"evalsha": scripts} if scripts else {}
        )
