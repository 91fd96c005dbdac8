"""``studies chest``: prepare ChestX-ray8, train the classifier, and see what watermarks do to its diagnosis."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from samplewise.cli import JsonFlag, begin, emit
from studies import options
from studies.progress import prepare_pictures, progress

if TYPE_CHECKING:
    from studies.chest.impact import Diagnoses
    from studies.pictures import Listing, Store

NAMES_SHOWN = 5  # of skipped pictures, which are all in the store's index, and of rows without a picture
UNFINISHED = "unfinished"
"""Folder of the diagnoses of an impact that has not come to its end."""
IMPACT_FILES = {"report.json", "table.md", "impact.png", "impact.svg", UNFINISHED}

app = options.command_group(
    "chest",
    "Chest X-rays: prepare the images of ChestX-ray8 and see what a watermark does to a diagnosis.",
    "Example: studies chest prepare --data ChestX-ray8 --size 224 --out chest.store",
)


@app.command(
    epilog="\b\nExample: studies chest prepare --data ChestX-ray8 --size 224 --out chest.store\n"
    "Again:   studies chest prepare --data ChestX-ray8 --size 224 --out chest.store --resume"
)
def prepare(
    data: Annotated[
        Path, Option(help="Folder of ChestX-ray8: images in or below it, the CSV in it or up to two above.")
    ],
    out: Annotated[Path, Option(help="Folder of the store: a new or empty one.")],
    size: Annotated[int, Option(min=1, help="Height and width that every image is resized to.")] = 224,
    seed: Annotated[int, Option(min=0, help="Seed of the split.")] = 0,
    split: Annotated[str, Option(help="patients: 70, 15, 15 % of them; official: the published lists.")] = "patients",
    workers: Annotated[int | None, Option(min=1, help="Threads that decode; one for each core if not given.")] = None,
    resume: Annotated[bool, Option("--resume", help="Use the store if it exists; else make it.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Decode the images once into a store, with labels, and split them so that no patient is on two sides."""
    begin(f"chest prepare: looking for images in {data}")
    from studies.pictures import find

    listing = find(data, labels=True)
    store = prepare_pictures(listing, out, size=size, seed=seed, split=split, workers=workers, resume=resume)
    summary = _summary(store, listing)
    emit(summary, _summary_text(summary), f"The store is in {out}", as_json=as_json)


def _summary(store: Store, listing: Listing) -> dict[str, Any]:
    from studies.pictures import PARTS, PATHOLOGIES

    parts = {}
    for part in PARTS:
        data = store.select(part)
        labels = data.labels
        parts[part] = {
            "images": len(data),
            "patients": len(set(data.patients)),
            "labels": dict(zip(PATHOLOGIES, labels.sum(0).tolist(), strict=True)),
            "no_finding": int((labels.sum(1) == 0).sum()),
        }
    return {
        "images": len(store),
        "patients": len(set(store.patients)),
        "size": store.size,
        "split": store.split.origin,
        "parts": parts,
        "skipped": dict(store.bad),
        "converted": dict(store.converted),
        "table": listing.table.name if listing.table else None,
        "rows_without_file": len(listing.absent),
        "rows_without_file_first": list(listing.absent[:NAMES_SHOWN]),
        "fingerprint": store.fingerprint,
    }


def _summary_text(summary: dict[str, Any]) -> str:
    from studies.records import markdown_table

    parts, skipped = summary["parts"], summary["skipped"]
    columns = [{**part, **part["labels"], "No Finding": part["no_finding"]} for part in parts.values()]
    titles = ["images", "patients", *parts["train"]["labels"], "No Finding"]
    converted = ", ".join(f"{count:,} {mode}" for mode, count in summary["converted"].items())
    absent = f"rows of {summary['table']} without an image: {summary['rows_without_file']:,}"
    lines = [
        f"{summary['images']:,} images of {summary['patients']:,} patients, {summary['size']} x {summary['size']}",
        markdown_table([["", *parts], *([each, *(f"{column[each]:,}" for column in columns)] for each in titles)]),
        f"skipped: {len(skipped):,}",
        *(f"  {name}: {reason}" for name, reason in list(skipped.items())[:NAMES_SHOWN]),
        *([f"turned grey: {converted}"] if converted else []),
        *([f"{absent} ({', '.join(first)})"] if (first := summary["rows_without_file_first"]) else []),
    ]
    return "\n".join(lines)


@app.command(
    epilog="\b\nExample: studies chest classifier --store chest.store --out runs/classifier\n"
    "From ImageNet: studies chest classifier --store chest.store --weights densenet121.pth --out runs/classifier\n"
    "With a recipe: studies chest classifier --store chest.store --recipe FILE.toml --out runs/classifier\n"
    "On from smaller images: studies chest classifier --store chest.store --size 96 "
    "--weights runs/classifier64/model.safetensors --out runs/classifier96\n"
    "Go on: the same command with --resume"
)
def classifier(
    store: Annotated[Path, Option(help="Store made by studies chest prepare.")],
    out: Annotated[Path, Option(help="Folder of the run.")],
    weights: Annotated[Path | None, Option(help="First weights: ImageNet, or model.safetensors of a run.")] = None,
    size: Annotated[int | None, Option(min=32, help="Height and width of its input (the store's).")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Epochs at most; 100 if not given.")] = None,
    batch_size: Annotated[int | None, Option(min=2, help="Images in a step; 64 if not given.")] = None,
    seed: options.Seed = None,
    recipe: options.RecipeFile = None,
    threads: options.Threads = None,
    resume: options.ResumeFlag = False,
    accelerator: options.Accelerator = "auto",
    devices: options.DevicesFlag = 1,
    nodes: options.Nodes = 1,
    strategy: options.Strategy = "auto",
    precision: options.Precision = "32-true",
    as_json: JsonFlag = False,
) -> None:
    """Train DenseNet-121 to find 14 pathologies, and give the AUROC of each with an interval."""
    begin(f"chest classifier: opening {store}")
    from samplewise.storage import read_json
    from studies.chest.classifier import SCORES_FILE, SETTINGS_FILE, ClassifierSettings, open_run, train_classifier
    from studies.pictures import Store

    pictures = Store.open(store)
    given = SETTINGS_FILE.given(recipe, size=size, epochs=epochs, batch_size=batch_size, seed=seed)
    settings = ClassifierSettings(**{"size": pictures.size, **given}).of(pictures, weights)
    fabric = options.Devices(accelerator, devices, nodes, strategy, precision, threads)()
    begin_run = partial(open_run, pictures, settings, out, weights=weights, resume=resume)
    opened = options.launch(fabric, lambda _: begin_run())
    train_classifier(pictures, settings, out, opened, fabric=fabric)
    if fabric.global_rank > 0:
        return
    result = read_json(out / SCORES_FILE, "a result of chest classifier")
    closing = f"The classifier is in {out}; see what watermarks do to it with studies chest impact"
    emit(result, _result_text(result), closing, as_json=as_json)


def _result_text(result: dict[str, Any]) -> str:
    from studies.chest.auroc import FEWEST
    from studies.chest.for_report import score_table
    from studies.records import markdown_table

    table, left_out = score_table("test", result["test"]), result["test"]["left_out"]
    ended = f"{result['selected']['reason']}; {result['epochs']} epochs in {result['seconds'] / 60:.0f} min"
    lines = [ended, table.title, markdown_table([table.columns, *table.rows])]
    if left_out:
        lines.append(f"not in the mean, with fewer than {FEWEST} positives: {', '.join(left_out)}")
    return "\n".join(lines)


@app.command(
    epilog="\b\nExample: studies chest impact --classifier runs/classifier --watermark runs/c30 --watermark runs/c40 "
    "--store chest.store --out impact\n"
    "Go on: the same command with --resume"
)
def impact(
    classifier: Annotated[Path, Option(help="Run of studies chest classifier.")],
    watermark: Annotated[list[Path], Option(help="Run of studies watermark train; may be given several times.")],
    store: Annotated[Path, Option(help="Store made by studies chest prepare; its test part is marked.")],
    out: Annotated[Path, Option(help="Folder for tables, report.json and figure.")],
    diagnosis: Annotated[list[float] | None, Option(help="Changes of probability; images within are counted.")] = None,
    fewest: Annotated[int, Option(min=1, help="Positives that a pathology needs to count in a mean.")] = 30,
    resamples: Annotated[int, Option(min=100, help="Resamples of the bootstrap over patients.")] = 2000,
    seed: Annotated[int, Option(min=0, help="Seed of the resamples.")] = 0,
    batch_size: Annotated[int, Option(min=1, help="Images in a batch; speed and memory only.")] = 32,
    threads: options.Threads = None,
    resume: Annotated[bool, Option("--resume", help="Use the diagnoses of an interrupted comparison.")] = False,
    accelerator: options.Accelerator = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Compare the diagnosis of marked images, as written in 8 bits, with that of the originals."""
    begin(f"chest impact: opening {store} and {len(watermark)} runs")
    from samplewise.storage import provenance
    from studies.chest.classifier import check_unseen, read_classifier
    from studies.chest.impact import (
        diagnose_marked,
        diagnose_originals,
        diagnosed_once,
        evaluate_originals,
        evaluate_run,
    )
    from studies.chest.impact_output import column_of, draw_impact, table_text, write_table
    from studies.pictures import Store
    from studies.records import fingerprint_of
    from studies.watermark.evaluation.output import warn_of_seen
    from studies.watermark.training import read_trained

    runs = read_trained(watermark)
    network = read_classifier(classifier)
    pictures = Store.open(store)
    check_unseen(classifier, pictures)
    options.open_output(out, IMPACT_FILES)
    device = options.Devices(accelerator, threads=threads)().device
    data = pictures.select("test")
    weights = fingerprint_of(network)
    if not resume:
        shutil.rmtree(out / UNFINISHED, ignore_errors=True)
    about = {"classifier": weights, "pictures": pictures.fingerprint, "split": str(pictures.split.origin)}
    network.to(device)

    def once(key: str, label: str, diagnose: Callable[..., Diagnoses]) -> Diagnoses:
        with progress(f"diagnosing {label}") as watch:
            return diagnosed_once(out / UNFINISHED, about, key, partial(diagnose, batch_size=batch_size, watch=watch))

    originals = evaluate_originals(
        network,
        data,
        lambda: once("originals", "originals", partial(diagnose_originals, network, data)),
        fewest=fewest,
        resamples=resamples,
        seed=seed,
    )
    impacts = []
    for run in runs:
        warn_of_seen(run, data)
        marked = partial(diagnose_marked, network, run.network, data, floor=run.recipe.floor)
        diagnoses = once(fingerprint_of(run.network), run.label, marked)
        impacts.append(evaluate_run(run, originals, diagnoses, bounds=diagnosis or (0.01, 0.02, 0.05)))
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
    shutil.rmtree(out / UNFINISHED)
    text = table_text(originals, impacts, columns)
    emit(report, text, f"Tables, report.json and the figure are in {out}", as_json=as_json)
