"""Smooth a picture as far as you can, but every patch of 8 x 8 pixels keeps a PSNR of 30 dB."""

import matplotlib.pyplot as plt
import torch
from skimage import data
from torch.nn.functional import avg_pool2d

import samplewise as sw

image = torch.tensor(data.camera()[96:224, 150:278] / 255).float().view(1, 1, 128, 128)
bound, held = [sw.AtMost("error", 0.001, margin=1e-4)], {}  # 30 dB
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(1e-3, growth=1.02))
figure, axes = plt.subplots(1, 2, figsize=(6, 3.8))
for ax, (name, method) in zip(axes, {"weight": sw.FixedPenalty(bound, 0.05), "floor": growing}.items(), strict=True):
    smooth = image.clone().requires_grad_()
    optimizer = torch.optim.Adam([smooth], lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)
    for _ in range(400):
        error = avg_pool2d((smooth - image).square(), 8).flatten(1)  # (1, 256): one value a patch
        variation = smooth.diff(dim=2).abs().mean() + smooth.diff(dim=3).abs().mean()
        optimizer.zero_grad()
        method(variation.view(1), error=error).backward()
        optimizer.step()
        scheduler.step()
        method.step()
    held[name] = (error <= 0.001).float().mean().item()
    ax.imshow(smooth.detach()[0, 0], cmap="gray", aspect="equal")
    ax.set_title(f"{name}: variation {1000 * variation:.1f},\n{held[name]:.1%} of the patches hold")
    ax.axis("off")
plt.savefig("per_patch_floor.png")
