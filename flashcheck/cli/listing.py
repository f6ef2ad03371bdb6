"""flashcheck list, env: what there is."""

from __future__ import annotations

import click

from flashcheck.formats import EVERY


@click.command("list")
@click.argument(
    "what", type=click.Choice(["kernels", "properties", "faults", "dtypes", "families"])
)
def list_(what: str) -> None:
    """List the registered kernels, the properties, the faults, the dtypes or the input families."""
    if what == "kernels":
        from flashcheck.loading import registered

        lines = list(registered())
    elif what == "properties":
        from flashcheck.law import laws

        lines = [f"{law.name:<22} {law.statement}" for law in laws()]
    elif what == "faults":
        from flashcheck import fault

        pages = [fault.read(name) for name in fault.names()]
        lines = [f"{page.kind}  {page.name:<34} {page.title}" for page in pages]
    elif what == "dtypes":
        lines = list(EVERY)
    else:
        from flashcheck.families import SCORES, VALUES

        lines = [f"scores  {name}" for name in SCORES] + [f"values  {name}" for name in VALUES]
    click.echo("\n".join(lines))


@click.command()
@click.option("--device", metavar="cpu|cuda[:i]", help="also describe this device")
def env(device: str | None) -> None:
    """Versions, devices and numeric flags, as every report and example records them."""
    from flashcheck import environment

    click.echo("\n".join(environment.lines(environment.collect(device))))
