"""``samplewise watermark``: hide messages in images, with a quality floor for every image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.cli import watermark_evaluate, watermark_tool
from samplewise.cli.devices import Accelerator, Devices, DevicesFlag, Nodes, Precision, Strategy, launch
from samplewise.cli.outcome import begin, emit_json, note
from samplewise.errors import ConfigurationError

if TYPE_CHECKING:
    from samplewise.data.pictures import Store
    from samplewise.watermark.recipe import Recipe

__all__ = ["app"]

app = typer.Typer(
    name="watermark",
    help="Hide messages in images, with a PSNR floor that holds for every one of them.",
    epilog="Example: samplewise watermark train --data xrays --bits 200 --psnr 40 --out runs/c40",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NOT_LEARNED = 0.2
"""Share of wrong bits that no error correction makes up for."""


@app.command(
    epilog="\b\nExample: samplewise watermark train --data xrays --bits 200 --psnr 40 --out runs/c40\n"
    "The paper's network: samplewise watermark train --data xrays --network hidden --epochs 200 --out runs/hidden\n"
    'Robust: samplewise watermark train --data xrays --noise "jpeg(50..95), resize(0.7..1.3), identity" --out runs/r\n'
    "Leave a diagnosis alone: samplewise watermark train --data chest.store --psnr 30 --classifier runs/classifier "
    "--diagnosis 0.02 --out runs/d\n"
    "All settings: samplewise watermark train --data xrays --recipe runs/c40/recipe.toml --out runs/again\n"
    "Go on: the same command with --resume"
)
def train(
    data: Annotated[Path, typer.Option(help="Folder of images, or a store made by samplewise chest prepare.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Settings, such as the recipe.toml of a run; options go before it."),
    ] = None,
    network: Annotated[
        str | None, typer.Option(help="swift (ours) or hidden (the paper's); swift if not given.")
    ] = None,
    bits: Annotated[int | None, typer.Option(min=1, help="Length of a message; 200 if not given.")] = None,
    psnr: Annotated[float | None, typer.Option(help="PSNR in dB that every image must reach; 40 if not given.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Height and width of the images; 224 if not given.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps of swift; 1000 if not given.")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Passes over the images, for hidden; 200 if not given.")
    ] = None,
    noise: Annotated[
        str | None, typer.Option(help='What images go through in training, such as "jpeg(50..95), identity".')
    ] = None,
    image_loss: Annotated[
        float | None,
        typer.Option(min=0, help="The paper's baseline: a weight on the MSE instead of the constraint."),
    ] = None,
    classifier: Annotated[
        Path | None, typer.Option(help="Run of samplewise chest classifier that the mark must not disturb.")
    ] = None,
    diagnosis: Annotated[
        float | None, typer.Option(help="How far no probability of --classifier may move, for any image.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything random, the split included.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; as many as cores if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    accelerator: Accelerator = "auto",
    devices: DevicesFlag = 1,
    nodes: Nodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    as_json: Annotated[bool, typer.Option("--json", help="Print how the run ended as JSON.")] = False,
) -> None:
    """Train a network that hides messages in images while every image keeps its PSNR floor.

    All settings are in the recipe.toml that is written into the run's folder: change it and give it as --recipe.
    """
    begin(f"watermark train: opening {data}")
    import torch

    from samplewise.report.tensorboard import to_tensorboard
    from samplewise.studies.chest.classifier import fingerprint, read_classifier
    from samplewise.watermark.recipe import read_recipe
    from samplewise.watermark.training import make_network, train

    wanted = read_recipe(
        recipe,
        network=network,
        bits=bits,
        size=size,
        floor=psnr,
        noise=noise,
        image_loss=image_loss,
        diagnosis=diagnosis,
        classifier=None if classifier is None else fingerprint(classifier),
        seed=seed,
    )
    if (classifier is None) != (wanted.diagnosis is None):
        raise ConfigurationError("--classifier and --diagnosis belong together: give both or neither")
    wanted = _with_length(wanted, steps, epochs)
    make_network(wanted)  # what does not fit together is said before hours of decoding
    if threads is not None:
        torch.set_num_threads(threads)
    fabric = Devices(accelerator, devices, nodes, strategy, precision)()
    with to_tensorboard(fabric, out / "fit" if tensorboard else None):
        wanted, store = launch(fabric, lambda first: _open(data, wanted, out, first=first, resume=resume))
        solution = train(
            store,
            wanted,
            out,
            classifier=None if classifier is None else read_classifier(classifier),
            resume=True,
            fabric=fabric,
        )
    if fabric.global_rank > 0:
        return
    error = solution.audits["validation"].means["bit_error"]
    if as_json:
        ended = {"status": solution.status.name, "selected": solution.selected.to_dict()}
        emit_json({**ended, "bit_error": error, "run": str(out)})
    else:
        print(f"{solution.status.message}; {solution.selected.reason}; bit error there after the last: {error:.4g}")
        if error > NOT_LEARNED:
            longer = "--epochs" if wanted.steps_per_round is None else "--steps, more message_rounds in a --recipe"
            note(f"The message was not learned: give more {longer}, larger images or fewer bits")
        note(f"The network is in {out}; judge it with samplewise watermark evaluate {out} --data {data}")


def _with_length(recipe: Recipe, steps: int | None, epochs: int | None) -> Recipe:
    if recipe.steps_per_round is None and steps is not None:
        raise ConfigurationError(f"{recipe.network} is trained by passes over the images: give --epochs")
    if recipe.steps_per_round is not None and epochs is not None:
        raise ConfigurationError(f"{recipe.network} is trained by steps: give --steps, not --epochs")
    if epochs is not None:
        return replace(recipe, rounds=epochs)
    return recipe if steps is None else recipe.with_steps(steps)


def _open(data: Path, recipe: Recipe, out: Path, *, first: bool, resume: bool) -> tuple[Recipe, Store]:
    """Open the run's folder and the prepared images, which a folder of images becomes in it.

    The first process does it; the others take what it made.
    """
    from samplewise.cli.preparing import preparing
    from samplewise.data.pictures import Store, find, prepare
    from samplewise.watermark.training import open_run

    if watermark_evaluate.is_store(data):
        store = Store.open(data)
        recipe = replace(recipe, data=store.index.fingerprint)
        if first:
            open_run(out, recipe, resume=resume)
        return recipe, store
    listing = find(data)
    recipe = replace(recipe, data=listing.fingerprint())
    if not first:
        return recipe, Store.open(out / "store")
    open_run(out, recipe, resume=resume)
    with preparing(out / "store") as watch:
        return recipe, prepare(listing, out / "store", size=recipe.size, seed=recipe.seed, resume=True, watch=watch)


app.command(epilog=watermark_evaluate.EPILOG)(watermark_evaluate.evaluate)
app.command(epilog=watermark_tool.EMBED)(watermark_tool.embed)
app.command(epilog=watermark_tool.EXTRACT)(watermark_tool.extract)
app.command(epilog=watermark_tool.VERIFY)(watermark_tool.verify)
