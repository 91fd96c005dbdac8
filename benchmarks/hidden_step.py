"""Cost of one training step of HiDDeN: this library's network and loop against the straightforward ones.

    python benchmarks/hidden_step.py --turns 24 --large-turns 5

All arms are the network of section V-B with 200 bits and its discriminator, start from the same weights and get the
same images and messages. The straightforward arm repeats the message over all pixels, joins it to the features, and
takes its steps in a plain loop; it also runs with the memory layout that this library takes. The arms alternate step by
step in an order that changes; a ratio compares two steps of one turn. Seconds are those of the processor: with one
thread that is the time on a machine with nothing else to do.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import begin, keep, options, quartiles, ratios, table, take_turns, timed
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.nn import functional

import samplewise as sw
from samplewise.measures import psnr
from samplewise.training.batching import Part
from samplewise.training.step import Stepper
from studies.watermark.networks.hidden import Discriminator, Hidden, channels_last
from studies.watermark.pipeline import Adversary, MarkedBatch

BITS = 200
FLOOR = 40.0
TAU = 0.1
ADVERSARIAL = 1e-3
LR = 1e-4
TARGET = 0.8  # what the ratio must not exceed

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


def embed(model: nn.Module, images: Any) -> MarkedBatch:
    assert isinstance(model, Hidden)
    messages = draw_messages(images)
    marked = model.embed(images, messages)
    return MarkedBatch(images, messages, marked, model.extract(marked))


def with_library(network: Hidden, discriminator: Discriminator) -> Step:
    """The step of ``fit``: its stepper, the sequential penalty and the adversary."""
    losses: list[Tensor] = []

    def evaluate(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        assert isinstance(batch, MarkedBatch)
        assert batch.adversarial is not None
        objective = network.message_loss(batch.logits, batch.messages) + ADVERSARIAL * batch.adversarial
        quality = psnr(batch.marked, batch.covers)
        losses[:] = [(objective + TAU * functional.relu(FLOOR - quality)).mean().detach()]
        return objective, {"psnr": quality}

    problem = sw.Problem(evaluate, [sw.AtLeast("psnr", FLOOR)])
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Constant(TAU))
    stepper = Stepper(
        Fabric(accelerator="cpu", devices=1),
        problem,
        network,
        torch.optim.Adam(network.parameters(), lr=LR),
        auxiliary=Adversary(embed, discriminator=discriminator, lr=LR),
        clip_norm=None,
    )

    def step(images: Tensor) -> Tensor:
        stepper.step(method, [(Part(torch.arange(len(images))), images)])
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


def compare(size: int, batch: int, turns: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    images = torch.rand(batch, 3, size, size)
    losses: dict[str, list[float]] = {}

    def arm(name: str, step: Step) -> Callable[[int], float]:
        def work(turn: int) -> None:
            torch.manual_seed(turn)  # the same messages
            losses.setdefault(name, []).append(float(step(images)))

        return timed(work, time.process_time)

    seconds = take_turns({name: arm(name, step) for name, step in make_arms().items()}, turns)
    reference = "straightforward"
    rows = {
        name: {
            "seconds": round(statistics.median(values), 4),
            **ratios(values, seconds[reference]),
            "first_loss_relative_difference": abs(losses[name][0] / losses[reference][0] - 1),
        }
        for name, values in seconds.items()
    }
    return {"size": size, "batch": batch, "turns": turns, "arms": rows}


def page(sizes: list[dict[str, Any]]) -> list[str]:
    rows = [
        (
            f"{found['size']}x{found['size']}, {found['batch']}, {found['turns']}",
            name,
            f"{row['seconds']:.3f}",
            f"{row['ratio']:.3f}",
            quartiles(row),
        )
        for found in sizes
        for name, row in found["arms"].items()
    ]
    difference = max(row["first_loss_relative_difference"] for found in sizes for row in found["arms"].values())
    return [
        "# Cost of one training step of HiDDeN",
        "",
        f"{BITS} bits, width 64, with the discriminator's step, Adam, one thread. A ratio compares two steps of one "
        f"turn; the median is to be at most {TARGET}.",
        "",
        *table(["image, batch, turns", "step", "s a step", "ratio", "quartiles"], rows),
        "",
        f"The losses of the first steps differ by {difference:.1e} of their value at most.",
    ]


def main() -> None:
    chosen = begin(options(__doc__, turns=24, large_turns=5))  # at 64x64, batch 4, and at 128x128, batch 2
    sizes = [compare(64, 4, chosen.turns, chosen.seed), compare(128, 2, chosen.large_turns, chosen.seed)]
    settings = {"bits": BITS, "target_ratio": TARGET}
    keep(__file__, chosen, {"settings": settings, "step": sizes}, page(sizes))


if __name__ == "__main__":
    main()
