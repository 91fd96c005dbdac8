"""``samplewise watermark evaluate``: judge trained networks on the files that are written with them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samplewise.cli.outcome import begin, emit, note
from samplewise.errors import ConfigurationError, DataError, did_you_mean
from studies.commands.options import Accelerator, Devices, JsonFlag, Pictures, Threads
from studies.commands.progress import prepare_pictures, progress

if TYPE_CHECKING:
    from studies.pictures import Listing, PictureData, Store
    from studies.watermark.noise import Chain
    from studies.watermark.training import Run

EPILOG = (
    "\b\nExample: samplewise watermark evaluate runs/c40 --data xrays --out judged\n"
    "Beside the paper: samplewise watermark evaluate runs/base runs/c30 runs/c40 runs/c50 --data xrays --paper "
    "--out judged\n"
    'Own attacks: samplewise watermark evaluate runs/c40 --data xrays --attacks "jpeg(80), crop(0.8) + jpeg(90)" '
    "--out judged"
)
PARTS = ("test", "validation", "train", "all")


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders made by samplewise watermark train.")],
    data: Pictures,
    out: Annotated[Path, typer.Option(help="Folder for report.json, table and figures.")],
    part: Annotated[str, typer.Option(help="Of the images: test, validation, train or all.")] = "test",
    images: Annotated[
        int | None, typer.Option(min=1, help="Judge so many of them, evenly over all; all if not given.")
    ] = None,
    psnr: Annotated[
        float | None,
        typer.Option(min=0, help="Floor in dB to mark lattice at and to judge by; each run's own if not given."),
    ] = None,
    attacks: Annotated[
        str, typer.Option(help='standard, none, or a list such as "jpeg(75), crop(0.8) + jpeg(90)".')
    ] = "standard",
    attack_images: Annotated[int, typer.Option(min=1, help="Attack so many of the images at most.")] = 500,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of the exact bounds.")] = 0.95,
    paper: Annotated[bool, typer.Option("--paper", help="Mark the paper's medians in the figure of BER.")] = False,
    keep_images: Annotated[bool, typer.Option("--keep-images", help="Keep the marked PNG files in --out.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Of what is random in attacks.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in a batch; speed and memory only.")] = 16,
    threads: Threads = None,
    accelerator: Accelerator = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Judge trained networks on the files that are written: PSNR, bit errors, what is left after attacks.

    A lattice, as the shipped network is one, is judged by what embed writes and extract reads: strength up to the
    floor, error correction, search. hidden and swift are judged by their own residual, as the paper does it. Bounds for
    unseen images are from those that were not trained on, by their pixels and patients.
    """
    begin(f"watermark evaluate: opening {data} and {len(runs)} runs")
    from studies.pictures import PictureData, Store
    from studies.watermark.evaluation import measure, measure_shipped, output, summarise
    from studies.watermark.figures import write_figures
    from studies.watermark.networks import Lattice
    from studies.watermark.training import read_trained

    if part not in PARTS:
        raise ConfigurationError(
            f"expected --part as one of {', '.join(PARTS)}, got {part!r}{did_you_mean(part, PARTS)}"
        )
    found = read_trained(runs)
    chosen = _attacks(attacks, in_place=not all(isinstance(run.network, Lattice) for run in found))
    device = Devices(accelerator, threads=threads)().device
    source = open_source(data)
    if isinstance(source, Store) and (other := [run for run in found if run.recipe.size != source.size]):
        raise DataError(
            f"{data}: holds images of size {source.size}, but {other[0].folder} was trained for "
            f"{other[0].recipe.size}; give the folder of the images themselves, or a store prepared with that size"
        )
    output.open_output(out)
    judged = []
    for run in found:
        pictures = _part(_store(source, run, out), part).spread(images)
        kept = output.run_folder(out, run.name) / output.MARKED
        shutil.rmtree(kept, ignore_errors=True)  # of an earlier evaluation
        floor = run.recipe.own_floor if psnr is None else psnr
        how: dict[str, Any] = {
            "attacks": chosen,
            "attack_images": attack_images,
            "seed": seed,
            "workers": threads,
            "keep": kept if keep_images else None,
        }
        refused: dict[str, str] | None = None
        with progress(f"judging {run.label}") as watch:
            if isinstance(run.network, Lattice):
                floor = run.recipe.floor if floor is None else floor
                measured, refused = measure_shipped(run.network, pictures, floor=floor, watch=watch, **how)
            else:
                network = run.network.to(device)
                measured = measure(network, pictures, batch_size=batch_size, watch=watch, **how)
        if not len(measured):
            reason = next(iter((refused or {}).values()))
            note(f"{run.name}: not one of {len(pictures):,} images can be marked at {floor:g} dB: {reason}")
            continue
        pictures = PictureData(pictures.store, measured.numbers.tolist())
        trained, compared = output.seen_by(run, pictures)
        warn_of_seen(run, pictures)
        measured = replace(measured, trained_on=trained)
        summary = summarise(measured, floor, confidence=confidence, compared=compared, refused=refused)
        judged.append(output.Judged(run, pictures, measured, summary))
        output.write_judged(out, judged[-1])
    if not judged:
        raise DataError("no image could be marked by any run: train longer, or judge at a lower --psnr")
    figures = write_figures(out / "figures", judged, paper=paper)
    report = output.write_report(out, judged, part=part, seed=seed, device=str(device), figures=figures)
    closing = f"Report, tables and figures are in {out}; a page with all of it: samplewise report {out}"
    emit(report, output.table_text(report["runs"]), closing, as_json=as_json)


def _attacks(spec: str, *, in_place: bool) -> tuple[Chain, ...]:
    from studies.watermark.evaluation.measure import check_in_place
    from studies.watermark.noise import STANDARD_ATTACKS, parse_attacks

    if spec in ("none", "standard"):
        return STANDARD_ATTACKS if spec == "standard" else ()
    chosen = parse_attacks(spec)
    if in_place:  # the tool looks for images that were moved, a network by itself does not
        check_in_place(chosen)
    return chosen


def open_source(data: Path) -> Store | Listing:
    """A store of pictures, or the pictures of a folder, which are still to be prepared."""
    from studies.pictures import Store, find, is_unfinished
    from studies.pictures.store import INDEX

    return Store.open(data) if (data / INDEX).exists() or is_unfinished(data) else find(data)


def _store(source: Store | Listing, run: Run, out: Path) -> Store:
    """The pictures for a run: the store that was given, or a folder prepared as its training prepared it."""
    from studies.pictures import Store

    if isinstance(source, Store):
        return source
    size, seed = run.recipe.size, run.split_seed
    # Runs of different sizes, or trained with different splits, need their own.
    return prepare_pictures(source, out / "store" / f"{size}-seed{seed}", size=size, seed=seed, resume=True)


def _part(store: Store, part: str) -> PictureData:
    from studies.watermark.evaluation.output import split_of

    if part == "all":
        return store.select()
    if split_of(store) is None:
        raise DataError(
            f"{store.folder}: different images of fewer than 3 patients have no {part} part; judge --part all"
        )
    return store.select(part)


def warn_of_seen(run: Run, pictures: PictureData) -> None:
    """Say so if a run was trained on some of the pictures that it is judged on, or may have been."""
    from studies.watermark.evaluation.output import seen_by

    if run.seen is None:
        note(f"{run.name}: does not say what it was trained on, so nothing follows for unseen images: train it anew")
    elif trained := int(seen_by(run, pictures)[0].sum()):
        note(
            f"{run.name}: was trained on {trained:,} of these {len(pictures):,} images or on others of their patients; "
            "nothing follows from them for unseen images"
        )
