"""Code digits in 10 numbers. Every patch of 4 x 4 pixels keeps a PSNR of 17 dB, not only the mean."""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import samplewise as sw

images = torch.tensor(load_digits().images[:1000] / 16, dtype=torch.float32)
bound = [sw.AtLeast("psnr", 17.0)]
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(1e-4, growth=1.1))
held = {}
for name, method in {"mean error": sw.Unconstrained(bound), "floor for each patch": growing}.items():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 10), nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(50):
        for x in (*images[torch.randperm(1000)].split(50), images):  # in the end all, to look at
            error = (model(x.flatten(1)).view_as(x) - x).square()
            error = nn.functional.avg_pool2d(error.unsqueeze(1), 4).flatten(1)  # (B, 4): one a patch
            psnr = -10 * error.clamp_min(1e-6).log10()
            optimizer.zero_grad()
            method(error.mean(1), psnr=psnr).backward()
            optimizer.step()
        method.step()
    held[name] = (psnr >= 17).float().mean().item()
    plt.hist(psnr.flatten().detach(), bins=60, range=(8, 40), alpha=0.6, label=f"{name}: {held[name]:.1%}")
plt.axvline(17, color="0.3")
plt.xlabel("PSNR of a patch in dB")
plt.legend(title="patches that hold")
plt.savefig("per_patch_floor.png")
