"""Output of the commands, and their exit codes."""

import importlib
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from relock import AcquireTimeoutError, ClientClosedError, ConfigurationError, LockLostError, QuorumError, RelockError
from relock.cli import _main
from relock.cli._exit_codes import EPILOG, MEANINGS, ExitCode
from relock.cli._output import failed, printable, span


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (QuorumError("x"), 69),
        (AcquireTimeoutError("x"), 75),
        (LockLostError("x"), 79),
        (ConfigurationError("x", option="nodes"), 78),
        (ConfigurationError("x", option="name"), 2),
        (ClientClosedError("x"), 1),
    ],
)
def test_each_error_has_its_exit_code(error: RelockError, code: int) -> None:
    assert failed(error).exit_code == code


def test_ctrl_c_that_no_command_handles_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come while the module of the command is imported; 1 is an answer of `doctor`, `guard` and `demo`."""

    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    done = CliRunner().invoke(_main.cli, ["doctor"])
    assert (done.exit_code, done.stdout) == (130, "")


def test_every_exit_code_is_explained_once() -> None:
    assert [code for code, _ in MEANINGS] == [code for code in ExitCode if code is not ExitCode.SIGNALLED]
    assert all(f"{code.value}  " in EPILOG for code, _ in MEANINGS)


@pytest.mark.parametrize(
    ("text", "shown"), [("a b-ü", "a b-ü"), ("a\nb", "a\\nb"), ("\x1b[2J", "\\x1b[2J"), ("\u202e", "\\u202e")]
)
def test_control_characters_are_shown_not_printed(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from relock.cli import main; main()"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == ExitCode.CONFIGURATION
    assert done.stderr == f"relock: the command line needs {missing}: pip install 'redis-relock[cli]'\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (60, "1 min 0 s"),
        (3599, "59 min 59 s"),
        (7321, "2 h 2 min"),
        (9e4, "1 d 1 h"),
    ],
)
def test_a_time_has_its_two_largest_units(seconds: float, words: str) -> None:
    assert span(seconds) == words
