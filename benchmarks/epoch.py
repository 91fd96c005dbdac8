"""What an epoch of ``fit`` costs beside the same epoch written by hand, on data in memory.

Both train the paper's network (784-256-20, heads 10 and 256-784) with Adam at batch 128 and slice whole batches out of
memory; one variant adds the audit of the whole training and test set after the epoch. The runs are interleaved and
repeated, and the result is the median of the ratios, since machines are noisy.

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

BOUND, TAU, BATCH, AUDIT_BATCH = 0.01, 100.0, 128, 2000


class Network(nn.Module):
    """The paper's network."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 20))
        self.classifier = nn.Linear(20, 10)
        self.decoder = nn.Sequential(nn.Linear(20, 256), nn.ReLU(), nn.Linear(256, 784), nn.Sigmoid())

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        latent = self.encoder(images)
        return self.classifier(latent), self.decoder(latent)


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
        evaluate={"train": train, "test": test}
        if audited
        else {"train": TensorDataset(*(t[:1] for t in train.tensors))},
        evaluate_every=1 if audited else epochs,
        evaluate_batch_size=AUDIT_BATCH,
        progress=False,
    )


def seconds(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def compare(
    train: TensorDataset, test: TensorDataset, *, audited: bool, epochs: int, repeats: int
) -> dict[str, object]:
    pairs = []
    for _ in range(repeats):
        hand = seconds(lambda: by_hand(train, test, epochs, audited))
        ours = seconds(lambda: with_fit(train, test, epochs, audited))
        pairs.append((hand / epochs, ours / epochs))
    ratios = sorted(ours / hand for hand, ours in pairs)
    return {
        "audited": audited,
        "epochs": epochs,
        "repeats": repeats,
        "by_hand_seconds": statistics.median(hand for hand, _ in pairs),
        "fit_seconds": statistics.median(ours for _, ours in pairs),
        "ratio": statistics.median(ratios),
        "ratio_range": [ratios[0], ratios[-1]],
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
