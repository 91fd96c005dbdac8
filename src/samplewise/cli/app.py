"""The command ``samplewise`` and its subcommands."""

from importlib import metadata
from typing import Annotated

import typer

from samplewise.cli import chest, demo, env, mnist, report, watermark

__all__ = ["app"]

app = typer.Typer(
    name="samplewise",
    help="Train PyTorch models under requirements that must hold for every sample.",
    epilog="Example: samplewise demo",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich reads :100: as an emoji
)


@app.callback()
def common(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, for bug reports.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Options of every command; ``--debug`` is read where errors are reported."""
    if version:
        print(f"samplewise {metadata.version('samplewise')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


app.command(epilog="Example: samplewise demo --out demo")(demo.demo)
app.command(
    epilog="\b\nExample: samplewise mnist --data download --rows all --out runs/mnist\n"
    "One row: samplewise mnist --data download --row penalty:100:1.01 --out runs/one\n"
    "Go on:   samplewise mnist --data download --rows all --out runs/mnist --resume"
)(mnist.mnist)
app.command(
    epilog="\b\nExample: samplewise report runs/one --out report.html\n"
    "Compare: samplewise report runs/one runs/two --out compared.html"
)(report.report)
app.command(epilog="Example: samplewise env --json")(env.env)
app.add_typer(chest.app)
app.add_typer(watermark.app)
