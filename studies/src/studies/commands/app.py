"""The subcommands: a new study is its folder, with a ``command`` module in it, and a line here."""

from pathlib import Path
from typing import Annotated

import typer

from samplewise.cli import JsonFlag, begin, command_app, emit, note
from studies.chest import command as chest
from studies.commands import watermark
from studies.compression import command as compression
from studies.mnist import command as mnist

app = command_app("studies", "The studies of samplewise: the paper's and ours.", "studies demo")


@app.command(epilog="Example: studies demo --out demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the table, the figures and report.html.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first weights and of the training data.")] = 0,
    as_json: JsonFlag = False,
) -> None:
    """Fewest bits with a floor under every block: one constrained run beside five fixed weights, in about a minute."""
    begin("demo: loading PyTorch and the pictures")
    import torch

    from studies.demo import run_demo

    torch.set_num_threads(1)  # the networks are small
    result, text = run_demo(out, seed=seed, note=note)
    emit(result, text, as_json=as_json)


app.command(epilog=mnist.EPILOG)(mnist.mnist)
app.command(epilog=compression.EPILOG)(compression.compression)
app.add_typer(watermark.app)
app.add_typer(chest.app)
