"""``samplewise chest``: the study on ChestX-ray8."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samplewise.cli import chest_classifier, chest_impact
from samplewise.cli.outcome import begin, emit_json, note

if TYPE_CHECKING:
    from samplewise.data.pictures import Listing, Store

__all__ = ["app"]

SHOWN = 5  # names of skipped pictures; all of them are in the store's index

app = typer.Typer(
    name="chest",
    help="Chest X-rays: prepare the images of ChestX-ray8 and judge what a watermark does to a diagnosis.",
    epilog="Example: samplewise chest prepare --data ChestX-ray8 --size 224 --out chest.store",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def common(context: typer.Context) -> None:
    """Show the help if no command is given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


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
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Decode the images once into a store, with labels, and split them so that no patient is on two sides."""
    begin(f"chest prepare: looking for images in {data}")
    from samplewise.cli.preparing import preparing
    from samplewise.data import pictures
    from samplewise.data.pictures.split import parse_rule

    rule = parse_rule(split)
    listing = pictures.find(data, labels=True)
    with preparing(out) as watch:
        store = pictures.prepare(
            listing, out, size=size, seed=seed, split=rule, workers=workers, resume=resume, watch=watch
        )
    summary = _summary(store, listing)
    if as_json:
        emit_json(summary)
    else:
        _show(summary)
        note(f"The store is in {out}")


def _summary(store: Store, listing: Listing) -> dict[str, Any]:
    from samplewise.data.pictures import PARTS, PATHOLOGIES

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
        "skipped": dict(store.index.bad),
        "converted": dict(store.index.converted),
        "table": listing.table.name if listing.table else None,
        "rows_without_file": len(listing.absent),
        "rows_without_file_first": list(listing.absent[:SHOWN]),
        "fingerprint": store.index.fingerprint,
    }


def _show(summary: dict[str, Any]) -> None:
    parts = summary["parts"]
    columns = [parts[name] for name in parts]
    width = max(map(len, columns[0]["labels"]))

    def line(title: str, counts: list[int]) -> None:
        print(f"{title:<{width}}" + "".join(f"{count:>12,}" for count in counts))

    print(f"{summary['images']:,} images of {summary['patients']:,} patients, {summary['size']} x {summary['size']}")
    print(f"{'':<{width}}" + "".join(f"{name:>12}" for name in parts))
    for title in ("images", "patients"):
        line(title, [column[title] for column in columns])
    for label in columns[0]["labels"]:
        line(label, [column["labels"][label] for column in columns])
    line("No Finding", [column["no_finding"] for column in columns])
    skipped = summary["skipped"]
    print(f"skipped: {len(skipped):,}")
    for name, reason in list(skipped.items())[:SHOWN]:
        print(f"  {name}: {reason}")
    if len(skipped) > SHOWN:
        print("  ... all are in the store's index.json under bad")
    if summary["converted"]:
        print("turned grey: " + ", ".join(f"{count:,} {mode}" for mode, count in summary["converted"].items()))
    if summary["rows_without_file"]:
        first = ", ".join(summary["rows_without_file_first"])
        print(f"rows of {summary['table']} without an image here: {summary['rows_without_file']:,} ({first} ...)")


app.command(epilog=chest_classifier.EPILOG)(chest_classifier.classifier)
app.command(epilog=chest_impact.EPILOG)(chest_impact.impact)
