"""Whether the samples that a complete run leaves violated are at odds with each other."""

from samplewise.errors import MeasureError, NotFiniteError
from samplewise.optimality.feasibility import Infeasibility, find_infeasibility
from samplewise.optimality.gradients import suppress_but_memory
from samplewise.training.request import Request
from samplewise.training.step import Stepper


def look_for_conflict(asked: Request, stepper: Stepper) -> Infeasibility | None:
    """What is left of the violations without the objective, in at most two fifths as many passes as epochs.

    None where it is not looked for: a promise asks for no training sample in particular, a stream has none, and with a
    sampler of the user's own an epoch is no measure of a pass.
    """
    evaluations = min(30, asked.last_epoch // 5)
    looked_for = asked.method.enforces and asked.promise is None and not stepper.sharded
    if not looked_for or not evaluations or asked.feed is None or asked.feed.sampler is not None:
        return None
    # A look must not end a run that is complete: not every model has a gradient as it ships.
    with suppress_but_memory(MeasureError, NotFiniteError, RuntimeError):
        stepper.share_buffers()
        model, size, device = stepper.model_to_audit, asked.size, stepper.device
        return find_infeasibility(
            asked.problem, model, asked.feed, evaluations=evaluations, batch_size=size, device=device
        )
    return None
