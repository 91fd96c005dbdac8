"""What the integrations are compared with: the loop of the README, and how."""

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import samplewise as sw
from samplewise.integrations import Indexed
from small import evaluate, make_data, make_method, make_model


def plain(
    kind: str, *, steps: int, steps_per_round: int | None = None, accumulate: int = 1, exact_last_step: bool = False
) -> tuple[list[sw.Round], sw.Method, nn.Module]:
    """The loop of the README over five batches of forty, again and again: what the rounds ended with, method, model.

    Args:
        kind: of method.
        steps: of the optimiser.
        steps_per_round: an epoch if not given.
        accumulate: batches in a step; the last one of an epoch has what is left.
        exact_last_step: divide that one's loss by the batches it has, as Hugging Face does and Lightning does not.
    """
    model, method = make_model(dropout=0.0), make_method(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batches: list[Any] = list(DataLoader(Indexed(make_data()), batch_size=40))
    epoch = [batches[first : first + accumulate] for first in range(0, len(batches), accumulate)]
    rounds = []
    for done in range(steps):
        step = epoch[done % len(epoch)]
        for x, y, index in step:
            objective, measures = evaluate(model, (x, y))
            loss = method(objective, index=index, **measures)
            (loss / (len(step) if exact_last_step else accumulate)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if (done + 1) % (steps_per_round or len(epoch)) == 0:
            rounds.append(method.step())
    return rounds, method, model


def same_state(first: sw.Method, second: sw.Method) -> bool:
    """Whether two methods would go on the same."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def row(found: sw.Round) -> dict[str, float]:
    """A round under the names that are logged."""
    logged = {"running/objective": found.objective}
    for name, part in found.constraints.items():
        logged[f"tau/{name}"] = found.taus[name]
        logged[f"running/{name}/satisfied"] = 1 - part.violated / part.samples
        logged[f"running/{name}/violation"] = part.total / part.samples
        logged[f"running/{name}/worst"] = part.worst
    return logged
