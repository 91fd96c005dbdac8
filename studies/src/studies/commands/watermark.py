"""``samplewise watermark``: hide messages in images, with a quality floor for every image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.cli import options, watermark_evaluate, watermark_keys, watermark_tool
from samplewise.cli.outcome import begin, emit, note
from samplewise.errors import ConfigurationError
from studies.commands.progress import prepare_pictures

if TYPE_CHECKING:
    from studies.pictures import Store
    from studies.watermark.recipe import Recipe

app = options.command_group(
    "watermark",
    "Hide messages in images, with a PSNR floor that holds for every one of them.",
    "Example: samplewise watermark train --data xrays --psnr 42 --out runs/c42",
)

NOT_LEARNED = 0.2
"""Share of wrong bits that no error correction makes up for."""


@app.command(
    epilog="\b\nExample: samplewise watermark train --data xrays --psnr 42 --out runs/c42\n"
    "Use it: samplewise watermark embed xray.png marked.png --text 'patient 4711' --model runs/c42\n"
    "The paper's network: samplewise watermark train --data xrays --network hidden --epochs 200 --out runs/hidden\n"
    'Robust: samplewise watermark train --data xrays --noise "jpeg(50..95), resize(0.7..1.3), identity" --out runs/r\n'
    "Leave a diagnosis alone: samplewise watermark train --data chest.store --network swift --psnr 30 "
    "--classifier runs/classifier --diagnosis 0.02 --out runs/d\n"
    "All settings: samplewise watermark train --data xrays --recipe runs/c42/recipe.toml --out runs/again\n"
    "Go on: the same command with --resume"
)
def train(
    data: options.Pictures,
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    recipe: options.RecipeFile = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="lattice (as the one that is shipped), swift (ours before it) or hidden (the paper's); lattice if not "
            "given."
        ),
    ] = None,
    bits: Annotated[
        int | None, typer.Option(min=1, help="Length of a message; if not given 255, of swift and hidden 200.")
    ] = None,
    psnr: Annotated[
        float | None,
        typer.Option(help="PSNR in dB that every image must reach; if not given 45, of swift and hidden 40."),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Height and width of the images; if not given 256, of swift and hidden 224."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps of lattice and swift; 1000 if not given.")
    ] = None,
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
        float | None, typer.Option(help="Most that any probability of --classifier may change, for every image.")
    ] = None,
    begin_with: Annotated[
        Path | None, typer.Option("--begin-with", help="Finished run whose network is trained on.")
    ] = None,
    seed: options.Seed = None,
    threads: options.Threads = None,
    resume: options.ResumeFlag = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    accelerator: options.Accelerator = "auto",
    devices: options.DevicesFlag = 1,
    nodes: options.Nodes = 1,
    strategy: options.Strategy = "auto",
    precision: options.Precision = "32-true",
    as_json: options.JsonFlag = False,
) -> None:
    """Train a network that hides messages in images while every image keeps its PSNR floor.

    All settings are in the recipe.toml that is written into the run's folder: change it and give it as --recipe.
    """
    begin(f"watermark train: opening {data}")
    from floormark.tiling import check_bits, limits
    from samplewise.report.tensorboard import to_tensorboard
    from samplewise.storage.checkpoint import MODEL_FILE
    from studies.chest.classifier import read_classifier
    from studies.chest.densenet import fingerprint_of
    from studies.watermark.networks import load_network, network_name
    from studies.watermark.recipe import FOUND_OUT, Recipe, make_recipe
    from studies.watermark.training import make_network, read_seen, train

    diagnoser = None if classifier is None else read_classifier(classifier)
    start = None if begin_with is None else load_network(begin_with / MODEL_FILE)
    given = options.given_settings(
        recipe,
        Recipe,
        FOUND_OUT,
        network=network,
        bits=bits,
        size=size,
        floor=psnr,
        noise=noise,
        image_loss=image_loss,
        diagnosis=diagnosis,
        classifier=None if diagnoser is None else fingerprint_of(diagnoser),
        begin=None if start is None else network_name(start),
        seed=seed,
    )
    wanted = make_recipe(given, recipe)
    if (classifier is None) != (wanted.diagnosis is None):
        raise ConfigurationError("--classifier and --diagnosis belong together: give both or neither")
    wanted = _with_length(wanted, steps, epochs)
    fresh = make_network(wanted)  # what does not fit together is said before hours of decoding
    check_bits(fresh)
    if start is not None and (type(start), start.arguments) != (type(fresh), fresh.arguments):
        raise ConfigurationError(f"{begin_with}: holds another network than the recipe's: give the recipe of that run")
    fabric = options.Devices(accelerator, devices, nodes, strategy, precision, threads)()
    with to_tensorboard(fabric, out / "fit" if tensorboard else None):
        wanted, store = options.launch(fabric, lambda first: _open(data, wanted, out, first=first, resume=resume))
        if (limited := limits(fresh)) and fabric.global_rank == 0:
            note(f"training {limited}")
        solution = train(
            store,
            wanted,
            out,
            network=fresh if start is None else start,
            before=None if begin_with is None else read_seen(begin_with),
            classifier=diagnoser,
            resume=None,
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
        f"The network is in {out}; judge it with samplewise watermark evaluate {out} --data {data}",
        as_json=as_json,
    )


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
    from studies.pictures import Store
    from studies.watermark.training import open_run

    source = watermark_evaluate.open_source(data)
    if not first:
        store = source if isinstance(source, Store) else Store.open(out / "store")
        return replace(recipe, data=store.fingerprint), store
    found = source.fingerprint if isinstance(source, Store) else source.fingerprint()
    recipe = replace(recipe, data=found)
    open_run(out, recipe, resume=resume)
    if isinstance(source, Store):
        return recipe, source
    return recipe, prepare_pictures(source, out / "store", size=recipe.size, seed=recipe.seed, resume=True)


app.command(epilog=watermark_evaluate.EPILOG)(watermark_evaluate.evaluate)
app.command(epilog=watermark_tool.EMBED)(watermark_tool.embed)
app.command(epilog=watermark_tool.EXTRACT)(watermark_tool.extract)
app.command(epilog=watermark_tool.VERIFY)(watermark_tool.verify)
app.command(epilog=watermark_keys.KEYGEN)(watermark_keys.keygen)
