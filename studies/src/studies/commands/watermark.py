"""``studies watermark``: train networks that hide messages in images, and evaluate them on the files they make."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from samplewise.cli import JsonFlag, begin, emit, note
from samplewise.errors import ConfigurationError, DataError, did_you_mean
from studies import options
from studies.progress import prepare_pictures, progress

if TYPE_CHECKING:
    from studies.pictures import Listing, PictureData, Store
    from studies.watermark.noise import Chain
    from studies.watermark.recipe import Recipe
    from studies.watermark.training import Run

app = options.command_group(
    "watermark",
    "Train networks that hide messages in images, with a PSNR floor that holds for every one of them.",
    "Example: studies watermark train --data xrays --psnr 42 --out runs/c42",
)

NOT_LEARNED = 0.2
"""Bit error that no error correction makes up for."""
PARTS = ("test", "validation", "train", "all")


@app.command(
    epilog="\b\nExample: studies watermark train --data xrays --psnr 42 --out runs/c42\n"
    "Use it: floormark embed xray.png marked.png --text 'patient 4711' --model runs/c42\n"
    "The paper's network: studies watermark train --data xrays --network hidden --epochs 200 --out runs/hidden\n"
    'Robust: studies watermark train --data xrays --noise "jpeg(50..95), resize_back(0.7..1.3), identity" '
    "--out runs/r\n"
    "Leave a diagnosis alone: studies watermark train --data chest.store --network swift --psnr 30 "
    "--classifier runs/classifier --diagnosis 0.02 --out runs/d\n"
    "All settings: studies watermark train --data xrays --recipe runs/c42/recipe.toml --out runs/again\n"
    "Go on: the same command with --resume"
)
def train(
    data: options.Pictures,
    out: Annotated[Path, Option(help="Folder of the run.")],
    recipe: options.RecipeFile = None,
    network: Annotated[str | None, Option(help="lattice (as shipped), swift (before it) or hidden (paper).")] = None,
    bits: Annotated[int | None, Option(min=1, help="Length of a message (255; swift and hidden: 200).")] = None,
    psnr: Annotated[float | None, Option(help="PSNR floor of every image in dB (45; swift, hidden: 40).")] = None,
    size: Annotated[int | None, Option(min=1, help="Height and width of images (256; swift, hidden: 224).")] = None,
    steps: Annotated[int | None, Option(min=1, help="Training steps of lattice and swift (1000).")] = None,
    epochs: Annotated[int | None, Option(min=1, help="Passes over the images, for hidden (200).")] = None,
    noise: Annotated[str | None, Option(help='Applied to images in training, as "jpeg(50..95), identity".')] = None,
    image_loss: Annotated[float | None, Option(min=0, help="The paper's baseline: a weight on MSE, no floor.")] = None,
    classifier: Annotated[Path | None, Option(help="Run of studies chest classifier, for --diagnosis.")] = None,
    diagnosis: Annotated[float | None, Option(help="Most that a probability of --classifier may change.")] = None,
    begin_with: Annotated[Path | None, Option("--begin-with", help="Finished run whose network is trained on.")] = None,
    seed: options.Seed = None,
    threads: options.Threads = None,
    resume: options.ResumeFlag = False,
    tensorboard: Annotated[bool, Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    accelerator: options.Accelerator = "auto",
    devices: options.DevicesFlag = 1,
    nodes: options.Nodes = 1,
    strategy: options.Strategy = "auto",
    precision: options.Precision = "32-true",
    as_json: JsonFlag = False,
) -> None:
    """Train a network that hides messages in images while every image keeps its PSNR floor.

    All settings are in the recipe.toml that is written into the run's folder: change it and give it as --recipe.
    """
    begin(f"watermark train: opening {data}")
    from floormark import Watermarker
    from samplewise.storage import MODEL_FILE
    from studies.chest.classifier import read_classifier
    from studies.records import fingerprint_of
    from studies.watermark.networks import Lattice, load_network, network_name
    from studies.watermark.recipe import RECIPE_FILE, make_recipe
    from studies.watermark.training import make_network, read_seen, train

    diagnoser = None if classifier is None else read_classifier(classifier)
    start = None if begin_with is None else load_network(begin_with / MODEL_FILE)
    asked = {"network": network, "bits": bits, "size": size, "floor": psnr, "noise": noise, "seed": seed}
    asked |= {"image_loss": image_loss, "diagnosis": diagnosis}
    files = {"classifier": diagnoser and fingerprint_of(diagnoser), "begin": start and network_name(start)}
    wanted = make_recipe(RECIPE_FILE.given(recipe, **asked, **files), recipe)
    if (classifier is None) != (wanted.diagnosis is None):
        raise ConfigurationError("--classifier and --diagnosis belong together: give both or neither")
    wanted = wanted.with_length(steps=steps, epochs=epochs)
    fresh = make_network(wanted)  # what does not fit together is said before hours of decoding
    if isinstance(fresh, Lattice):
        Watermarker(fresh.in_the_tool())  # which refuses messages that are too short for its code
    if start is not None and (type(start), start.arguments) != (type(fresh), fresh.arguments):
        raise ConfigurationError(f"{begin_with}: holds another network than the recipe's: give the recipe of that run")
    fabric = options.Devices(accelerator, devices, nodes, strategy, precision, threads)()
    with options.to_tensorboard(fabric, out / "fit" if tensorboard else None):
        wanted, store = options.launch(fabric, lambda first: _open(data, wanted, out, first=first, resume=resume))
        if not isinstance(fresh, Lattice) and fabric.global_rank == 0:
            note(f"training {wanted.network}, a network of the study: floormark embeds and extracts with lattice alone")
        solution = train(
            store,
            wanted,
            out,
            network=fresh if start is None else start,
            before=None if begin_with is None else read_seen(begin_with),
            classifier=diagnoser,
            fabric=fabric,
        )
    if fabric.global_rank > 0:
        return
    error = solution.audits["validation"].means["bit_error"]
    if error > NOT_LEARNED and not as_json:
        longer = "--epochs" if wanted.steps_per_round is None else "--steps, more message_rounds in a --recipe"
        note(f"The message was not learned: give more {longer}, larger images or fewer bits")
    ended = {"status": solution.status.name, "selected": solution.selected.to_dict()}
    emit(
        {**ended, "bit_error": error, "run": str(out)},
        f"{solution.status.message}; {solution.selected.reason}; bit error there: {error:.2%}",
        f"The network is in {out}; evaluate it with studies watermark evaluate {out} --data {data}",
        as_json=as_json,
    )


def _open(data: Path, recipe: Recipe, out: Path, *, first: bool, resume: bool) -> tuple[Recipe, Store]:
    """Open the run's folder and the prepared images, which a folder of images becomes in it.

    The first process does it; the others take what it made.
    """
    from studies.pictures import Store
    from studies.watermark.recipe import RECIPE_FILE

    source = open_source(data)
    if not first:
        store = source if isinstance(source, Store) else Store.open(out / "store")
        return replace(recipe, data=store.fingerprint), store
    found = source.fingerprint if isinstance(source, Store) else source.fingerprint()
    recipe = replace(recipe, data=found)
    RECIPE_FILE.open(out, recipe, resume=resume)
    if isinstance(source, Store):
        return recipe, source
    return recipe, prepare_pictures(source, out / "store", size=recipe.size, seed=recipe.seed, resume=True)


@app.command(
    epilog="\b\nExample: studies watermark evaluate runs/c40 --data xrays --out evaluated\n"
    "Beside the paper: studies watermark evaluate runs/base runs/c30 runs/c40 runs/c50 --data xrays --paper "
    "--out evaluated\n"
    'Own attacks: studies watermark evaluate runs/c40 --data xrays --attacks "jpeg(80), crop(0.8) + jpeg(90)" '
    "--out evaluated"
)
def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders made by studies watermark train.")],
    data: options.Pictures,
    out: Annotated[Path, Option(help="Folder for report.json, table and figures.")],
    part: Annotated[str, Option(help="Of the images: test, validation, train or all.")] = "test",
    images: Annotated[int | None, Option(min=1, help="Evaluate so many of them, evenly over all (all).")] = None,
    psnr: Annotated[float | None, Option(min=0, help="Floor in dB to mark and evaluate at (each run's own).")] = None,
    attacks: Annotated[str, Option(help='standard, none, or a list such as "jpeg(75), crop(0.8)".')] = "standard",
    attack_images: Annotated[int, Option(min=1, help="Attack so many of the images at most.")] = 500,
    confidence: Annotated[float, Option(min=0.5, max=0.9999, help="Of the exact bounds.")] = 0.95,
    paper: Annotated[bool, Option("--paper", help="Mark the paper's medians in the figure of BER.")] = False,
    keep_images: Annotated[bool, Option("--keep-images", help="Keep the marked PNG files in --out.")] = False,
    seed: Annotated[int, Option(min=0, help="Of what is random in attacks.")] = 0,
    batch_size: Annotated[int, Option(min=1, help="Images in a batch; speed and memory only.")] = 16,
    threads: options.Threads = None,
    accelerator: options.Accelerator = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Evaluate trained networks on the files that are written: PSNR, bit errors, what is left after attacks.

    A lattice, as the shipped network is one, is evaluated by what embed writes and extract reads: strength up to the
    floor, error correction, registration. hidden and swift are evaluated by their own residual, as the paper does it.
    Bounds for unseen images are from those that were not trained on, by their pixels and patients.
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
    device = options.Devices(accelerator, threads=threads)().device
    source = open_source(data)
    if isinstance(source, Store) and (other := [run for run in found if run.recipe.size != source.size]):
        raise DataError(
            f"{data}: holds images of size {source.size}, but {other[0].folder} was trained for "
            f"{other[0].recipe.size}; give the folder of the images themselves, or a store prepared with that size"
        )
    options.open_output(out, output.FILES)
    evaluations = []
    for run in found:
        pictures = _part(_store(source, run, out), part).spread(images)
        kept = output.run_folder(out, run.name) / output.MARKED
        shutil.rmtree(kept, ignore_errors=True)  # of an earlier evaluation
        floor = run.recipe.own_floor if psnr is None else psnr
        how: dict[str, Any] = {"attacks": chosen, "attack_images": attack_images, "seed": seed, "workers": threads}
        how["keep"] = kept if keep_images else None
        refused: dict[str, str] | None = None
        with progress(f"evaluating {run.label}") as watch:
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
        output.warn_of_seen(run, pictures)
        measured = replace(measured, trained_on=trained)
        summary = summarise(measured, floor, confidence=confidence, n_comparisons=compared, refused=refused)
        evaluations.append(output.RunEvaluation(run, pictures, measured, summary))
        output.write_evaluation(out, evaluations[-1])
    if not evaluations:
        raise DataError("no image could be marked by any run: train longer, or evaluate at a lower --psnr")
    figures = write_figures(out / "figures", evaluations, paper=paper)
    report = output.write_report(out, evaluations, part=part, seed=seed, device=str(device), figures=figures)
    closing = f"Report, tables and figures are in {out}; a page with all of it: samplewise report {out}"
    emit(report, output.table_text(report["runs"]), closing, as_json=as_json)


@app.command(
    epilog="\b\nExample: studies watermark export runs/c42 --out onnx\n"
    "The files that come with floormark: studies watermark export --out floormark/src/floormark"
)
def export(
    out: Annotated[Path, Option(help="Folder for the two files.")],
    run: Annotated[Path | None, typer.Argument(metavar="RUN", help="Of a lattice (what floormark ships).")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a lattice as ONNX, for programs without Python: lattice-encoder.onnx and lattice-decoder.onnx.

    Of the same network the files are always the same; they compute what floormark does.
    """
    begin(f"watermark export: reading {'the shipped network' if run is None else run}")
    from floormark import Watermarker
    from samplewise.storage import ensure_writable
    from studies.watermark.onnx_files import export

    marker = Watermarker.load(run)
    files = export(marker.network, ensure_writable(out))
    emit(
        {"network": marker.model, "files": [str(file) for file in files]},
        "\n".join(f"{file}: {file.stat().st_size:,} bytes" for file in files),
        as_json=as_json,
    )


def _attacks(spec: str, *, in_place: bool) -> tuple[Chain, ...]:
    from studies.watermark.evaluation.measure import check_in_place
    from studies.watermark.noise import STANDARD_ATTACKS, parse_attacks

    if spec in ("none", "standard"):
        return STANDARD_ATTACKS if spec == "standard" else ()
    chosen = parse_attacks(spec)
    if in_place:  # the tool registers images, a network by itself does not
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
            f"{store.folder}: different images of fewer than 3 patients have no {part} part; give --part all"
        )
    return store.select(part)
