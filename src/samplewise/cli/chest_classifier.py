"""``samplewise chest classifier``: train the network that a watermark must not disturb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samplewise.cli.devices import Accelerator, Devices, DevicesFlag, Nodes, Precision, Strategy, launch
from samplewise.cli.outcome import begin, emit_json, note
from samplewise.cli.recipes import RecipeFile, given_settings, keep_recipe

__all__ = ["EPILOG", "classifier"]

EPILOG = (
    "\b\nExample: samplewise chest classifier --store chest.store --out runs/classifier\n"
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
    seed: Annotated[int | None, typer.Option(min=0, help="Of everything random; 0 if not given.")] = None,
    recipe: RecipeFile = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; as many as cores if not given.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")] = False,
    accelerator: Accelerator = "auto",
    devices: DevicesFlag = 1,
    nodes: Nodes = 1,
    strategy: Strategy = "auto",
    precision: Precision = "32-true",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train DenseNet-121 to find 14 pathologies, and give the AUROC of each with an interval."""
    begin(f"chest classifier: opening {store}")
    import torch

    from samplewise.data.pictures import Store
    from samplewise.data.records import read_json
    from samplewise.studies.chest.classifier import RESULT_FILE, open_run, train_classifier
    from samplewise.studies.chest.settings import MADE, ClassifierSettings

    pictures = Store.open(store)
    given = given_settings(recipe, ClassifierSettings, MADE, size=size, epochs=epochs, batch_size=batch_size, seed=seed)
    settings = ClassifierSettings(**{"size": pictures.size, **given}).of(pictures, weights)
    if threads is not None:
        torch.set_num_threads(threads)
    fabric = Devices(accelerator, devices, nodes, strategy, precision)()

    def open_first(first: bool) -> None:
        if first:
            open_run(pictures, settings, out, weights=weights, resume=resume)
            keep_recipe(out, settings, MADE)

    launch(fabric, open_first)
    train_classifier(pictures, settings, out, weights=weights, resume=True, fabric=fabric)
    if fabric.global_rank > 0:
        return
    result = read_json(out / RESULT_FILE, "a result of chest classifier")
    if as_json:
        emit_json(result)
    else:
        _show(result)
        note(f"The classifier is in {out}; see what watermarks do to it with samplewise chest impact")


def _show(result: dict[str, Any]) -> None:
    from samplewise.studies.chest.auroc import FEWEST

    test = result["test"]
    width = max(len(one["pathology"]) for one in test["pathologies"])
    print(f"{result['selected']['reason']}; {result['epochs']} epochs in {result['seconds'] / 60:.0f} min")
    print(f"{'test':<{width}}  positives  AUROC  95 % interval")
    for one in test["pathologies"]:
        print(f"{one['pathology']:<{width}}  {one['positives']:>9,}  {_interval(one['auroc'])}")
    print(f"{'mean':<{width}}  {'':>9}  {_interval(test['mean_auroc'])}")
    if test["left_out"]:
        print(f"not in the mean, with fewer than {FEWEST} positives: {', '.join(test['left_out'])}")


def _interval(interval: dict[str, float | None]) -> str:
    value, low, high = (interval[name] for name in ("value", "low", "high"))
    return "    -" if value is None else f"{value:.3f}  {low:.3f} to {high:.3f}"
