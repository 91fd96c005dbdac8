"""``samplewise chest``: the study on ChestX-ray8; its pictures and the classifier that a watermark must not disturb."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samplewise.cli import chest_impact, options
from samplewise.cli.outcome import begin, emit
from studies.commands.progress import prepare_pictures

if TYPE_CHECKING:
    from studies.chest.densenet import Classifier
    from studies.pictures import Listing, Store

SHOWN = 5  # names of skipped pictures; all of them are in the store's index

app = options.command_group(
    "chest",
    "Chest X-rays: prepare the images of ChestX-ray8 and judge what a watermark does to a diagnosis.",
    "Example: samplewise chest prepare --data ChestX-ray8 --size 224 --out chest.store",
)


@app.command(
    epilog="\b\nExample: samplewise chest prepare --data ChestX-ray8 --size 224 --out chest.store\n"
    "Again:   samplewise chest prepare --data ChestX-ray8 --size 224 --out chest.store --resume"
)
def prepare(
    data: Annotated[
        Path, typer.Option(help="Folder of ChestX-ray8: images in it or below, the CSV in it or up to two above.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the store: a new or empty one.")],
    size: Annotated[int, typer.Option(min=1, help="Height and width that every image is resized to.")] = 224,
    seed: Annotated[int, typer.Option(min=0, help="Of the split.")] = 0,
    split: Annotated[
        str, typer.Option(help="patients: 70, 15 and 15 % of them; official: the published test list.")
    ] = "patients",
    workers: Annotated[
        int | None, typer.Option(min=1, help="Threads that decode; one for each core if not given.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Use the store if it is there already; else make it.")
    ] = False,
    as_json: options.JsonFlag = False,
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
        assert labels is not None
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
        "rows_without_file_first": list(listing.absent[:SHOWN]),
        "fingerprint": store.fingerprint,
    }


def _summary_text(summary: dict[str, Any]) -> str:
    parts = summary["parts"]
    columns = {name: {**part, **part["labels"], "No Finding": part["no_finding"]} for name, part in parts.items()}
    titles = ["images", "patients", *parts["train"]["labels"], "No Finding"]
    width = max(map(len, titles))
    lines = [
        f"{summary['images']:,} images of {summary['patients']:,} patients, {summary['size']} x {summary['size']}",
        f"{'':<{width}}" + "".join(f"{name:>12}" for name in parts),
        *(f"{each:<{width}}" + "".join(f"{column[each]:>12,}" for column in columns.values()) for each in titles),
    ]
    skipped = summary["skipped"]
    lines.append(f"skipped: {len(skipped):,}")
    lines += [f"  {name}: {reason}" for name, reason in list(skipped.items())[:SHOWN]]
    if len(skipped) > SHOWN:
        lines.append("  ... all are in the store's index.json under bad")
    if summary["converted"]:
        lines.append("turned grey: " + ", ".join(f"{count:,} {mode}" for mode, count in summary["converted"].items()))
    if summary["rows_without_file"]:
        first = ", ".join(summary["rows_without_file_first"])
        lines.append(
            f"rows of {summary['table']} without an image here: {summary['rows_without_file']:,} ({first} ...)"
        )
    return "\n".join(lines)


@app.command(
    epilog="\b\nExample: samplewise chest classifier --store chest.store --out runs/classifier\n"
    "From ImageNet: samplewise chest classifier --store chest.store --weights densenet121.pth --out runs/classifier\n"
    "With a recipe: samplewise chest classifier --store chest.store --recipe FILE.toml --out runs/classifier\n"
    "On from smaller images: samplewise chest classifier --store chest.store --size 96 "
    "--weights runs/classifier64/model.safetensors --out runs/classifier96\n"
    "Go on: the same command with --resume"
)
def classifier(
    store: Annotated[Path, typer.Option(help="Store made by samplewise chest prepare.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="ImageNet weights of DenseNet-121, or the model.safetensors of another run, to start from; from "
            "scratch if not given."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=32, help="Height and width it looks at; the store's if not given.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="At most; 100 if not given.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=2, help="Images in a step; 64 if not given.")] = None,
    seed: options.Seed = None,
    recipe: options.RecipeFile = None,
    threads: options.Threads = None,
    resume: options.ResumeFlag = False,
    accelerator: options.Accelerator = "auto",
    devices: options.DevicesFlag = 1,
    nodes: options.Nodes = 1,
    strategy: options.Strategy = "auto",
    precision: options.Precision = "32-true",
    as_json: options.JsonFlag = False,
) -> None:
    """Train DenseNet-121 to find 14 pathologies, and give the AUROC of each with an interval."""
    begin(f"chest classifier: opening {store}")
    from samplewise.storage.records import read_json
    from studies.chest.classifier import MADE, SCORES_FILE, ClassifierSettings, open_run, train_classifier
    from studies.pictures import Store

    pictures = Store.open(store)
    given = options.given_settings(
        recipe, ClassifierSettings, MADE, size=size, epochs=epochs, batch_size=batch_size, seed=seed
    )
    settings = ClassifierSettings(**{"size": pictures.size, **given}).of(pictures, weights)
    fabric = options.Devices(accelerator, devices, nodes, strategy, precision, threads)()

    def open_first(first: bool) -> Classifier:
        opened = open_run(pictures, settings, out, weights=weights, resume=resume)
        if first:
            options.keep_recipe(out, settings, MADE)
        return opened

    opened = options.launch(fabric, open_first)
    train_classifier(pictures, settings, out, classifier=opened, fabric=fabric)
    if fabric.global_rank > 0:
        return
    result = read_json(out / SCORES_FILE, "a result of chest classifier")
    closing = f"The classifier is in {out}; see what watermarks do to it with samplewise chest impact"
    emit(result, _result_text(result), closing, as_json=as_json)


def _result_text(result: dict[str, Any]) -> str:
    from studies.chest.auroc import FEWEST
    from studies.chest.for_report import score_table
    from studies.watermark.evaluation.output import aligned

    table, left_out = score_table("test", result["test"]), result["test"]["left_out"]
    return "\n".join(
        [
            f"{result['selected']['reason']}; {result['epochs']} epochs in {result['seconds'] / 60:.0f} min",
            table.title,
            aligned([table.columns, *table.rows]),
            *([f"not in the mean, with fewer than {FEWEST} positives: {', '.join(left_out)}"] if left_out else []),
        ]
    )


app.command(epilog=chest_impact.EPILOG)(chest_impact.impact)
