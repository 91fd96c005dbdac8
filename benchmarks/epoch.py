"""What an epoch of ``fit`` costs beside the same epoch written by hand, on data in memory.

    python benchmarks/epoch.py

Both train the paper's network (784-256-20, heads 10 and 256-784) with Adam at batch 128 and slice whole batches out of
memory; one variant adds the audit of the whole training and test set after the epoch. Beside them stand the epoch's
matrix products alone, which no loop can do without. The runs are interleaved and repeated, and the result is the median
of the ratios, since machines are noisy.
"""

import statistics
from typing import Any

import torch
from common import (
    DigitNetwork,
    begin,
    digit_problem,
    evaluate_digits,
    keep,
    options,
    random_digits,
    ratios,
    take_turns,
    timed,
)
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import samplewise as sw

BOUND, TAU, BATCH, AUDIT_BATCH = 0.01, 100.0, 128, 2000


def by_hand(train: TensorDataset, test: TensorDataset, epochs: int, audited: bool) -> None:
    """The least a loop can do: shuffle, slice, step; and, if asked, sum up the whole of both sets."""
    model = DigitNetwork()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    for _ in range(epochs):
        for index in torch.split(torch.randperm(len(train)), BATCH):
            objective, measures = evaluate_digits(model, train[index])
            loss = (objective + TAU * torch.relu(measures["reconstruction"] - BOUND)).mean()
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if audited:
            with torch.no_grad():
                for data in (train, test):
                    total = satisfied = 0.0
                    for first in range(0, len(data), AUDIT_BATCH):
                        objective, measures = evaluate_digits(model, data[first : first + AUDIT_BATCH])
                        total += float(objective.sum())
                        satisfied += float((measures["reconstruction"] <= BOUND).sum())


def with_fit(train: TensorDataset, test: TensorDataset, epochs: int, audited: bool) -> None:
    model = DigitNetwork()
    problem = digit_problem(BOUND)
    sw.fit(
        problem,
        model,
        train,
        method=sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(TAU)),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3),
        epochs=epochs,
        batch_size=BATCH,
        # An audit comes after the last epoch in any case; of one sample it costs nothing.
        audit_on={"train": DataLoader(train, AUDIT_BATCH), "test": DataLoader(test, AUDIT_BATCH)}
        if audited
        else {"train": TensorDataset(*(t[:1] for t in train.tensors))},
        validation=sw.Validation(every=1 if audited else epochs),
        progress=False,
    )


def products_alone(train: TensorDataset, test: TensorDataset, epochs: int, audited: bool) -> None:
    """The matrix products of forward and backward pass, with outputs already allocated, and nothing else."""
    layers = [(784, 256), (256, 20), (20, 10), (20, 256), (256, 784)]

    def allocate(batch: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        return [(torch.rand(batch, i), torch.rand(i, o), torch.rand(batch, o)) for i, o in layers]

    for _ in range(epochs):
        operands = allocate(BATCH)
        for _ in range(-(-len(train) // BATCH)):
            for number, (inputs, weights, outputs) in enumerate(operands):
                torch.mm(inputs, weights, out=outputs)
                torch.mm(inputs.T, outputs)  # gradient of the weights
                if number:
                    torch.mm(outputs, weights.T)  # gradient of the inputs; the image needs none
        if audited:
            operands = allocate(AUDIT_BATCH)
            for _ in range(-(-(len(train) + len(test)) // AUDIT_BATCH)):
                for inputs, weights, outputs in operands:
                    torch.mm(inputs, weights, out=outputs)


def compare(train: TensorDataset, test: TensorDataset, epochs: int, repeats: int, audited: bool) -> dict[str, Any]:
    ways = {"by_hand": by_hand, "fit": with_fit, "products": products_alone}
    arms = {
        name: timed(lambda turn, way=way: way(train, test, epochs, audited))  # type: ignore[misc]  # no lambda defaults
        for name, way in ways.items()
    }
    seconds = take_turns(arms, repeats)
    return {
        "audited": audited,
        "epochs": epochs,
        "repeats": repeats,
        **{f"{name}_seconds": statistics.median(values) / epochs for name, values in seconds.items()},
        **ratios(seconds["fit"], seconds["by_hand"]),
        "products_share_of_fit": ratios(seconds["products"], seconds["fit"])["ratio"],
    }


def main() -> None:
    chosen = begin(options(__doc__, samples=60_000, epochs=1, repeats=7))
    train, test = random_digits(chosen.samples), random_digits(chosen.samples // 6)
    results = [compare(train, test, chosen.epochs, chosen.repeats, audited) for audited in (False, True)]
    keep(__file__, chosen, {"results": results})
    for result in results:
        print(result)


if __name__ == "__main__":
    main()
