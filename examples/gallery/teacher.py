"""A linear student with small weights. On no sample may its loss exceed the teacher's by more than 0.5."""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

import samplewise as sw

x, y = (torch.tensor(each[:1000]) for each in load_digits(return_X_y=True))
x = (x / 16).float()
torch.manual_seed(0)
teacher = Sequential(Linear(64, 64), ReLU(), Linear(64, 10))
optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
for _ in range(60):
    known = cross_entropy(teacher(x), y, reduction="none")
    optimizer.zero_grad()
    known.mean().backward()
    optimizer.step()
known, bound, beyond = known.detach(), [sw.AtMost("loss", "limit", margin=0.05)], {}
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(0.1, growth=1.015))
for name, method in {"a weight on the mean loss": sw.FixedPenalty(bound, 1.0), "bounded": growing}.items():
    student = Linear(64, 10)
    optimizer = torch.optim.Adam(student.parameters(), lr=0.02)
    for _ in range(400):
        loss, size = cross_entropy(student(x), y, reduction="none"), student.weight.square().mean()
        optimizer.zero_grad()
        method(size.expand(1000), loss=loss, limit=known + 0.5).backward()
        optimizer.step()
        beyond[name] = method.step()["loss"].violated
    plt.plot(known, loss.detach(), ".", alpha=0.6, label=f"{name}: {beyond[name]} beyond, size {size:.2f}")
plt.axline((0, 0.5), slope=1, color="0.3", linewidth=1, label="loss of the teacher + 0.5")
plt.legend()
plt.savefig("teacher.png")
