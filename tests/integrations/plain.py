"""The loop that the integrations are compared with, and how."""

from dataclasses import asdict
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import samplewise as sw
from samplewise.integrations import Indexed
from small import evaluate, make_data, make_method, make_model


def plain(
    kind: str, *, epochs: int, epochs_per_round: int = 1, accumulate: int = 1, exact_last_step: bool = False
) -> tuple[list[sw.Round], sw.Method, nn.Module]:
    """The loop of the README over batches of forty: what each epoch ended with, method and model.

    Args:
        kind: of method.
        epochs: passes over the data.
        epochs_per_round: epochs at one tau.
        accumulate: batches in a step; of five in an epoch.
        exact_last_step: divide the last step's loss by the batches it has, as Hugging Face does and Lightning does not.
    """
    model, method = make_model(dropout=0.0), make_method(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rounds = []
    for epoch in range(epochs):
        batches: list[Any] = list(DataLoader(Indexed(make_data()), batch_size=40))
        for first in range(0, len(batches), accumulate):
            step = batches[first : first + accumulate]
            for x, y, index in step:
                objective, measures = evaluate(model, (x, y))
                loss = method(objective, index=index, **measures)
                (loss / (len(step) if exact_last_step else accumulate)).backward()
            optimizer.step()
            optimizer.zero_grad()
        rounds.append(method.step() if (epoch + 1) % epochs_per_round == 0 else method.summary())
    return rounds, method, model


def same_state(first: sw.Method, second: sw.Method) -> bool:
    """Whether two methods would go on the same."""
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def row(found: sw.Round) -> dict[str, float]:
    """A round under the names that are logged."""
    logged = {"running/objective": found.objective}
    for name, part in found.constraints.items():
        numbers = asdict(part)
        logged[f"tau/{name}"] = numbers["tau"]
        logged[f"running/{name}/satisfied"] = numbers["satisfied"]
        logged[f"running/{name}/violation"] = numbers["mean_violation"]
        logged[f"running/{name}/worst"] = numbers["worst"]
    return logged
