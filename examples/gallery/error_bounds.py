"""Two instruments measure one curve. The fit must keep to every measurement's tolerance."""

import matplotlib.pyplot as plt
import torch

import samplewise as sw

torch.manual_seed(0)
x = torch.linspace(0, 1, 60)
limit = torch.where(torch.arange(60) % 4 == 0, 0.06, 0.5)  # every fourth is precise
y = torch.sin(6 * x) + limit * (2 * torch.rand(60) - 1)
powers = torch.cos(torch.arange(12) * torch.acos(2 * x.unsqueeze(1) - 1))  # Chebyshev polynomials

plt.errorbar(x, y, limit, fmt=".", color="0.65", label="measured, with tolerance")
bound = [sw.AtMost("error", "limit")]
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(0.01, growth=1.005))
for name, method in {"least squares": sw.Unconstrained(bound), "bounded": growing}.items():
    weights = torch.zeros(12, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    for _ in range(1500):
        error = powers @ weights - y
        optimizer.zero_grad()
        method(error.square(), error=error.abs(), limit=limit).backward()
        optimizer.step()
        scheduler.step()
        summary = method.step()
    plt.plot(x, (powers @ weights).detach(), label=f"{name}: {summary['error'].satisfied:.0%} within")
plt.legend()
plt.savefig("error_bounds.png")
