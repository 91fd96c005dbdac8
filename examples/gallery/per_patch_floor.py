"""Code digits in few, small numbers. Every patch of 4 x 4 pixels keeps a PSNR of 20 dB, not only the mean."""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import samplewise as sw

images = torch.tensor(load_digits().images[:1000] / 16, dtype=torch.float32)
bound, held = [sw.AtMost("error", 0.01, margin=0.001)], {}  # 20 dB
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(20.0, growth=1.06))
for name, method in {"a weight on the mean error": sw.FixedPenalty(bound, 10.0), "floor for each patch": growing}.items():
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(64, 32), nn.Linear(32, 64)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
    for _ in range(50):
        for x in (*images[torch.randperm(1000)].split(100), images):  # in the end all, to look at
            code = encoder(x.flatten(1))
            error = (decoder(code).view_as(x) - x).square()
            error = nn.functional.avg_pool2d(error.unsqueeze(1), 4).flatten(1)  # (B, 4): one a patch
            optimizer.zero_grad()
            method(code.abs().mean(1), error=error).backward()
            optimizer.step()
        method.step()
    held[name] = (error <= 0.01).float().mean().item()
    label = f"{name}: {held[name]:.1%}, codes of {code.abs().mean():.3f}"
    plt.hist(-10 * error.flatten().detach().log10(), bins=60, range=(10, 40), alpha=0.6, label=label)
plt.axvline(20, color="0.3")
plt.legend(title="patches that hold")
plt.savefig("per_patch_floor.png")
