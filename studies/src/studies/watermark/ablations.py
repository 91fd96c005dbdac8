"""Why the paper's watermarking network stalls and ours does not: one change to our recipe at a time.

python -m studies.watermark.ablations --data chest.store --out results/watermark/ablations
"""

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from floormark.network import CELL
from samplewise.measures import mse
from samplewise.report import markdown_table
from samplewise.samples import mix
from samplewise.storage import provenance, write_json, write_text
from studies.pictures import Store
from studies.watermark.evaluation import measure
from studies.watermark.networks.swift import STRENGTH, Swift
from studies.watermark.recipe import SWIFT, Recipe
from studies.watermark.training import open_run, train


class ConstantMap(Swift):
    """The message as HiDDeN has it: each bit a channel of one value all over the image, read as a mean over it."""

    def __init__(self, bits: int, *, size: int) -> None:
        super().__init__(bits, size=size, slots=bits)

    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        height, width = images.shape[2] // CELL, images.shape[3] // CELL
        laid_out = (2.0 * messages - 1.0)[:, :, None, None].expand(-1, -1, height, width)
        residual: Tensor = self.encoder(images - 0.5, laid_out)
        return images + STRENGTH * residual

    def extract(self, images: Tensor) -> Tensor:
        read: Tensor = self.decoder(functional.pixel_unshuffle(images - 0.5, 4))
        return read.sum((2, 3))


class BatchNorm(Swift):
    """Batch norm in the place of group norm: what is measured in training is not what ships."""

    def __init__(self, bits: int, *, size: int) -> None:
        super().__init__(bits, size=size)
        for module in list(self.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.GroupNorm):
                    setattr(module, name, nn.BatchNorm2d(child.num_channels))


class SquaredError(Swift):
    """The paper's loss: what is read should be 0 or 1."""

    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        return mse(read + 0.5, messages)


@dataclass(frozen=True)
class Ablation:
    """One change, and the hypothesis that it tests."""

    hypothesis: str
    changes: dict[str, Any] = field(default_factory=dict)
    network: type[Swift] = Swift


ABLATIONS: dict[str, Ablation] = {
    "ours": Ablation("nothing changed"),
    "constant message map": Ablation("a message that is constant in space stalls", network=ConstantMap),
    "learning rate 1e-4": Ablation("a tenth of the learning rate is too slow", {"rate": 1e-4}),
    "batch norm": Ablation("batch norm measures in training what does not ship", network=BatchNorm),
    "squared error": Ablation("squared error learns bits more slowly than cross entropy", network=SquaredError),
    "constraint from the start": Ablation(
        "any tau before there is a message makes the residual vanish", {"message_rounds": 0}
    ),
    "constant learning rate": Ablation("without annealing the iterates chatter at the floor", {"anneal": False}),
    "no margin": Ablation("without a margin some unseen images fall below the floor", {"margin": 0.0}),
    "no rounding in training": Ablation("the floor must be measured on 8 bits", {"rounded": False}),
}
"""By name, in the order of the table."""


def run(store: Store, base: Recipe, name: str, folder: Path) -> dict[str, Any]:
    """Train one ablation and say what it came to on the validation pictures, in eval mode, as 8-bit files."""
    ablation = ABLATIONS[name]
    recipe = replace(base, data=store.fingerprint, **ablation.changes)
    if not recipe.message_rounds:
        recipe = replace(recipe, rounds=base.last_round)  # as long as the others
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(recipe.seed, "network"))
        network = ablation.network(recipe.bits, size=recipe.size)
    open_run(folder, recipe, resume=True)
    solution = train(store, recipe, folder, network=network, progress=False)
    found = measure(network, store.select("validation").spread(recipe.audit_images)).columns
    psnr = found["grey/psnr"]
    audited = [row for row in solution.history.rows if "validation/psnr" in row]
    late = [row["validation/psnr/satisfied"] for row in audited[len(audited) // 2 :]]
    return {
        "name": name,
        "hypothesis": ablation.hypothesis,
        "changes": ablation.changes,
        "bit_error": float(found["grey/bit_error"].mean()),
        "psnr_mean": float(psnr.mean()),
        "satisfied": float((psnr >= recipe.floor).mean()),
        "satisfied_range_of_second_half": [min(late), max(late)],
        "bit_error_by_round": {row["epoch"]: row["validation/bit_error"] for row in audited},
        "running_satisfied": audited[-1]["running/psnr/satisfied"],
        "seconds": sum(row["seconds"] for row in solution.history.rows),
    }


def _table(found: list[dict[str, Any]], recipe: Recipe) -> str:
    heads = "Change|Hypothesis|Bit error|PSNR, mean|Share at the floor|In training|Over the second half"
    rows = [heads.split("|")]
    for each in found:
        low, high = each["satisfied_range_of_second_half"]
        numbers = ("{bit_error:.2%}", "{psnr_mean:.2f}", "{satisfied:.1%}", "{running_satisfied:.1%}")
        said = (number.format(**each) for number in numbers)
        rows.append([each["name"], each["hypothesis"], *said, f"{low:.1%} to {high:.1%}"])
    return f"""\
# Ablations: {recipe.bits} bits at {recipe.size} x {recipe.size}, floor {recipe.floor:g} dB, \
{recipe.last_round * (recipe.steps_per_round or 0)} steps

Validation pictures at the end of training, written as 8-bit files by the network in eval mode. The share in training \
is what the method saw in the last round, with the network in training mode and its margin; over the second half, the \
least and the most that audits between the rounds saw in eval mode.

{markdown_table(rows)}
"""


def main() -> None:
    """Run all ablations that are not complete yet."""
    parser = argparse.ArgumentParser(description="one change to the watermarking recipe at a time")
    parser.add_argument("--data", type=Path, required=True, help="a store of pictures")
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--runs", type=Path, default=Path("runs/ablations"), help="folder of the training runs")
    parser.add_argument("--bits", type=int, default=64)
    parser.add_argument("--psnr", type=float, default=45.0)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--only", choices=ABLATIONS, action="append", help="may be given several times")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    store = Store.open(arguments.data)
    base = replace(SWIFT, bits=arguments.bits, size=store.size, floor=arguments.psnr, audit_every=1)
    base = base.with_steps(arguments.steps)
    found = []
    for name in arguments.only or ABLATIONS:
        found.append(run(store, base, name, arguments.runs / name.replace(" ", "-")))
        write_json(arguments.out / "ablations.json", {"found": found, "provenance": provenance(seed=base.seed)})
        write_text(arguments.out / "ablations.md", _table(found, base))
        told = "{name}: bit error {bit_error:.2%}, share at the floor {satisfied:.1%}".format(**found[-1])
        print(told, flush=True)


if __name__ == "__main__":
    main()
