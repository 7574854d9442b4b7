"""``relock release --force``: an operator's way to end a hold."""

import click

from relock.cli._nodes import Where, json_option, node_options
from relock.cli._output import print_json, printable

# `python -OO` would drop a docstring.
HELP = """End the hold of the lock NAME, of any owner. This takes --force.

The queue goes on, and fencing tokens go on rising. The holder is not asked, and learns only at its next renewal,
nested acquire or release that the lock is lost: until then two may believe that they have it. A lock that nobody
holds is no error.
"""


@click.command(help=HELP)
@click.argument("name")
@click.option("--force", is_flag=True, help="Yes, end the hold of any owner.")
@node_options
@json_option
def release(name: str, force: bool, where: Where, as_json: bool) -> None:
    """End the hold, and print whether there was one."""
    if not force:
        raise click.UsageError(
            f"this would end the hold of {printable(name)!r} while its holder may still be at work, and let the next "
            "one in: look with `relock status`, stop the holder, and if you mean it, add --force"
        )
    with where.client() as client:
        released = client.force_release(name)
    if as_json:
        print_json({"name": name, "released": released})
    else:
        click.echo(f"{printable(name)}: {'released' if released else 'nobody held it'}")
