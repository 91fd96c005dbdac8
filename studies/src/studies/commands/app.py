"""The subcommands: a new study is its folder, with a ``command`` module in it, and a line here."""

from pathlib import Path
from typing import Annotated

import typer

from samplewise.cli import begin, command_app, emit, note
from studies.chest import command as chest
from studies.commands import watermark
from studies.mnist import command as mnist
from studies.options import JsonFlag

app = command_app("studies", "The studies of samplewise: the paper's and ours.", "studies demo")


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
