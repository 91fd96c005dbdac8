"""A dose-response curve that never falls, stays between 0 and 1, and passes near every measurement."""

import matplotlib.pyplot as plt
import torch

import samplewise as sw

torch.manual_seed(0)
dose = torch.rand(40).sort().values
response = (1 / (1 + torch.exp(-14 * (dose - 0.5))) + 0.08 * torch.randn(40)).clamp(0, 1)
grid = torch.linspace(0, 1, 40)
powers = [torch.cos(torch.arange(10) * torch.acos(2 * each.unsqueeze(1) - 1)) for each in (dose, grid)]
bounds = [sw.AtMost("error", 0.2), sw.AtLeast("rise", 0.0), sw.Between("value", 0.0, 1.0)]
growing = sw.SequentialPenalty(bounds, schedule=sw.Geometric(0.01, growth=1.005))
plt.plot(dose, response, ".", color="0.65", label="measured")
for name, method in {"least squares": sw.Unconstrained(bounds), "three constraints": growing}.items():
    weights = torch.zeros(10, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    for _ in range(1500):
        error, value = powers[0] @ weights - response, powers[1] @ weights
        rise = value.diff(append=value[-1:])
        optimizer.zero_grad()
        method(error.square(), error=error.abs(), rise=rise, value=value).backward()
        optimizer.step()
        scheduler.step()
        stats = method.step()
    violated = sum(stats[key].violated for key in ("error", "rise", "value"))
    plt.plot(grid, value.detach(), label=f"{name}: {violated} values violated")
plt.xlabel("dose")
plt.legend()
plt.savefig("several.png")
