"""What an epoch of ``fit`` costs beside the same epoch written by hand, on data in memory.

Both train the paper's network (784-256-20, heads 10 and 256-784) with Adam at batch 128 and slice whole batches out of
memory; one variant adds the audit of the whole training and test set after the epoch. Beside them stand the epoch's
matrix products alone, which no loop can do without. The runs are interleaved and repeated, and the result is the median
of the ratios, since machines are noisy.

    python benchmarks/epoch.py --out results/benchmarks
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.checkpoint import write_json
from samplewise.provenance import provenance
from samplewise.studies.mnist.network import Network

BOUND, TAU, BATCH, AUDIT_BATCH = 0.01, 100.0, 128, 2000


def evaluate(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    images, labels = batch
    logits, decoded = model(images)
    return (
        functional.cross_entropy(logits, labels, reduction="none"),
        {"reconstruction": (decoded - images).square().mean(1)},
    )


def random_images(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.rand(samples, 784, generator=generator), torch.randint(10, (samples,), generator=generator)
    )


def by_hand(train: TensorDataset, test: TensorDataset, epochs: int, audited: bool) -> None:
    """The least a loop can do: shuffle, slice, step; and, if asked, sum up the whole of both sets."""
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    images, labels = train.tensors
    for _ in range(epochs):
        for index in torch.split(torch.randperm(len(images)), BATCH):
            objective, measures = evaluate(model, (images[index], labels[index]))
            loss = (objective + TAU * torch.relu(measures["reconstruction"] - BOUND)).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if audited:
            with torch.no_grad():
                for data in (train, test):
                    total = satisfied = 0.0
                    for x, y in zip(
                        torch.split(data.tensors[0], AUDIT_BATCH),
                        torch.split(data.tensors[1], AUDIT_BATCH),
                        strict=True,
                    ):
                        objective, measures = evaluate(model, (x, y))
                        total += float(objective.sum())
                        satisfied += float((measures["reconstruction"] <= BOUND).sum())


def with_fit(train: TensorDataset, test: TensorDataset, epochs: int, audited: bool) -> None:
    model = Network()
    problem = sw.Problem(evaluate, [sw.AtMost("reconstruction", BOUND)])
    sw.fit(
        problem,
        model,
        train,
        method=sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(TAU)),
        optimizer=torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3),
        epochs=epochs,
        batch_size=BATCH,
        # An audit comes after the last epoch in any case; of one sample it costs nothing.
        audit_on={"train": train, "test": test}
        if audited
        else {"train": TensorDataset(*(t[:1] for t in train.tensors))},
        audit_every=1 if audited else epochs,
        audit_batch_size=AUDIT_BATCH,
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


def seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def compare(
    train: TensorDataset, test: TensorDataset, *, audited: bool, epochs: int, repeats: int
) -> dict[str, object]:
    timings: list[tuple[float, float, float]] = []
    for _ in range(repeats):
        hand, ours, products = (
            seconds(lambda run=run: run(train, test, epochs, audited)) / epochs  # type: ignore[misc]
            for run in (by_hand, with_fit, products_alone)
        )
        timings.append((hand, ours, products))
    ratios = sorted(ours / hand for hand, ours, _ in timings)
    return {
        "audited": audited,
        "epochs": epochs,
        "repeats": repeats,
        "by_hand_seconds": statistics.median(hand for hand, _, _ in timings),
        "fit_seconds": statistics.median(ours for _, ours, _ in timings),
        "products_seconds": statistics.median(products for _, _, products in timings),
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
        "products_share_of_fit": statistics.median(products / ours for _, ours, products in timings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    train, test = random_images(arguments.samples), random_images(arguments.samples // 6)
    with_fit(train, test, 1, audited=False)  # imports and first allocations
    results = [
        compare(train, test, audited=audited, epochs=arguments.epochs, repeats=arguments.repeats)
        for audited in (False, True)
    ]
    write_json(arguments.out / "epoch.json", {"results": results, "provenance": provenance(seed=0)})
    for result in results:
        print(result)


if __name__ == "__main__":
    main()
