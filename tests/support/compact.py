"""JSON files of results: compact, with one line for each record, so that the diff of a run is readable."""

import json
from pathlib import Path
from typing import Any


def write(path: Path, results: object) -> None:
    """Write `results` to `path` in one step: a process that is stopped leaves the old file or the new one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(dumps(results) + "\n")
    draft.replace(path)


def dumps(value: Any) -> str:
    """Return `value` as JSON: each object in a list has a line of its own, and so has each member above it."""
    if isinstance(value, dict) and value:
        inside = ",\n".join(f"{json.dumps(key)}: {dumps(item)}" for key, item in value.items())
        return f"{{\n{inside}\n}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)
