"""The exit codes: one table, which ``relock --help`` prints and scripts may rely on."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``relock`` itself; ``relock run`` passes its command's exit code on.

    Codes of sysexits.h are used where one fits, because few commands use those for anything else. For a lost lock there
    is none, so it has the first number above them.
    """

    OK = 0
    WRONG = 1
    USAGE = 2
    UNREACHABLE = 69
    NOT_AVAILABLE = 75
    CONFIGURATION = 78
    LOST = 79
    NOT_EXECUTABLE = 126
    NOT_FOUND = 127
    SIGNALLED = 128


MEANINGS = (
    (ExitCode.OK, "done; for run: the command's own exit code is passed on, whatever it is"),
    (
        ExitCode.WRONG,
        "doctor found something wrong; guard: no was the answer; demo: the verdict is bad; bench: two had it at once; "
        "order: there is a cycle",
    ),
    (ExitCode.USAGE, "the command line is wrong; order: a file can't be read"),
    (ExitCode.UNREACHABLE, "too few masters answered (EX_UNAVAILABLE)"),
    (
        ExitCode.NOT_AVAILABLE,
        "run: another owner has the lock, and --no-wait or --wait is over; guard: it changed meanwhile (EX_TEMPFAIL)",
    ),
    (
        ExitCode.CONFIGURATION,
        "the masters are not what a lock needs, no server for the demo, or a package is missing (EX_CONFIG)",
    ),
    (ExitCode.LOST, "run: the lock was lost; a command that still ran was ended"),
    (ExitCode.NOT_EXECUTABLE, "run: the command can't be executed"),
    (ExitCode.NOT_FOUND, "run: there is no such command"),
)


def of_signal(signum: int) -> int:
    """Return the exit code that a shell reports for a command that signal `signum` ended."""
    return ExitCode.SIGNALLED + signum


def _table() -> str:
    r"""Return a line for each code, behind the mark that keeps click from folding lines."""
    lines = [f"{code.value:>5}  {meaning}" for code, meaning in MEANINGS]
    return "\n".join(["\b", "Exit codes:", *lines, "128+n  signal n ended relock; run: or the command"])


EPILOG = _table()
