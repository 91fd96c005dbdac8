"""A pendulum seen through noise: each reconstructed point must lie on the circle, |r - 1| <= 0.01."""

import matplotlib.pyplot as plt
import torch
from torch.nn import Linear, Sequential, Tanh

import samplewise as sw

torch.manual_seed(0)
angle = torch.linspace(-2.4, 2.4, 150)
points = torch.stack([angle.sin(), -angle.cos()], 1)
seen = points + 0.15 * torch.randn(150, 2)
bound = [sw.Equal("radius", 1.0, tolerance=0.01)]
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(0.01, growth=1.005))
plt.plot(*seen.T, ".", color="0.65", label="seen")
for name, method in {"least squares": sw.Unconstrained(bound), "on the circle": growing}.items():
    torch.manual_seed(0)
    model = Sequential(Linear(1, 16), Tanh(), Linear(16, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1200)
    for _ in range(1200):
        found = model(angle.unsqueeze(1))
        optimizer.zero_grad()
        method((found - seen).square().sum(1), radius=found.norm(dim=1)).backward()
        optimizer.step()
        scheduler.step()
        stats = method.step()["radius"]
    plt.plot(*found.detach().T, label=f"{name}: {stats.satisfied:.0%} hold")
plt.axis("equal")
plt.legend(loc="center")
plt.savefig("equality.png")
