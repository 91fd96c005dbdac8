"""The subcommands: a new study is its folder, with a ``command`` module in it, and a line here."""

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from samplewise.cli import begin, emit, note
from studies.chest import command as chest
from studies.commands import watermark
from studies.mnist import command as mnist
from studies.options import JsonFlag

app = typer.Typer(
    name="studies",
    help="The studies of samplewise: the paper's and ours.",
    epilog="Example: studies demo",
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
        print(f"studies {metadata.version('studies')}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command(epilog="Example: studies demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the table, the figures and report.html.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Of the split, the first weights and the order of samples.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many to run, from --seed on; each takes a minute.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Keep a named share of unseen digits in one run, beside a search over fixed weights, in about a minute."""
    begin("demo: loading PyTorch and the digits")
    from studies.demo.tables import run_demo

    table, text = run_demo(out, seed=seed, seeds=seeds, note=note)
    emit(table, text, as_json=as_json)


app.command(epilog=mnist.EPILOG)(mnist.mnist)
app.add_typer(watermark.app)
app.add_typer(chest.app)
