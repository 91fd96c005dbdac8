"""One training run: a recipe and pictures in, a folder with the trained network out; and the folder read again."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, RandomSampler

from samplewise import Geometric, Method, SequentialPenalty, Solution, Unconstrained, Validation, fit
from samplewise.errors import CheckpointError, ConfigurationError, DataError
from samplewise.report import Pictures, in_lines
from samplewise.samples import mix
from samplewise.storage import MODEL_FILE, alone, decoding, distributed, from_plain, provenance, read_json, write_json
from samplewise.training import single_device
from studies.pictures import Seen, Store
from studies.watermark.networks import NETWORKS, Network, load_network, save_network
from studies.watermark.networks.hidden import Discriminator
from studies.watermark.pipeline import Adversary, Pipeline
from studies.watermark.recipe import RECIPE_FILE, Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from samplewise import Problem


SeenParts = Mapping[str, Seen]
"""Pictures that a network was trained on, ``train``, and that selected it, ``validation``."""
Loader = DataLoader[tuple[torch.Tensor, torch.Tensor]]
LOGGED, GAIN = 4, 20  # images side by side in a log, and how many times over their change is shown
AUDIT_BATCH = 16  # more would take more memory than a step of training
RESULT_FILE = "result.json"
SEEN_FILE, SEEN_FORMAT = "seen.json", "samplewise-seen-1"
"""The pictures that the network was trained on, and those that selected it: bounds for unseen ones need both."""


def make_network(recipe: Recipe) -> Network:
    """The recipe's network, freshly initialised from its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(recipe.seed, "network"))
        return NETWORKS[recipe.network](recipe.bits, size=recipe.size, width=recipe.width)


def train(
    store: Store,
    recipe: Recipe,
    folder: Path,
    *,
    network: Network | None = None,
    before: SeenParts | None = None,
    classifier: nn.Module | None = None,
    fabric: Fabric | None = None,
    progress: bool | None = None,
) -> Solution:
    """Train a network by a recipe; killed at any moment, the same call goes on to the same weights.

    Args:
        store: prepared pictures of the recipe's size, with their split.
        recipe: how.
        folder: of the run, which ``RECIPE_FILE.open`` has opened.
        network: to begin with in the place of a new one, and ``before`` what :func:`read_seen` says of its run.
        before: see ``network``.
        classifier: frozen, from images ``(B, C, H, W)`` to logits ``(B, m)``, for a recipe with a bound on diagnosis.
        fabric: launched; one device if not given. Its loggers get pictures too.
        progress: show a progress bar; on a terminal only if None.
    """
    if store.size != recipe.size:
        raise DataError(f"{store.folder}: holds pictures of size {store.size}, but the run is for size {recipe.size}")
    if (classifier is None) != (recipe.diagnosis is None):
        raise ConfigurationError("a bound on the diagnosis and a classifier belong together: give both or neither")
    network = (make_network(recipe) if network is None else network).train()  # one from a file is in eval mode
    fabric = fabric or single_device()
    pipeline = Pipeline(recipe, network, None if classifier is None else classifier.to(fabric.device))
    problem = pipeline.problem()
    trained, audited, steps = _parts(store, recipe)
    optimizer = torch.optim.Adam(network.parameters(), lr=recipe.rate, fused=True)
    with alone(folder, "run"):
        solution = fit(
            problem,
            network,
            trained,
            method=_method(recipe, problem),
            optimizer=optimizer,
            epochs=recipe.rounds,
            warmup_epochs=recipe.message_rounds,
            seed=recipe.seed,
            scheduler=(CosineAnnealingLR(optimizer, recipe.last_round * steps), "step") if recipe.anneal else None,
            auxiliary=_adversary(pipeline, fabric.device) if recipe.adversarial else None,
            audit_on=audited,
            # The baseline asks no image to keep a floor.
            validation=Validation(every=recipe.audit_every, select="objective" if recipe.image_loss else "feasible"),
            checkpoint=folder / "fit",
            fabric=fabric,
            callbacks=[Pictures(fabric, audited, partial(_draw, pipeline))],
            progress=progress,
        )
    if distributed.rank() == 0:
        assert isinstance(solution.model, Network)
        _write_result(folder, recipe, solution, store)
        _write_seen(folder, recipe, store, before)
        save_network(folder / MODEL_FILE, solution.model)  # last: it says that the run is finished
    return solution


def _method(recipe: Recipe, problem: Problem) -> Method:
    if recipe.image_loss:
        return Unconstrained(problem.constraints)
    schedule = Geometric(recipe.tau, growth=recipe.growth, every=recipe.every, maximum=recipe.maximum_tau)
    return SequentialPenalty(problem.constraints, schedule=schedule)


def _adversary(pipeline: Pipeline, device: torch.device) -> Adversary:
    recipe, network = pipeline.recipe, pipeline.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(recipe.seed, "discriminator"))
        discriminator = Discriminator(channels=network.channels, width=network.width)
    return Adversary(pipeline.embed, discriminator=discriminator.to(device), lr=recipe.rate)


def _parts(store: Store, recipe: Recipe) -> tuple[Loader, dict[str, Loader], int]:
    """Loaders of the training part and of the audited parts, the first of which selects; steps of a round."""
    trained = store.select("train")
    size, steps = recipe.batch_size, recipe.steps_per_round
    if size > len(trained):
        raise DataError(f"{store.folder}: {len(trained)} training pictures do not fill a batch of {size}")
    if steps is None:
        # Batch norm must not see a last batch of a few pictures.
        loader = DataLoader(trained, batch_size=size, shuffle=True, drop_last=True)
        steps = len(trained) // size
    else:
        sampler = RandomSampler(trained, num_samples=steps * size)
        loader = DataLoader(trained, batch_size=size, sampler=sampler)
    parts = {"validation": store.select("validation"), "train": trained}
    audited = {
        name: DataLoader(part.spread(recipe.audit_images), batch_size=AUDIT_BATCH) for name, part in parts.items()
    }
    return loader, audited, steps


def _draw(pipeline: Pipeline, model: nn.Module, batch: Any) -> dict[str, Tensor]:
    """Originals, below them the marked images, and below these the change, amplified around grey."""
    images, numbers = batch
    made = pipeline.embed(model, (images[:LOGGED], numbers[:LOGGED]))
    change = 0.5 + GAIN * (made.marked - made.covers)
    return {f"original, marked, change x {GAIN}": in_lines(made.covers, made.marked, change)}


def _write_result(folder: Path, recipe: Recipe, solution: Solution, store: Store) -> None:
    weights = list(solution.model.parameters())
    write_json(
        folder / RESULT_FILE,
        {
            "status": solution.status.name,
            "selected": solution.selected.to_dict(),
            "parameters": sum(tensor.numel() for tensor in weights),
            "pictures": {part: len(store.split.part(part)) for part in ("train", "validation", "test")},
            "split": store.split.origin,
            "seconds": sum(row["seconds"] for row in solution.history.rows),
            "provenance": provenance(seed=recipe.seed, device=str(weights[0].device)),
        },
    )


def _write_seen(folder: Path, recipe: Recipe, store: Store, before: SeenParts | None) -> None:
    """Say what the network has seen; nothing where it was trained before and nobody knows on what."""
    if recipe.begin and before is None:
        return
    parts = {part: Seen.of(store.select(part)) for part in ("train", "validation")}
    # What selected the network that the run began with was fitted to as well, if less.
    for seen in (before or {}).values():
        parts["train"] |= seen
    write_json(folder / SEEN_FILE, {"format": SEEN_FORMAT, **{part: asdict(seen) for part, seen in parts.items()}})


def read_seen(folder: Path) -> SeenParts | None:
    """The pictures that the network of a run has seen; None if the run, made by an earlier version, does not say."""
    path = folder / SEEN_FILE
    if not path.exists():
        return None
    stored = read_json(path, "a list of pictures that were seen", format=SEEN_FORMAT)
    with decoding(path, "a list of pictures that were seen"):
        return {part: from_plain(Seen, stored[part]) for part in ("train", "validation")}


@dataclass(frozen=True)
class Run:
    """A finished run of training."""

    folder: Path
    name: str
    """The folder's name, with a number where two are alike."""
    label: str
    """Network, floor and noise in a few words."""
    recipe: Recipe
    network: Network
    result: dict[str, Any]
    """How the training ended; empty if it was killed right before it could say so."""
    seen: SeenParts | None = None
    """The pictures that the network has seen; None if nobody knows."""

    @property
    def split_seed(self) -> int:
        """The seed to split a folder of pictures by, so that its test part was not trained on."""
        return int(self.result.get("split", {}).get("seed", self.recipe.seed))


def read_trained(folders: Sequence[Path]) -> list[Run]:
    """Read finished runs; their names and labels differ from each other."""
    runs = [_read(folder) for folder in folders]
    labels, taken = Counter(run.label for run in runs), {run.name for run in runs}
    unique: dict[str, Run] = {}
    for run in runs:
        others = (f"{run.name}-{number}" for number in itertools.count(2))
        name = run.name if run.name not in unique else next(each for each in others if each not in {*taken, *unique})
        label = run.label if labels[run.label] == 1 else f"{run.label} ({name})"
        unique[name] = replace(run, name=name, label=label)
    return list(unique.values())


def _read(folder: Path) -> Run:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one made by studies watermark train")
    recipe = RECIPE_FILE.read(folder)
    path = folder / MODEL_FILE
    if not path.exists():
        raise DataError(
            f"{folder}: its training is unfinished ({MODEL_FILE} is missing); go on with the command that began it "
            "and --resume"
        )
    network = load_network(path)
    if (network.bits, network.size) != (recipe.bits, recipe.size):
        raise CheckpointError(
            f"{path}: hides {network.bits} bits at size {network.size}, but the recipe beside it says {recipe.bits} "
            f"bits at size {recipe.size}; train anew"
        )
    result = folder / RESULT_FILE
    ended = read_json(result, "a result of watermark train") if result.exists() else {}
    goal = f"MSE x {recipe.image_loss:g}" if recipe.image_loss else f"C = {recipe.floor:g} dB"
    diagnosis = "" if recipe.diagnosis is None else f", diagnosis {recipe.diagnosis:g}"
    label = f"{recipe.network}, {goal}{diagnosis}" + ("" if recipe.noise == "identity" else ", noise")
    return Run(folder, folder.resolve().name, label, recipe, network, ended, read_seen(folder))
