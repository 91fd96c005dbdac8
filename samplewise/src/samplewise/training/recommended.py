"""The recommended choices for arguments of :func:`samplewise.fit` that are not given, and how they are printed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Subset

from samplewise.audits.binomial import must_hold
from samplewise.audits.columns import check_given
from samplewise.errors import ConfigurationError, whole_number
from samplewise.methods import SequentialPenalty
from samplewise.problem import Problem
from samplewise.samples import Data, mix, source_of, stream_loader
from samplewise.schedules import Constant, Geometric
from samplewise.training.promise import Promise

RATE = 2e-3
STEPS = 50  # in an epoch, about, with a batch size from SIZES
SIZES = 16, 128
TUNE, PROVE = 0.1, 0.2
"""Fractions of the data: steering takes few samples, and a proof gains from each one more."""
RISE = 1000.0  # of tau over a run without a promise


def fill_in(arguments: dict[str, Any]) -> list[str]:
    """Replace each argument of ``fit`` that is None by the recommended choice; returns what to print."""
    said: list[str] = []
    problem, model, epochs = arguments["problem"], arguments["model"], arguments["epochs"]
    check_given(problem, model)
    whole_number(epochs, "epochs", 1)
    if isinstance(promise := arguments["promise"], float | int) and not isinstance(promise, bool):
        promise = arguments["promise"] = Promise(promise)
    if isinstance(promise, Promise) and (promise.tune_on is None or promise.prove_on is None):
        data, promise = _split(arguments["train_data"], promise, arguments["seed"], said)
        arguments |= {"train_data": data, "promise": promise}
    data, streamed = arguments["train_data"], stream_loader(arguments["train_data"]) is not None
    if arguments["method"] is None:
        arguments["method"] = problem.method or _method(problem, promise is not None, epochs, said)
    if arguments["batch_size"] is None and not isinstance(data, DataLoader) and not streamed:
        arguments["batch_size"] = _batch_size(source_of(data).source.length, said)
    if arguments["optimizer"] is None:
        adam = arguments["optimizer"] = torch.optim.Adam(model.parameters(), lr=RATE)
        said.append(f"Adam at {RATE:g}")
        if arguments["scheduler"] is None:
            arguments["scheduler"] = CosineAnnealingLR(adam, epochs + arguments["warmup_epochs"])
            said[-1] += ", falling by a cosine over all epochs"
    return said


def _method(problem: Problem, promised: bool, epochs: int, said: list[str]) -> SequentialPenalty:
    if promised:
        said.append("a linear penalty, tau steered")
        return SequentialPenalty(problem.constraints, schedule=Constant("auto"))
    said.append(f"a linear penalty, tau found from the gradients and growing {RISE:g} times")
    return SequentialPenalty(problem.constraints, schedule=Geometric("auto", growth=RISE ** (1 / max(1, epochs))))


def _batch_size(samples: int, said: list[str]) -> int:
    lowest, highest = SIZES
    size = int(min(highest, max(lowest, 2 ** round(math.log2(max(1, samples / STEPS))))))
    said.append(f"batches of {size}")
    return size


def _split(data: Data, promise: Promise, seed: int, said: list[str]) -> tuple[Data, Promise]:
    """Draw ``tune_on`` and ``prove_on`` of a promise from the training data, unless they are given."""
    if isinstance(data, DataLoader) or stream_loader(data) is not None:
        raise ConfigurationError(
            "expected a data set to hold samples out of for the promise, got a DataLoader or a stream: give the data "
            "set and batch_size=..., or sw.Promise(share, tune_on=..., prove_on=...)"
        )
    if promise.sources is not None:
        raise ConfigurationError("samples that share a source must not be drawn apart: give tune_on and prove_on")
    total = source_of(data).source.length
    tune, prove = (
        0 if given is not None else math.ceil(part * total)
        for given, part in ((promise.tune_on, TUNE), (promise.prove_on, PROVE))
    )
    if prove:
        must_hold(prove, promise.share, promise.confidence)  # which says how many it takes
    order = torch.randperm(total, generator=torch.Generator().manual_seed(mix("held out", seed))).tolist()
    held = [order[:tune], order[tune : tune + prove]]
    drawn = [Subset(data, sorted(part)) if part else None for part in (*held, order[tune + prove :])]  # type: ignore[arg-type]
    if drawn[2] is None:
        raise ConfigurationError(f"{total} samples are too few to hold some out for a promise")
    said.append(f"{len(drawn[2]):,} samples to train on" + "".join(
        f", {size:,} to {use}" for size, use in ((tune, "tune on"), (prove, "prove on")) if size
    ))  # fmt: skip
    tunes = drawn[0] if promise.tune_on is None else promise.tune_on
    proves = drawn[1] if promise.prove_on is None else promise.prove_on
    return drawn[2], replace(promise, tune_on=tunes, prove_on=proves)
