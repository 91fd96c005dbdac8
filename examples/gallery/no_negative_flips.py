"""Update a classifier. What the old one has right must stay right: its margin may not fall below zero."""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy, one_hot

import samplewise as sw

x, y = (torch.tensor(each[:1200]) for each in load_digits(return_X_y=True))
x, right = (x / 16).float(), torch.ones(1200, dtype=torch.bool)
bound = [sw.AtLeast("margin", 0.0, margin=0.5)]
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(0.1, growth=1.02))
runs = {"old": (400, sw.Unconstrained(bound)), "new": (1200, sw.Unconstrained(bound)), "new, bounded": (1200, growing)}
flips = {}
for name, (samples, method) in runs.items():
    torch.manual_seed(samples)  # the new ones start anew
    model = Sequential(Linear(64, 7), ReLU(), Linear(7, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(250):
        scores = model(x)
        others = scores.masked_fill(one_hot(y, 10).bool(), -torch.inf).amax(1)
        margin = scores.gather(1, y.unsqueeze(1)).squeeze(1) - others
        loss = cross_entropy(scores, y, reduction="none") * (torch.arange(1200) < samples)
        optimizer.zero_grad()
        method(loss, margin=(margin, right)).backward()
        optimizer.step()
        method.step()
    right = margin > 0 if name == "old" else right
    flips[name] = int((right & (margin <= 0)).sum())
    bars = plt.barh(name, flips[name], color="C3")
    plt.bar_label(bars, [f" {(margin > 0).float().mean():.1%} right"])
plt.xlabel("negative flips: the old one had it right")
plt.savefig("no_negative_flips.png")
