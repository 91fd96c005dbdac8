"""Your own loop: classify digits from ten numbers, from which every single digit can be reconstructed."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import samplewise as sw
from studies.data import digits

EPOCHS = 60


class Network(nn.Module):
    """Classifies an image and reconstructs it, from one code of ten numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.classifier = nn.Linear(10, 10)
        self.decoder = nn.Sequential(nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 64), nn.Sigmoid())

    def forward(self, images):
        code = self.encoder(images)
        return self.classifier(code), self.decoder(code)


def evaluate(model, batch):
    """Objective and measures of each sample."""
    images, labels = batch
    logits, reconstructed = model(images)
    return cross_entropy(logits, labels, reduction="none"), {
        "error": sw.measures.mse(reconstructed, images),
        "accuracy": (logits.argmax(1) == labels).float(),
    }


def main() -> None:
    """Train, and say what holds before and after."""
    torch.manual_seed(0)
    data = digits()
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    problem = sw.Problem(evaluate, [sw.AtMost("error", 0.02, margin=0.008)])
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(20.0, growth=1.05))
    splits = {"train": data.train, "test": data.test}
    before = {name: sw.audit(problem, model, split).satisfied for name, split in splits.items()}

    for _ in range(EPOCHS):
        for batch in DataLoader(data.train, batch_size=64, shuffle=True):
            objective, measures = evaluate(model, batch)
            loss = method(objective, **measures)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        method.step()
        scheduler.step()

    for name, split in splits.items():
        after = sw.audit(problem, model, split)
        print(f"{name}: {before[name]:.1%} of the digits within the bound before, {after.satisfied:.1%} after")
        print(f"accuracy {after.means['accuracy']:.1%}")
    print(after)  # the test samples alone say something of others


if __name__ == "__main__":
    main()
