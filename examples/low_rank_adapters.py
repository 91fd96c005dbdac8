"""Low-rank adapters on shared-out weights: learn an exception, and change no answer that was right by more than a bit.

Tiny and random here; for a real model take AutoModelForSequenceClassification.from_pretrained and a tokenizer's rows.
"""

import os

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification

import samplewise as sw

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


class LowRank(nn.Module):
    """A linear layer that stays as it is, beside a trained product of two thin matrices that begins at zero."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.down = layer, nn.Linear(layer.in_features, 8, bias=False)
        self.up = nn.Parameter(torch.zeros(layer.out_features, 8))

    def forward(self, x):
        """What the layer says, and what was learnt beside it."""
        return self.layer(x) + self.down(x) @ self.up.T


def share_out(model, mesh):
    """Each block's weights over the processes, then all that is left."""
    return [fully_shard(part, mesh=mesh["data_parallel"]) for part in (*model.bert.encoder.layer, model)][-1]


def sequences(old: nn.Module, count: int, seed: int) -> TensorDataset:
    """Digits, the old model's answer, and the label: that answer, but for sequences that begin with 8 or 9."""
    digits = torch.randint(10, (count, 6), generator=torch.Generator().manual_seed(seed))
    answer = old(input_ids=digits).logits
    return TensorDataset(digits, answer, answer.argmax(1) ^ (digits[:, 0] >= 8))


def evaluate(model, batch):
    """Objective: the loss. Bounded: how much the log-odds changed, of the samples that the old model had right."""
    digits, old, label = batch
    new = model(input_ids=digits).logits
    change = (new - old).diff(dim=1).squeeze(1).abs(), old.argmax(1) == label
    return cross_entropy(new, label, reduction="none"), {"change": change, "right": (new.argmax(1) == label).float()}


def adapt(fabric: Fabric, problem: sw.Problem, method: sw.Method) -> list[sw.Audit]:
    """Train adapters by a method: what holds on training and on test data."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(vocab_size=10, **SIZES)).eval().requires_grad_(False)
    train, test = sequences(model, 1000, seed=1), sequences(model, 1000, seed=2)
    for parent, (name, layer) in [(each, named) for each in model.modules() for named in each.named_children()]:
        if isinstance(layer, nn.Linear):
            setattr(parent, name, LowRank(layer))
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=5e-3)
    made = {"method": method, "optimizer": optimizer, "epochs": 10, "batch_size": 50, "fabric": fabric}
    model = sw.fit(problem, model, train, **made).model
    return [sw.audit(problem, model, data) for data in (train, test)]


if __name__ == "__main__":
    count = int(os.environ.get("WORLD_SIZE", "1"))  # torchrun says how many processes there are
    strategy = ModelParallelStrategy(share_out, data_parallel_size=count, tensor_parallel_size=1)
    fabric = Fabric(accelerator="cpu", devices=count, strategy=strategy)
    fabric.launch()
    problem = sw.Problem(evaluate, [sw.AtMost("change", 0.5)])
    bounded = sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(1.0, growth=1.2))
    without, within = (adapt(fabric, problem, each) for each in (sw.Unconstrained(problem.constraints), bounded))
    for split, before, after in zip(("train", "test"), without, within, strict=True) if fabric.global_rank == 0 else ():
        print(f"{split}: {before.satisfied:.1%} of the answers within the bound before, {after.satisfied:.1%} after")
        print(f"  right: {before.means['right']:.1%} before, {after.means['right']:.1%} after")
