"""The command line in the process of a test: a new process would need longer to start than the command to run."""

import subprocess

from click.testing import CliRunner

from relock.cli._main import cli


def relock(*words: str, nodes: str = "", answer: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run a command with nodes in the environment, and an answer on its stdin; return what a process would have."""
    env = {"RELOCK_USERNAME": None, "RELOCK_PASSWORD": None, "RELOCK_NODES": nodes, **environment}
    done = CliRunner().invoke(cli, words, input=answer, prog_name="relock", env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)
