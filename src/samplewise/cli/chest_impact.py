"""``samplewise chest impact``: what watermarks do to the classifier's diagnosis (the paper's Table II)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from samplewise.cli.devices import Accelerator, Devices
from samplewise.cli.outcome import emit_json, note
from samplewise.cli.progress import working
from samplewise.cli.watermark_evaluate import warn_of_other_split

__all__ = ["EPILOG", "impact"]

EPILOG = (
    "\b\nExample: samplewise chest impact --classifier runs/classifier --watermark runs/c30 --watermark runs/c40 "
    "--store chest.store --out impact"
)
OURS = {"report.json", "table.md", "table.csv", "impact.png", "impact.svg"}
"""All that the folder of a comparison holds."""


def impact(
    classifier: Annotated[Path, typer.Option(help="Run of samplewise chest classifier.")],
    watermark: Annotated[list[Path], typer.Option(help="Run of samplewise watermark train; may be given often.")],
    store: Annotated[Path, typer.Option(help="Store made by samplewise chest prepare; its test part is marked.")],
    out: Annotated[Path, typer.Option(help="Folder for tables, report.json and figure.")],
    diagnosis: Annotated[
        list[float] | None, typer.Option(help="Changes of probability to count images within; may be given often.")
    ] = None,
    fewest: Annotated[int, typer.Option(min=1, help="Positives that a pathology needs to count in a mean.")] = 30,
    resamples: Annotated[int, typer.Option(min=100, help="Of the bootstrap over patients.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Of the resamples.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch; speed and memory only.")] = 32,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; as many as cores if not given.")] = None,
    accelerator: Accelerator = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compare the diagnosis of marked images, as written in 8 bits, with that of the originals."""
    import torch

    from samplewise.data.pictures import Store
    from samplewise.provenance import provenance
    from samplewise.studies.chest.classifier import check_unseen, fingerprint, read_classifier
    from samplewise.studies.chest.figure import draw_impact
    from samplewise.studies.chest.impact import judge_originals, judge_run, look_at
    from samplewise.studies.chest.paper import column_of
    from samplewise.studies.chest.table import table_text, write_table
    from samplewise.watermark.evaluation.report import open_output
    from samplewise.watermark.evaluation.runs import read_runs

    runs = read_runs(watermark)
    network = read_classifier(classifier)
    pictures = Store.open(store)
    check_unseen(classifier, pictures)
    open_output(out, OURS)
    if threads is not None:
        torch.set_num_threads(threads)
    device = Devices(accelerator)().device
    originals = judge_originals(
        network.to(device),
        pictures.select("test"),
        fewest=fewest,
        resamples=resamples,
        seed=seed,
        batch_size=batch_size,
    )
    impacts = []
    for run in runs:
        warn_of_other_split(run, originals.data, "test")
        with working(run.label) as watch:
            seen = look_at(network, run.network, originals.data, batch_size=batch_size, watch=watch)
        impacts.append(judge_run(run, originals, seen, bounds=diagnosis or (0.01, 0.02, 0.05)))
    about = {
        "classifier": {"folder": classifier.as_posix(), "fingerprint": fingerprint(classifier), "size": network.size},
        "watermarks": {
            run.name: {"folder": run.folder.as_posix(), "recipe": asdict(run.recipe), "training": run.result}
            for run in runs
        },
        "store": {"folder": store.as_posix(), "fingerprint": pictures.index.fingerprint},
        "fewest": fewest,
        "resamples": resamples,
        "provenance": provenance(seed=seed, device=str(device)),
    }
    columns = {run.name: column for run in runs if (column := column_of(run.recipe)) is not None}
    report = write_table(out, originals, impacts, columns, about)
    draw_impact(out, impacts)
    if as_json:
        emit_json(report)
    else:
        print(table_text(originals, impacts, columns))
        note(f"Tables, report.json and the figure are in {out}")
