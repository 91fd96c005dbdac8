"""Delivery times: a promise may be too careful, never too short. No observed time lies above the curve."""

import matplotlib.pyplot as plt
import torch

import samplewise as sw

torch.manual_seed(0)
x = torch.rand(300)
y = 1 + x**2 + (0.1 + 0.4 * x) * torch.rand(300)
powers = x.unsqueeze(1) ** torch.arange(4)
order = x.argsort()

plt.plot(x, y, ".", color="0.65", label="observed")
bound = [sw.AtMost("late", 0.0, margin=0.01)]
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(0.01, growth=1.004))
for name, method in {"mean squared error": sw.Unconstrained(bound), "bounded on one side": growing}.items():
    weights = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
    for _ in range(2000):
        late = y - powers @ weights
        optimizer.zero_grad()
        method(late.square(), late=late).backward()
        optimizer.step()
        scheduler.step()
        summary = method.step()
    plt.plot(x[order], (powers @ weights).detach()[order], label=f"{name}: {summary['late'].satisfied:.0%} hold")
plt.xlabel("distance")
plt.ylabel("days")
plt.legend()
plt.savefig("one_sided.png")
