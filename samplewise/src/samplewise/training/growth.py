"""The growth constant of a run while it trains: how much noise a batch's gradient holds beside the gradient itself."""

from __future__ import annotations

from typing import Any

from samplewise.errors import MeasureError
from samplewise.optimality.gradients import suppress_but_memory
from samplewise.samples import mix
from samplewise.stopping import GradientEstimate, estimate_gradient, independent_batches
from samplewise.storage import distributed
from samplewise.training.position import Position
from samplewise.training.request import Request
from samplewise.training.step import Stepper, seed_device

EVERY = 4000  # steps between looks, each of which takes as long as eight; the last one comes after a quarter of them
LARGE = 2**24  # weights; a look holds three vectors of them


def look_at_gradient(asked: Request, stepper: Stepper, position: Position) -> dict[str, Any]:
    """What independent batches say at the end of an epoch, if it is time to look, as numbers by name."""
    steps = position.steps
    last = position.epoch + 1 == asked.last_epoch and steps >= EVERY // 4
    due = last or steps // EVERY > (steps - position.step) // EVERY
    large = sum(weight.numel() for weight in asked.model.parameters()) > LARGE
    # A round's rule looks itself, unless at an average; beside another network's steps the loss is not the method's.
    looked = asked.round_rule is not None and asked.average is None
    if not due or large or stepper.sharded or looked or asked.auxiliary is not None:
        return {}
    if asked.feed is None:  # a stream does not give batches independent of each other
        return {}
    stepper.share_buffers()
    # Half of what a process takes at once: this needs no more memory than a step, even in full precision.
    size = -(-asked.size // (2 * asked.accumulate * distributed.replicas()))
    seed = mix(asked.seed, "growth", position.epoch)
    drawn = independent_batches(asked.feed, batches=16, batch_size=size, seed=seed)
    seed_device(seed, stepper.device)
    # Of the weights that take the steps, averaged or not: the noise is that of their next step.
    # A look must not end a run: not every model or measure has a gradient as it ships; cuDNN's recurrent ones have not.
    with suppress_but_memory(MeasureError, RuntimeError):
        estimate = estimate_gradient(asked.problem, stepper.raw_model, drawn, asked.method)
        return growth_row(estimate, size, asked.feed.source.length, asked.size)
    return {}


def growth_row(estimate: GradientEstimate, size: int, samples: int, batch_size: int) -> dict[str, Any]:
    """The growth constant of batches of ``batch_size`` out of ``samples``, and the batch size at which it would be two.

    ``size`` is that of the batches estimated from. None where they hold nothing but noise; nothing if they hold none.
    """
    share, growth = size / samples, estimate.growth
    if share >= 1 or not estimate.noise > 0:
        return {}
    # A batch that repeats no sample is the less noisy, the more of the data set it is.
    useful = None if growth is None else size * (growth - 1) / (1 - share)
    return {"gradient/growth": None if useful is None else 1 + useful / batch_size, "gradient/useful_batch": useful}
