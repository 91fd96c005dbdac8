"""Cost of one training step of HiDDeN: this library's network and loop against the straightforward ones.

Example:
    python benchmarks/hidden_step.py --turns 24 --large-turns 5

All arms are the network of section V-B with 200 bits and its discriminator, start from the same weights and get the
same images and messages. The straightforward arm repeats the message over all pixels, joins it to the features, and
takes its steps in a plain loop; it also runs with the memory layout that this library takes. The arms alternate step by
step in an order that changes; a ratio compares two steps of one turn. Seconds are those of the processor: with one
thread that is the time on a machine with nothing else to do.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import profile

import samplewise as sw
from samplewise.checkpoint import write_json
from samplewise.measures import psnr
from samplewise.provenance import provenance
from samplewise.training.engine import Engine
from samplewise.training.plan import MicroBatch
from samplewise.watermark.adversary import Adversary, Discriminator
from samplewise.watermark.embedding import Embedding
from samplewise.watermark.networks.hidden import Hidden, channels_last

BITS = 200
FLOOR = 40.0
TAU = 0.1
ADVERSARIAL = 1e-3
LR = 1e-4
TARGET = 0.8  # what the ratio must not exceed
OPERATORS = {
    "convolution, forward": ("aten::mkldnn_convolution", "aten::_slow_conv2d_forward", "aten::thnn_conv2d"),
    "convolution, backward": ("aten::convolution_backward", "aten::_slow_conv2d_backward"),
    "batch norm": ("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    "ReLU": ("aten::relu_", "aten::clamp_min_", "aten::threshold_backward"),
}

Step = Callable[[Tensor], Tensor]


def draw_messages(images: Tensor) -> Tensor:
    return torch.randint(2, (len(images), BITS)).to(images.dtype)


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class PlainDiscriminator(nn.Module):
    """The discriminator layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(block(3, 64), block(64, 64), block(64, 64), nn.AdaptiveAvgPool2d(1))
        self.linear = nn.Linear(64, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.features(images).flatten(1))
        return logits


class PlainHidden(nn.Module):
    """Encoder and decoder layer by layer, the message repeated over all pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(block(3, 64), *(block(64, 64) for _ in range(3)))
        self.merge = block(BITS + 64 + 3, 64)
        self.draw = nn.Conv2d(64, 3, 1)
        self.read = nn.Sequential(block(3, 64), *(block(64, 64) for _ in range(6)), block(64, BITS))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(BITS, BITS)

    def forward(self, images: Tensor, messages: Tensor) -> tuple[Tensor, Tensor]:
        repeated = messages[:, :, None, None].expand(-1, -1, *images.shape[2:])
        marked = self.draw(self.merge(torch.cat([repeated, self.features(images), images], dim=1)))
        return marked, self.linear(self.pool(self.read(marked)).flatten(1))


def straightforward(network: nn.Module, discriminator: nn.Module) -> Step:
    """The plain loop: discriminator on covers, on marked images, its step; then encoder and decoder."""
    optimizer = torch.optim.Adam(network.parameters(), lr=LR)
    adversary = torch.optim.Adam(discriminator.parameters(), lr=LR)
    cross_entropy = nn.BCEWithLogitsLoss()
    squared_error = nn.MSELoss()

    def step(images: Tensor) -> Tensor:
        cover, encoded = torch.ones(len(images), 1), torch.zeros(len(images), 1)
        adversary.zero_grad()
        torch.autograd.backward(cross_entropy(discriminator(images), cover))
        messages = draw_messages(images)
        marked, read = network(images, messages)
        torch.autograd.backward(cross_entropy(discriminator(marked.detach()), encoded))
        adversary.step()
        optimizer.zero_grad()
        quality = -10 * torch.log10((marked - images).square().mean((1, 2, 3)))
        loss: Tensor = (
            squared_error(read, messages)
            + ADVERSARIAL * cross_entropy(discriminator(marked), cover)
            + TAU * functional.relu(FLOOR - quality).mean()
        )
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.detach()

    return step


def embed(model: nn.Module, images: Any) -> Embedding:
    assert isinstance(model, Hidden)
    messages = draw_messages(images)
    marked = model.embed(images, messages)
    return Embedding(images, messages, marked, model.extract(marked))


def with_library(network: Hidden, discriminator: Discriminator) -> Step:
    """The step of ``fit``: its engine, the sequential penalty and the adversary."""
    losses: list[Tensor] = []

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(batch, Embedding)
        assert batch.adversarial is not None
        objective = network.message_loss(batch.logits, batch.messages) + ADVERSARIAL * batch.adversarial
        quality = psnr(batch.marked, batch.images)
        losses[:] = [(objective + TAU * functional.relu(FLOOR - quality)).mean().detach()]
        return objective, {"psnr": quality}

    problem = sw.Problem(evaluate, [sw.AtLeast("psnr", FLOOR)])
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(TAU))
    engine = Engine(
        Fabric(accelerator="cpu", devices=1),
        problem,
        network,
        torch.optim.Adam(network.parameters(), lr=LR),
        auxiliary=Adversary(embed, discriminator=discriminator, lr=LR),
    )

    def step(images: Tensor) -> Tensor:
        engine.step(method, [MicroBatch(torch.arange(len(images)))], iter([images]))
        return losses[0]

    return step


def same_weights_(target: nn.Module, source: nn.Module) -> None:
    """Copy weights by their order: the layers are the same, their names are not."""
    values = source.state_dict().values()
    target.load_state_dict(dict(zip(target.state_dict(), values, strict=True)))


def make_arms() -> dict[str, Step]:
    network, discriminator = Hidden(BITS), Discriminator()
    plain = []
    for _ in range(2):
        networks = PlainHidden(), PlainDiscriminator()
        for target, source in zip(networks, (network, discriminator), strict=True):
            same_weights_(target, source)
        plain.append(straightforward(*networks))
    return {
        "straightforward": plain[0],
        "straightforward, channels last": lambda images: plain[1](channels_last(images)),
        "samplewise": with_library(network, discriminator),
    }


def turns_of(arms: dict[str, Step], images: Tensor, turns: int) -> Iterator[dict[str, tuple[float, float]]]:
    """Seconds and loss of each arm's step in each turn; the first turn, which warms up, has the loss to compare."""
    for turn in range(turns + 1):
        found = {}
        for name in random.sample(list(arms), len(arms)):
            torch.manual_seed(turn)  # the same messages
            start = time.process_time()
            loss = arms[name](images)
            found[name] = time.process_time() - start, float(loss)
        yield {name: found[name] for name in arms}


def compare(size: int, batch: int, turns: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    first, *rest = turns_of(make_arms(), torch.rand(batch, 3, size, size), turns)
    rows = {}
    for name in first:
        ratios = [turn[name][0] / turn["straightforward"][0] for turn in rest]
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows[name] = {
            "seconds": round(statistics.median(turn[name][0] for turn in rest), 4),
            "ratio": round(middle, 4),
            "ratio_quartile_low": round(low, 4),
            "ratio_quartile_high": round(high, 4),
            "first_loss_relative_difference": abs(first[name][1] / first["straightforward"][1] - 1),
        }
    return {"size": size, "batch": batch, "turns": turns, "arms": rows}


def where_time_goes(size: int, batch: int, steps: int, seed: int) -> dict[str, dict[str, float]]:
    """Shares of a step by kind of operator, from PyTorch's profiler."""
    torch.manual_seed(seed)
    images = torch.rand(batch, 3, size, size)
    found = {}
    for name, step in make_arms().items():
        step(images)
        with profile() as profiler:
            for _ in range(steps):
                step(images)
        spent = {event.key: event.self_cpu_time_total for event in profiler.key_averages()}
        whole = sum(spent.values())
        shares = {kind: sum(spent.get(key, 0.0) for key in keys) / whole for kind, keys in OPERATORS.items()}
        shares["everything else"] = 1.0 - sum(shares.values())
        found[name] = {kind: round(share, 4) for kind, share in shares.items()}
    return found


def report(sizes: list[dict[str, Any]], shares: dict[str, dict[str, float]]) -> list[str]:
    lines = ["| image, batch, turns | step | s a step | ratio | quartiles |", "|---|---|---|---|---|"]
    for found in sizes:
        for name, row in found["arms"].items():
            quartiles = f"{row['ratio_quartile_low']:.3f} to {row['ratio_quartile_high']:.3f}"
            what = f"{found['size']}x{found['size']}, {found['batch']}, {found['turns']}"
            lines.append(f"| {what} | {name} | {row['seconds']:.3f} | {row['ratio']:.3f} | {quartiles} |")
    difference = max(row["first_loss_relative_difference"] for found in sizes for row in found["arms"].values())
    lines += [
        "",
        f"The losses of the first steps differ by {difference:.1e} of their value at most.",
        "",
        f"Where the time goes, {sizes[0]['size']}x{sizes[0]['size']}: ms a step, the profiler's shares of the seconds "
        "above.",
        "",
        f"| operator | {' | '.join(shares)} |",
        f"|---|{'---|' * len(shares)}",
    ]
    for kind in shares["straightforward"]:
        spent = [1e3 * sizes[0]["arms"][name]["seconds"] * share[kind] for name, share in shares.items()]
        lines.append(f"| {kind} | {' | '.join(f'{value:.0f}' for value in spent)} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the cost of one training step of HiDDeN.")
    parser.add_argument("--turns", type=int, default=24, help="steps of each arm at 64x64, batch 4")
    parser.add_argument("--large-turns", type=int, default=5, help="steps of each arm at 128x128, batch 2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/watermark"), help="folder of the result files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    random.seed(options.seed)
    sizes = [compare(64, 4, options.turns, options.seed), compare(128, 2, options.large_turns, options.seed)]
    shares = where_time_goes(64, 4, 3, options.seed)
    source = provenance(seed=options.seed)
    settings = {"bits": BITS, "target_ratio": TARGET}
    found = {"settings": settings, "step": sizes, "share_by_operator": shares, "provenance": source}
    write_json(options.output / "hidden_step.json", found)
    versions = ", ".join(f"{name} {version}" for name, version in source["versions"].items())
    lines = [
        "# Cost of one training step of HiDDeN",
        "",
        f"{BITS} bits, width 64, with the discriminator's step, Adam, one thread. A ratio compares two steps of one "
        f"turn; the median is to be at most {TARGET}.",
        "",
        *report(sizes, shares),
        f"`{source['command']}`, commit {source['commit']}, seed {options.seed}; {versions}.",
        "",
    ]
    (options.output / "hidden_step.md").write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
