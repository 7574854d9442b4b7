"""How the documentation is built: ``sphinx-build -n -W -b html docs build/docs``."""

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
SOURCE = DOCS.parent / "src"
sys.path[:0] = [str(SOURCE), str(DOCS / "_ext")]

from relock import __version__, _scripts  # noqa: E402

project = "relock"
author = "the relock authors"
copyright = "the relock authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_llms_txt", "mermaid"]
exclude_patterns = ["_build", "examples", "_generated"]
html_theme = "furo"
html_title = f"relock {version}"
html_static_path = ["_static"]
llms_txt_summary = "A distributed lock for Python on Redis: reentrant, fair, renewed, fenced; for threads and asyncio."

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]  # code hosts draw such a block by themselves

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
napoleon_use_ivar = True
napoleon_numpy_docstring = False

# No inventories of other projects are fetched, so that the build needs no network. Names of the standard library, and
# those private names that docstrings mention, are therefore no links.
nitpick_ignore_regex = [
    (r"py:.*", r"(threading|collections|types|typing|redis|asyncio|weakref|opentelemetry)(\..*)?"),
    (r"py:.*", r"[a-z_]+|[A-Z][a-z]+Error|BaseException|Callable|Iterator|Any|Self|Unpack|TracebackType|[PRT]"),
    (r"py:.*", r"relock\._.*|relock\.(aio_)?(lock|client)\.(LockSpec|LockOptions|LockClient|[PRT])"),
    (r"py:.*", r"ClientOptions|(Client|Lock)Arguments|Lead|Stop|OnLost"),
]


def write_scripts_page() -> None:
    """The reference of the Lua scripts, from the headers that the library itself obeys."""
    lines: list[str] = []
    for name in _scripts.script_names():
        script = _scripts.load(name)
        lines += [f"## `{name}`", "", script.purpose, ""]
        for kind, parameters in (("KEYS", script.keys), ("ARGV", script.arguments)):
            unit = "type" if kind == "KEYS" else "unit"
            lines += [f"| {kind} | {unit} | meaning |", "|---|---|---|"]
            lines += [f"| `{p.name}` | {p.unit} | {_cell(p.meaning)} |" for p in parameters]
            lines.append("")
        lines += ["| returns | then | form | meaning |", "|---|---|---|---|"]
        for line in script.header["RETURNS"]:
            status, _, rest = re.sub(r"^'([^']*)'", r"\1", line).partition(" ")
            fields, _, meaning = rest.strip().partition("  ")
            form = "words" if line.startswith("'") else "array"
            lines.append(f"| `{status}` | `{fields.strip()}` | {form} | {_cell(meaning.strip())} |")
        lines.append("")
        for title, label in (("WRITES", "Writes, with the time to live"), ("PUBLISHES", "Publishes")):
            said = (line.partition(" ") for line in script.header[title])
            text = "; ".join(f"`{what}`: {_cell(rest.strip())}" if rest else what for what, _, rest in said)
            lines += [f"**{label}**: {text}", ""]
        lines += [f"**Twice**: {_cell(' '.join(script.header['REPEATABLE']))}", ""]
    _write("scripts.md", lines)


def write_command_line_page() -> None:
    """The reference of the command line: what its own ``--help`` says."""
    overview = _help()
    lines = ["```text", overview, "```", ""]
    for command in _commands_in(overview):
        text = _help(command)
        lines += [f"## `relock {command}`", "", "```text", text, "```", ""]
        for part in _commands_in(text):
            lines += ["```text", _help(command, part), "```", ""]
    _write("command-line.md", lines)


def _commands_in(text: str) -> list[str]:
    listed = text.partition("Commands:")[2].partition("Exit codes:")[0]
    return re.findall(r"^  ([a-z]+) {2,}", listed, re.MULTILINE)


def _help(*command: str) -> str:
    environment = os.environ | {"COLUMNS": "100", "PYTHONPATH": str(SOURCE), "NO_COLOR": "1"}
    arguments = [sys.executable, "-m", "relock", *command, "--help"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout.strip()


def _write(name: str, lines: list[str]) -> None:
    folder = DOCS / "_generated"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(lines))


def _cell(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|").replace("`", "\\`")


write_scripts_page()
write_command_line_page()
