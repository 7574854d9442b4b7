"""The documentation's examples pass a strict type checker as they stand: readers copy them into checked code."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"(>>>|\.\.\.) ")

pytestmark = pytest.mark.timeout(900)  # a type checker on a busy machine


def _python_of(page: str) -> str:
    """Return the blocks of a page as one module, because they share their names; line numbers are those of the page."""
    lines = [""] * (page.count("\n") + 1)
    for block in BLOCK.finditer(page):
        first = page.count("\n", 0, block.start(1))
        for number, line in enumerate(_without_prompts(block[1]).splitlines(), first):
            lines[number] = line
    return "\n".join(lines)


def _without_prompts(block: str) -> str:
    """Return the input at the prompts of an example, without the output."""
    if not block.startswith(">>>"):
        return block
    return "\n".join(line[4:] if PROMPT.match(line) else "" for line in block.splitlines())


def _modules(folder: Path) -> dict[str, str]:
    """Return the modules to check, by their names in an error: the page, or the file."""
    found = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if "```python" in page.read_text() and not {"_build", "_generated"} & set(page.parts):
            name = str(page.relative_to(ROOT))
            module = folder / f"{re.sub(r'[^a-zA-Z0-9]', '_', name)}.py"
            module.write_text(_python_of(page.read_text()))
            found[str(module)] = name
    for script in (ROOT / "docs" / "examples").rglob("*.py"):
        if "fastapi" not in script.read_text() or find_spec("fastapi"):  # comes with the extra test
            found[str(script)] = str(script.relative_to(ROOT))
    return found


def _errors_in(modules: dict[str, str], folder: Path) -> list[str]:
    options = ["--strict", "--config-file=", f"--cache-dir={folder / 'cache'}", "--no-error-summary", "--no-pretty"]
    options.append("--untyped-calls-exclude=redis")  # some of redis-py has no types
    command = [sys.executable, "-m", "mypy", *options, *modules]
    checked = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert not checked.stderr, checked.stderr
    lines = []
    for line in checked.stdout.splitlines():
        path, _, rest = line.partition(":")
        lines.append(f"{modules.get(path) or modules.get(str(folder / path), path)}:{rest}")
    assert bool(lines) == bool(checked.returncode)
    return lines


def test_every_example_passes_a_strict_type_checker(tmp_path: Path) -> None:
    errors = _errors_in(_modules(tmp_path), tmp_path)
    assert not errors, "\n".join(errors)


# What the checker must find in wrong modules. One test shows them all, because a run of the checker takes seconds.

PAGE = "\n```python\nfrom relock import Client\n```\n\n```python\n>>> Client(5)\n<Client>\n>>> x: int = 'a'\n```\n"


def wrong_lines_of_a_page_are_found(told: list[str]) -> None:
    assert [line.split(":")[1] for line in told] == ["7", "9"]


TRUTHY_TOO = "# mypy: enable-error-code=truthy-bool\n"
WITHOUT_AWAIT = """
from relock import AsyncLock

async def work(lock: AsyncLock) -> None:
    lock.acquire()
    if lock.acquire():
        lock.release()
"""
A_SEMAPHORE_WITHOUT_AWAIT = """
from relock import AsyncPermit, AsyncSemaphore

async def work(semaphore: AsyncSemaphore, lock: AsyncPermit) -> None:
    semaphore.acquire()
    if semaphore.acquire():
        lock.release()
"""


def a_call_that_is_not_awaited_is_found(told: list[str]) -> None:
    found = [(line.split(":")[1], line.rpartition(" ")[2]) for line in told if " error: " in line]
    assert found == [("6", "[unused-coroutine]"), ("7", "[truthy-bool]"), ("8", "[unused-coroutine]")]


WITH_UNKNOWN_KEYWORDS = """
from relock import AsyncClient, AsyncLock, Client, Lock

def work(client: Client, tasks: AsyncClient, lock: Lock, other: AsyncLock) -> None:
    Client("redis://a", tll=1)
    client.lock("a", tll=1)
    tasks.lock("a", tll=1)
    lock.acquire(tll=1)
    reveal_type(lock.acquire)
    reveal_type(other.acquire)
"""


def an_unknown_keyword_is_found_and_what_refuses_it_is_not_shown(told: list[str]) -> None:
    found = [line for line in told if '"tll"' in line]
    assert [line.split(":")[1] for line in found] == ["5", "6", "7", "8"]
    shown = [line for line in told if "Revealed type" in line]
    assert len(shown) == 2
    assert all("(blocking: bool =, timeout: float =) ->" in text for text in shown), shown


PERMITS = """
from relock import AsyncSemaphore, Client, Permit, Semaphore

def work(client: Client, semaphore: Semaphore) -> None:
    client.semaphore("a", 2, tll=1)
    semaphore.acquire(tll=1)
    reveal_type(semaphore.acquire)
    permit = semaphore.acquire()
    permit.release()
    with semaphore as entered:
        reveal_type(entered)
        reveal_type(entered.slot)

async def wrong(semaphore: Semaphore, tasks: AsyncSemaphore) -> None:
    async with semaphore:
        pass
    with tasks:
        pass
    async with tasks as entered:
        reveal_type(entered)
"""


def a_permit_may_be_none_and_a_semaphore_is_for_threads_or_for_tasks(told: list[str]) -> None:
    found = [(line.split(":")[1], line.rpartition(" ")[2]) for line in told if " error: " in line]
    assert found[:3] == [("5", "[call-arg]"), ("6", "[call-arg]"), ("9", "[union-attr]")]
    assert {line for line, _ in found[3:]} == {"15", "17"}
    shown = [line.partition(" is ")[2].strip('"') for line in told if "Revealed type" in line]
    assert "permits: int =" in shown[0]
    assert "tll" not in shown[0]
    assert [text.rpartition(".")[2] for text in (shown[1], shown[3])] == ["Permit", "AsyncPermit"]
    assert "None" in shown[2], "a slot is an int, or None"


SKIPPED = """
import relock
from relock import AsyncClient, Client

def work(number: int) -> str:
    return ""

async def task(number: int) -> str:
    return ""

def show(client: Client, tasks: AsyncClient) -> None:
    reveal_type(client.synchronized("a", timeout=5)(work))
    reveal_type(client.synchronized("a", skip=True)(work))
    reveal_type(client.synchronized("a", skip=True, otherwise=5)(work))
    reveal_type(tasks.synchronized("a", cancel_on_lost=True)(task))
    reveal_type(tasks.synchronized("a", skip=True)(task))
    reveal_type(tasks.synchronized("a", skip=True, otherwise=5)(task))
    reveal_type(relock.synchronized(lambda: client, "a")(work))
    reveal_type(relock.synchronized(lambda: client, "a", skip=True)(work))
    reveal_type(relock.synchronized(lambda: client, "a", skip=True, otherwise=5)(work))
    client.synchronized("a", otherwise=5)
    client.synchronized("a", cancel_on_lost=True)
"""


def a_skipped_call_returns_another_type(told: list[str]) -> None:
    """Mypy shows a union in one way or another, by its version."""
    shown = [line.partition("-> ")[2].rstrip('"]') for line in told if "Revealed type" in line]
    kinds = [("builtins." in one or "str" in one, "None" in one, "int" in one) for one in shown]
    assert kinds == [(True, False, False), (True, True, False), (True, False, True)] * 3, shown
    assert {line.split(":")[1] for line in told if " error: " in line} == {"21", "22"}


MISSPELT = "import relock\nfrom relock import AsyncClient, Klient\nrelock.AsyncLok\n"


def a_misspelt_name_of_the_package_is_found(told: list[str]) -> None:
    assert [line.split(":")[1] for line in told] == ["2", "3"]


WRONG: dict[str, tuple[str, Callable[[list[str]], None]]] = {
    "wrong_page": (_python_of(PAGE), wrong_lines_of_a_page_are_found),
    "wrong_lock": (TRUTHY_TOO + WITHOUT_AWAIT, a_call_that_is_not_awaited_is_found),
    "wrong_semaphore": (TRUTHY_TOO + A_SEMAPHORE_WITHOUT_AWAIT, a_call_that_is_not_awaited_is_found),
    "wrong_keywords": (WITH_UNKNOWN_KEYWORDS, an_unknown_keyword_is_found_and_what_refuses_it_is_not_shown),
    "wrong_permits": (PERMITS, a_permit_may_be_none_and_a_semaphore_is_for_threads_or_for_tasks),
    "wrong_skips": (SKIPPED, a_skipped_call_returns_another_type),
    "wrong_names": (MISSPELT, a_misspelt_name_of_the_package_is_found),
}


def test_wrong_uses_are_found_where_they_are(tmp_path: Path) -> None:
    modules = {}
    for name, (text, _) in WRONG.items():
        module = tmp_path / f"{name}.py"
        module.write_text(text)
        modules[str(module)] = name
    told = _errors_in(modules, tmp_path)
    for name, (_, check) in WRONG.items():
        check([line for line in told if line.startswith(f"{name}:")])
    assert all(line.partition(":")[0] in WRONG for line in told), told
