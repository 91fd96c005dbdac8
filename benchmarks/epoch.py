"""What an epoch of ``fit`` costs beside the same epoch written by hand, on data in memory.

    python benchmarks/epoch.py

Both train the paper's network (784-256-20, heads 10 and 256-784) with Adam at batch 128 and slice whole batches out of
memory; one variant adds the audit of the whole training and test set after the epoch. Beside them stand the epoch's
matrix products alone, which no loop can do without; and beside the audited epoch that of the MNIST study, and one as it
is usually written and was published: samples one by one, each from a picture (Pillow), through a DataLoader. The runs
are interleaved and repeated, and the result is the median of the ratios, since machines are noisy.
"""

import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
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
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

import samplewise as sw
from studies.mnist.digit_network import study_problem

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


class Pictures(Dataset[tuple[Tensor, int]]):
    """The same samples one by one, each from a picture to a tensor, as torchvision gives them."""

    def __init__(self, data: TensorDataset) -> None:
        images, labels = data.tensors
        self.images = (images.view(-1, 28, 28) * 255).to(torch.uint8)
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = Image.fromarray(self.images[index].numpy())
        pixels = torch.from_numpy(np.array(picture, np.uint8, copy=True))
        return pixels.view(28, 28, 1).permute(2, 0, 1).contiguous().to(torch.float32).div(255), int(self.labels[index])


def item_by_item(train: TensorDataset, test: TensorDataset, epochs: int, audited: bool) -> None:
    """The loop as it is usually written, and was published: two optimisers, and numbers read after every batch."""
    model = DigitNetwork()
    halves = [[*model.encoder.parameters(), *model.classifier.parameters()], list(model.decoder.parameters())]
    optimizers = [torch.optim.Adam(half, lr=1e-3, weight_decay=1e-3) for half in halves]
    for _ in range(epochs):
        for images, labels in DataLoader(Pictures(train), BATCH, shuffle=True):
            objective, measures = evaluate_digits(model, (images.flatten(1), labels))
            loss = (objective + TAU * torch.relu(measures["reconstruction"] - BOUND)).mean()
            for optimizer in optimizers:
                optimizer.zero_grad()
            torch.autograd.backward(loss)
            for optimizer in optimizers:
                optimizer.step()
            loss.item()
        with torch.no_grad():
            for data in (train, test) if audited else ():
                for images, labels in DataLoader(Pictures(data), BATCH):
                    objective, measures = evaluate_digits(model, (images.flatten(1), labels))
                    objective.sum().item()
                    (measures["reconstruction"] <= BOUND).sum().item()


def study_epoch(train: TensorDataset, test: TensorDataset, epochs: int, audited: bool) -> None:
    """As ``studies mnist`` trains a row."""
    with_fit(train, test, epochs, audited, problem=study_problem(BOUND), fused=True)


def with_fit(
    train: TensorDataset,
    test: TensorDataset,
    epochs: int,
    audited: bool,
    problem: sw.Problem | None = None,
    fused: bool | None = None,
) -> None:
    model = DigitNetwork()
    problem = problem or digit_problem(BOUND)
    sw.fit(
        problem,
        model,
        train,
        method=sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(TAU)),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3, fused=fused),
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
    ways: dict[str, Callable[..., None]] = {"by_hand": by_hand, "fit": with_fit, "products": products_alone}
    if audited:
        ways |= {"study": study_epoch, "item_by_item": item_by_item}
    arms = {
        name: timed(lambda turn, way=way: way(train, test, epochs, audited))  # type: ignore[misc]  # no lambda defaults
        for name, way in ways.items()
    }
    seconds = take_turns(arms, repeats)
    # What of the published loop's time the study takes, and what the matrix products alone would take of it.
    shares = {
        f"{name}_share_of_item_by_item": ratios(seconds[name], seconds["item_by_item"])
        for name in (("study", "products") if audited else ())
    }
    return {
        "audited": audited,
        "epochs": epochs,
        "repeats": repeats,
        **{f"{name}_seconds": statistics.median(values) / epochs for name, values in seconds.items()},
        **ratios(seconds["fit"], seconds["by_hand"]),
        "products_share_of_fit": ratios(seconds["products"], seconds["fit"])["ratio"],
        **shares,
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
