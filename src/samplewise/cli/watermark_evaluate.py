"""``samplewise watermark evaluate``: judge trained networks on the files they write."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.cli.devices import Accelerator, Devices
from samplewise.cli.outcome import begin, emit_json, note
from samplewise.cli.progress import progress
from samplewise.errors import ConfigurationError, DataError, did_you_mean

if TYPE_CHECKING:
    from samplewise.data.pictures import PictureData, Store
    from samplewise.watermark.attacks import Attack
    from samplewise.watermark.judging.runs import Run

__all__ = ["EPILOG", "evaluate", "is_store", "warn_of_other_split"]

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
    data: Annotated[Path, typer.Option(help="Folder of images, or a store made by samplewise chest prepare.")],
    out: Annotated[Path, typer.Option(help="Folder for report.json, table and figures.")],
    part: Annotated[str, typer.Option(help="Of the images: test, validation, train or all.")] = "test",
    images: Annotated[
        int | None, typer.Option(min=1, help="Judge so many of them, evenly over all; all if not given.")
    ] = None,
    psnr: Annotated[
        float | None, typer.Option(min=0, help="Floor in dB to judge by; each run's own if not given.")
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
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; as many as cores if not given.")] = None,
    accelerator: Accelerator = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Judge trained networks on the files they write: PSNR, bit errors, what is left after attacks."""
    begin(f"watermark evaluate: opening {data} and {len(runs)} runs")
    import torch

    from samplewise.watermark.figures import write_figures
    from samplewise.watermark.judging import measure, output, summarise
    from samplewise.watermark.judging.runs import read_trained

    if part not in PARTS:
        raise ConfigurationError(
            f"expected --part as one of {', '.join(PARTS)}, got {part!r}{did_you_mean(part, PARTS)}"
        )
    chosen = _attacks(attacks)
    found = read_trained(runs)
    if threads is not None:
        torch.set_num_threads(threads)
    device = Devices(accelerator)().device
    _check_data(data, found)
    output.open_output(out)
    judged = []
    for run in found:
        pictures = _part(_store(data, run, out), part).spread(images)
        warn_of_other_split(run, pictures, part)
        kept = output.run_folder(out, run.name) / output.MARKED
        shutil.rmtree(kept, ignore_errors=True)  # of an earlier evaluation
        with progress(f"judging {run.label}") as watch:
            measured = measure(
                run.network.to(device),
                pictures,
                attacks=chosen,
                attack_images=attack_images,
                seed=seed,
                batch_size=batch_size,
                workers=threads,
                keep=kept if keep_images else None,
                watch=watch,
            )
        summary = summarise(measured, run.recipe.own_floor if psnr is None else psnr, confidence=confidence)
        judged.append(output.Judged(run, pictures, measured, summary))
        output.write_judged(out, judged[-1])
    figures = write_figures(out / "figures", judged, paper=paper)
    report = output.write_report(out, judged, part=part, seed=seed, device=str(device), figures=figures)
    if as_json:
        emit_json(report)
    else:
        print(output.table_text(judged))
        note(f"Report, tables and figures are in {out}; a page with all of it: samplewise report {out}")


def _attacks(spec: str) -> tuple[Attack, ...]:
    from samplewise.watermark.attacks import STANDARD_ATTACKS, parse_attacks

    if spec in ("none", "standard"):
        return STANDARD_ATTACKS if spec == "standard" else ()
    return parse_attacks(spec)


def _check_data(data: Path, runs: list[Run]) -> None:
    """Refuse what cannot be judged on before anything is written: no pictures, or a store of another size."""
    from samplewise.data.pictures import Store, find

    if not is_store(data):
        find(data)
        return
    size = Store.open(data).size
    if other := [run for run in runs if run.recipe.size != size]:
        raise DataError(
            f"{data}: holds images of size {size}, but {other[0].folder} was trained for {other[0].recipe.size}; give "
            "the folder of the images themselves, or a store prepared with that size"
        )


def is_store(data: Path) -> bool:
    """Whether ``data`` is a store of pictures, finished or not, and no folder of images."""
    from samplewise.data.pictures import is_unfinished
    from samplewise.data.pictures.store import INDEX

    return (data / INDEX).exists() or is_unfinished(data)


def _store(data: Path, run: Run, out: Path) -> Store:
    """The pictures for a run: the store that was given, or the folder prepared as its training prepared it."""
    from samplewise.cli.preparing import preparing
    from samplewise.data.pictures import Store, prepare

    if is_store(data):
        return Store.open(data)
    size, seed = run.recipe.size, run.split_seed
    # Runs of different sizes, or trained with different splits, need their own.
    place = out / "store" / f"{size}-seed{seed}"
    with preparing(place) as watch:
        return prepare(data, place, size=size, seed=seed, resume=True, watch=watch)


def _part(store: Store, part: str) -> PictureData:
    from samplewise.watermark.judging.output import split_of

    if part == "all":
        return store.select()
    if split_of(store) is None:
        raise DataError(f"{store.folder}: images of fewer than 3 patients have no {part} part; judge --part all")
    return store.select(part)


def warn_of_other_split(run: Run, pictures: PictureData, part: str) -> None:
    """Say so if a run has seen some of the pictures that it is judged on."""
    from samplewise.watermark.judging.output import split_of

    store = pictures.store
    same = store.index.fingerprint == run.recipe.data
    if part != "train" and same and run.split is not None and run.split != split_of(store):
        note(f"{run.name}: was trained with another split of these images, so it has seen some that it is judged on")
