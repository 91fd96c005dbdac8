"""Tag sequences of different lengths: each token has a bound on its loss, and padding never counts."""

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import cross_entropy, one_hot

import samplewise as sw

torch.manual_seed(0)
digits = torch.randint(10, (60, 12))
mask = torch.arange(12) < torch.randint(4, 13, (60, 1))  # True where there is a token
tags = (digits.cumsum(1) % 5 == 0).long()  # rare, and hard to tell
bound = [sw.AtMost("loss", 0.2)]
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(0.01, growth=1.02))
figure, axes = plt.subplots(1, 2, sharey=True)
for ax, (name, method) in zip(axes, {"mean loss": sw.Unconstrained(bound), "bounded": growing}.items(), strict=True):
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.GRU(10, 32, batch_first=True), torch.nn.Linear(32, 2)])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(250):
        states, _ = model[0](one_hot(digits, 10).float())
        loss = cross_entropy(model[1](states).transpose(1, 2), tags, reduction="none")  # (B, length)
        optimizer.zero_grad()
        method((loss * mask).sum(1) / mask.sum(1), loss=(loss, mask)).backward()
        optimizer.step()
        violated = method.step()["loss"].violated
    ax.imshow(loss.detach().where(mask, torch.nan), vmin=0, vmax=0.4, cmap="coolwarm", aspect="auto")
    ax.set(title=f"{name}:\n{violated} of 60 sequences beyond", xlabel="token")
plt.savefig("per_token.png")
