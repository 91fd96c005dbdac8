"""``samplewise chest impact``: what watermarks do to the classifier's diagnosis (the paper's Table II)."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.cli.outcome import begin, emit
from studies.commands.evaluate import warn_of_seen
from studies.commands.options import Accelerator, Devices, JsonFlag, Threads
from studies.commands.progress import progress

if TYPE_CHECKING:
    from studies.chest.impact import Seen
    from studies.watermark.training import Run

EPILOG = (
    "\b\nExample: samplewise chest impact --classifier runs/classifier --watermark runs/c30 --watermark runs/c40 "
    "--store chest.store --out impact\n"
    "Go on: the same command with --resume"
)
SEEN = "seen"
"""Folder of what was looked at while the comparison is unfinished."""
OURS = {"report.json", "table.md", "table.csv", "impact.png", "impact.svg", SEEN}
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
    threads: Threads = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Take what an earlier process that was ended had looked at.")
    ] = False,
    accelerator: Accelerator = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Compare the diagnosis of marked images, as written in 8 bits, with that of the originals."""
    begin(f"chest impact: opening {store} and {len(watermark)} runs")
    from samplewise.storage.provenance import provenance
    from studies.chest.classifier import check_unseen, read_classifier
    from studies.chest.densenet import fingerprint_of, probabilities
    from studies.chest.impact import judge_originals, judge_run, look_at, look_once
    from studies.chest.impact_output import column_of, draw_impact, table_text, write_table
    from studies.pictures import Store
    from studies.watermark.evaluation.output import open_output
    from studies.watermark.training import read_trained

    runs = read_trained(watermark)
    network = read_classifier(classifier)
    pictures = Store.open(store)
    check_unseen(classifier, pictures)
    open_output(out, OURS)
    device = Devices(accelerator, threads=threads)().device
    data = pictures.select("test")
    weights = fingerprint_of(network)
    if not resume:
        shutil.rmtree(out / SEEN, ignore_errors=True)
    about = {"classifier": weights, "pictures": pictures.fingerprint, "split": str(pictures.split.origin)}
    once = partial(look_once, out / SEEN, about)
    network.to(device)

    def look_at_originals() -> Seen:
        with progress("diagnosing originals") as watch:
            return {"probabilities": probabilities(network, data, batch_size=batch_size, watch=watch)}

    def look_at_run(run: Run) -> Seen:
        with progress(f"diagnosing {run.label}") as watch:
            return look_at(network, run.network, data, floor=run.recipe.floor, batch_size=batch_size, watch=watch)

    originals = judge_originals(
        network,
        data,
        fewest=fewest,
        resamples=resamples,
        seed=seed,
        look=lambda: once("originals", look_at_originals)["probabilities"],
    )
    impacts = []
    for run in runs:
        warn_of_seen(run, data)
        seen = once(fingerprint_of(run.network), partial(look_at_run, run))
        impacts.append(judge_run(run, originals, seen, bounds=diagnosis or (0.01, 0.02, 0.05)))
    columns = {run.name: column for run in runs if (column := column_of(run.recipe)) is not None}
    asked = {
        "classifier": {"folder": classifier.as_posix(), "fingerprint": weights, "size": network.size},
        "watermarks": {
            run.name: {"folder": run.folder.as_posix(), "recipe": asdict(run.recipe), "training": run.result}
            for run in runs
        },
        "store": {"folder": store.as_posix(), "fingerprint": pictures.fingerprint},
        "fewest": fewest,
        "resamples": resamples,
        "provenance": provenance(seed=seed, device=str(device)),
    }
    report = write_table(out, originals, impacts, columns, asked)
    draw_impact(out, impacts)
    shutil.rmtree(out / SEEN)
    text = table_text(originals, impacts, columns)
    emit(report, text, f"Tables, report.json and the figure are in {out}", as_json=as_json)
