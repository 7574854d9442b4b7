"""``relock release --force``: an operator's way to end a hold, or the permits of one holder."""

from typing import Any

import click

from relock._options import LIMIT_MAX
from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import print_json, printable

# `python -OO` would drop a docstring.
HELP = """End the hold of the lock NAME, of any owner. This takes --force.

The queue goes on, and fencing tokens go on rising. The holder is not asked. A holder with on_lost or
cancel_on_lost is told; any other one learns only at its next renewal, nested acquire or release that the lock is
lost. Until then two may believe that they have it. A lock that nobody holds is no error.

With --permits-of, NAME is a semaphore: end the permits of this one holder. The next waiter gets them, and the holder
learns of it as above.
"""


@click.command(help=HELP)
@click.argument("name")
@click.option("--force", is_flag=True, help="Yes, end it while its holder may be at work.")
@click.option("--permits-of", "owner", metavar="OWNER", help="A holder that `relock status --semaphore NAME` names.")
@node_options
@json_option
def release(name: str, force: bool, owner: str | None, where: Where, as_json: bool) -> None:
    """End the hold, and print whether there was one."""
    if not force:
        raise click.UsageError(
            f"this would end the hold of {printable(name)!r} while its holder may still be at work, and let the next "
            "one in: look with `relock status`, stop the holder, and if you mean it, add --force"
        )
    done: dict[str, Any] = {"name": name} if owner is None else {"name": name, "owner": owner}
    with where.client() as client:
        if owner is None:
            released = client.force_release(name)
        else:
            released = client.semaphore(name, LIMIT_MAX).force_release(owner)
    if as_json:
        print_json({**done, "released": released})
    else:
        nobody = "nobody held it" if owner is None else "that owner has no permit"
        click.echo(f"{printable(name)}: {'released' if released else nobody}")
