"""The command line: flashcheck gate, replay, show, promote, power, claims, list, env."""

from __future__ import annotations

import click

import flashcheck
from flashcheck import threads
from flashcheck.cli import claims, examples, gate, listing, power

# Imported before NumPy; said again here so that no one takes the import for unused.
threads.pin()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(flashcheck.__version__, prog_name="flashcheck")
def main() -> None:
    """The numerical correctness gate for attention kernels."""


for command in (
    gate.gate,
    examples.replay,
    examples.show,
    examples.promote,
    power.power,
    claims.claims,
    listing.list_,
    listing.env,
):
    main.add_command(command)
