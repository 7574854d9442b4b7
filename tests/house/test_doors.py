"""The doors for threads and for tasks are the same, except for the methods that must be awaited."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from relock import (
    AsyncClient,
    AsyncLock,
    AsyncMultiLock,
    AsyncPermit,
    AsyncSemaphore,
    Client,
    Lock,
    MultiLock,
    Permit,
    Semaphore,
)

PAIRS = {"__enter__": "__aenter__", "__exit__": "__aexit__"}  # the same methods under other names
ONLY_OF_TASKS = {"cancel_on_lost"}
SECTION = re.compile(r"^(Args|Returns|Raises):\n((?:    .*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^    (\w+(?:, \w+)*):", re.MULTILINE)


def members(door: type) -> dict[str, Any]:
    """Return the public members of a class, by their names for threads."""
    is_for_tasks = door in (AsyncClient, AsyncLock, AsyncMultiLock, AsyncPermit, AsyncSemaphore)
    renamed = {there if is_for_tasks else here: here for here, there in PAIRS.items()}
    names = [name for name in dir(door) if name[0] != "_" or name in renamed]
    return {renamed.get(name, name): getattr(door, name) for name in names}


DOORS = [
    (Lock, AsyncLock),
    (MultiLock, AsyncMultiLock),
    (Semaphore, AsyncSemaphore),
    (Permit, AsyncPermit),
    (Client, AsyncClient),
]
MEMBERS = [
    pytest.param(threads, tasks, name, id=f"{threads.__name__}.{name}")
    for threads, tasks in DOORS
    for name in members(threads)
]


@pytest.mark.parametrize(("threads", "tasks"), DOORS)
def test_both_doors_have_the_same_members(threads: type, tasks: type) -> None:
    assert members(threads).keys() == members(tasks).keys()


def parameters(function: Callable[..., object]) -> list[tuple[str, Any, Any]]:
    signature = inspect.signature(function)
    every = [(one.name, one.kind, one.default) for one in signature.parameters.values()]
    return [one for one in every if one[0] not in ONLY_OF_TASKS]


@pytest.mark.parametrize(("threads", "tasks", "name"), MEMBERS)
def test_each_member_takes_the_same_arguments_with_the_same_defaults(threads: type, tasks: type, name: str) -> None:
    one, other = members(threads)[name], members(tasks)[name]
    assert isinstance(one, property) == isinstance(other, property)
    if callable(one):
        assert parameters(one) == parameters(other)


def entries(member: Any) -> dict[str, set[str]]:
    """Return the names in each section of the member's docstring."""
    text = inspect.getdoc(member) or ""
    return {title: set(", ".join(ENTRY.findall(body)).split(", ")) for title, body in SECTION.findall(text)}


@pytest.mark.parametrize(("threads", "tasks", "name"), MEMBERS)
def test_each_member_promises_the_same(threads: type, tasks: type, name: str) -> None:
    """Each door has one error of its own: a call outside a task, and a task that nests in another task's hold."""
    one, other = entries(members(threads)[name]), entries(members(tasks)[name])
    for found in (one, other):
        found.get("Raises", set()).discard("RuntimeError")
        found.get("Args", set()).difference_update(ONLY_OF_TASKS)
    assert one == other
