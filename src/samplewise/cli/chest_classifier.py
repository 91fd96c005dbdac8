"""``samplewise chest classifier``: train the network that a watermark must not disturb."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from samplewise.cli.devices import Accelerator, Devices, DevicesFlag, Nodes, Precision, Strategy
from samplewise.cli.outcome import emit_json, note

__all__ = ["EPILOG", "classifier"]

EPILOG = (
    "\b\nExample: samplewise chest classifier --store chest.store --out runs/classifier\n"
    "From ImageNet: samplewise chest classifier --store chest.store --weights densenet121.pth --out runs/classifier\n"
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
    epochs: Annotated[int, typer.Option(min=1, help="At most.")] = 100,
    patience: Annotated[int, typer.Option(min=1, help="Epochs without a smaller validation loss.")] = 10,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a step.")] = 64,
    rate: Annotated[float, typer.Option(help="Adam's learning rate.")] = 1e-4,
    anneal: Annotated[bool, typer.Option("--anneal", help="Let the rate fall to zero over --epochs.")] = False,
    balance: Annotated[float, typer.Option(min=1, help="Largest weight of a positive label; 1 for none.")] = 1.0,
    augment: Annotated[bool, typer.Option(help="Mirror, turn, move and scale images a little.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
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
    import json

    import torch

    from samplewise.data.pictures import Store
    from samplewise.studies.chest.classifier import RESULT_FILE, Settings, open_run, train_classifier

    pictures = Store.open(store)
    settings = Settings(
        size=pictures.size if size is None else size,
        batch_size=batch_size,
        rate=rate,
        anneal=anneal,
        epochs=epochs,
        patience=patience,
        balance=balance,
        augment=augment,
        seed=seed,
    ).of(pictures, weights)
    if threads is not None:
        torch.set_num_threads(threads)
    fabric = Devices(accelerator, devices, nodes, strategy, precision)()
    if fabric.global_rank == 0:  # what is wrong is said once, before the other processes start
        open_run(pictures, settings, out, weights=weights, resume=resume)
    fabric.launch()
    train_classifier(pictures, settings, out, weights=weights, resume=True, fabric=fabric)
    if fabric.global_rank > 0:
        return
    result = json.loads((out / RESULT_FILE).read_text(encoding="utf-8"))
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
