"""JSON files of results: compact, and one line for each record, so that the diff of a run can be read."""

import json
from pathlib import Path
from typing import Any


def write(path: Path, results: object) -> None:
    """Write `results` to `path` in one step: a process that is stopped leaves the old file or the new one."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(dumps(results) + "\n")
    draft.replace(path)


def dumps(value: Any) -> str:
    """Return `value` as JSON: each object in a list stands on a line of its own, and so does each member above it."""
    if isinstance(value, dict) and value:
        inside = ",\n".join(f"{json.dumps(key)}: {dumps(item)}" for key, item in value.items())
        return f"{{\n{inside}\n}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)
