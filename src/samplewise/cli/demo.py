"""``samplewise demo``: the first study in small, on embedded data."""

from pathlib import Path
from typing import Annotated

import typer

from samplewise.cli.outcome import begin, emit_json, note

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the table, the plots, their data and report.html.")] = Path(
        "demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the initial weights and the order of the samples.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Compare the sequential penalty method with fixed weights on handwritten digits, in about a minute."""
    begin("demo: loading PyTorch and the digits")
    from samplewise.studies import demo as study

    found = study.run_demo(out, seed=seed, note=note)
    if as_json:
        emit_json(found.to_dict())
    else:
        print(found.text)
