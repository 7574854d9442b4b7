"""Graph of the orders in which locks are taken: its edges, its cycles, and its file.

A cycle among classes of locks means that callers may wait for each other, in a run that has other timings than the one
that was watched. Linux's lockdep finds deadlocks of a kernel in the same way.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Pair = tuple[str, str]

_CHANGING = re.compile(r"(?i:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?<![0-9a-z])[0-9a-f]{32}(?![0-9a-z]))|[0-9]+")
_ADVICE = "Take these locks together by lock_all, or take them in one order everywhere."


class OrderEdge(NamedTuple):
    """One observed order: a caller that had a lock of one class asked for a lock of another.

    Attributes:
        held: the class of the lock that the caller had.
        wanted: the class of the lock that the caller asked for.
        held_name: the name of the first.
        wanted_name: the name of the second.
        caller: the thread or task, or what ``owner=`` names, for people.
        taken_at: the user's frames where the first was taken, the innermost last; empty if that was not watched.
        asked_at: the user's frames where the second was asked for.
    """

    held: str
    wanted: str
    held_name: str
    wanted_name: str
    caller: str
    taken_at: tuple[str, ...]
    asked_at: tuple[str, ...]


OrderGraph = dict[Pair, OrderEdge]
Cycle = tuple[OrderEdge, ...]


def class_of(name: str) -> str:
    """Return the class of the locks that are called like `name`: each number and UUID of the name is ``#``."""
    return _CHANGING.sub("#", name)


def merge(graphs: Iterable[OrderGraph]) -> OrderGraph:
    """Return the edges of all graphs; of each edge, the observation in the first graph that has it."""
    merged: OrderGraph = {}
    for graph in graphs:
        merged = graph | merged
    return merged


def find_cycles(graph: OrderGraph) -> list[Cycle]:
    """Return a shortest cycle through each edge that is on one; each cycle is returned once."""
    found: dict[frozenset[Pair], Cycle] = {}
    for held, wanted in sorted(graph):
        back = _path(graph, wanted, held)
        if back is not None:
            pairs = [(held, wanted), *back]
            found.setdefault(frozenset(pairs), tuple(graph[pair] for pair in pairs))
    return list(found.values())


def _path(pairs: Collection[Pair], start: str, end: str) -> list[Pair] | None:
    """Return the edges of a shortest path from `start` to `end`; None if there is no path."""
    paths: dict[str, list[Pair]] = {start: []}
    reached = [start]
    for node in reached:  # this list grows while it is read
        if node == end:
            return paths[node]
        for pair in sorted(pair for pair in pairs if pair[0] == node and pair[1] not in paths):
            paths[pair[1]] = [*paths[node], pair]
            reached.append(pair[1])
    return None


def describe(cycles: Sequence[Cycle]) -> str:
    """Return the cycles as a text for people, with the stacks of each edge."""
    return "\n".join([*(_describe(cycle) for cycle in cycles), _ADVICE])


def _describe(cycle: Cycle) -> str:
    names = " -> ".join([cycle[0].held, *(edge.wanted for edge in cycle)])
    is_nested = len(cycle) == 1
    title = "Two locks of one class are nested" if is_nested else "Locks are taken in two orders"
    return "\n".join([f"{title}: {names}", *(line for edge in cycle for line in _lines(edge))])


def _lines(edge: OrderEdge) -> Iterable[str]:
    yield f"  {edge.caller} had {edge.held_name!r}, taken at"
    yield from (f"    {frame}" for frame in edge.taken_at or ("a place that was not watched",))
    yield f"  and asked for {edge.wanted_name!r} at"
    yield from (f"    {frame}" for frame in edge.asked_at or ("a place that is not known",))


# As a file ------------------------------------------------------------------------------------------------------------


def as_document(graph: OrderGraph) -> dict[str, Any]:
    """Return the graph as it is written in JSON, its edges in the order of their classes."""
    return {"edges": [graph[pair]._asdict() for pair in sorted(graph)]}


def from_document(document: Any) -> OrderGraph:
    """Return the graph that `as_document` has written.

    Raises:
        ValueError: the document is no such graph.
    """
    try:
        edges = [_edge_from(entry) for entry in document["edges"]]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no graph of the orders of locks: {error!r}") from None
    return {(edge.held, edge.wanted): edge for edge in edges}


def _edge_from(entry: Mapping[str, Any]) -> OrderEdge:
    texts = {field: str(entry[field]) for field in OrderEdge._fields[:5]}
    return OrderEdge(**texts, taken_at=tuple(map(str, entry["taken_at"])), asked_at=tuple(map(str, entry["asked_at"])))


def write_graph(graph: OrderGraph, path: str | Path) -> None:
    """Write the graph as a JSON file."""
    Path(path).write_text(f"{json.dumps(as_document(graph), indent=1)}\n", encoding="utf-8")


def read_graph(path: str | Path) -> OrderGraph:
    """Return the graph in the file that `write_graph` has written.

    Raises:
        OSError: the file can't be read.
        ValueError: the file has no such graph.
    """
    return from_document(json.loads(Path(path).read_text(encoding="utf-8")))
