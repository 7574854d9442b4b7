"""Completion of commands and options in shells, as the page on the command line says to set it up."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "how-to" / "command-line.md"
SAID = {
    "bash": 'eval "$(_RELOCK_COMPLETE=bash_source relock)"',
    "zsh": 'eval "$(_RELOCK_COMPLETE=zsh_source relock)"',
    "fish": "_RELOCK_COMPLETE=fish_source relock | source",
}
REGISTERS = {"bash": "complete -o nosort -F", "zsh": "compdef", "fish": "complete --no-files --command relock"}


def ask(**environment: str) -> str:
    """Return what `relock` prints with these variables."""
    command = [sys.executable, "-m", "relock"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.parametrize("shell", SAID)
def test_the_script_of_each_shell_is_printed(shell: str) -> None:
    assert SAID[shell].replace("|", "\\|") in PAGE.read_text(), "in a table"
    script = ask(_RELOCK_COMPLETE=f"{shell}_source")
    assert REGISTERS[shell] in script
    assert f"_RELOCK_COMPLETE={shell}_complete" in script


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("relock sta", {"status"}),
        ("relock status orders:42 --js", {"--json"}),  # no masters are named yet
        ("relock watch --kind ", {"lock", "semaphore", "latch"}),
    ],
)
def test_commands_options_and_choices_are_offered(line: str, offered: set[str]) -> None:
    words = str(len(line.split(" ")) - 1)
    answer = ask(_RELOCK_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=words, RELOCK_NODES="")
    assert {one.partition(",")[2] for one in answer.split()} == offered


def test_a_bash_completes_as_the_page_says(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    program = tmp_path / "relock"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m relock "$@"\n')
    program.chmod(0o755)
    script = (
        f'{SAID["bash"]}; COMP_WORDS=(relock wat); COMP_CWORD=1; _relock_completion relock; echo "${{COMPREPLY[@]}}"'
    )
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([bash, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    if "not supported" in done.stderr:
        pytest.skip("this bash is older than 4.4")
    assert (done.stdout.split(), done.returncode) == (["watch"], 0), done.stderr
