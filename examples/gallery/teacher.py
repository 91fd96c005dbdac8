"""A small student of a large teacher. On no sample may its loss exceed the teacher's by more than 0.5."""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch.nn import Linear, ReLU, Sequential
from torch.nn.functional import cross_entropy

import samplewise as sw

x, y = (torch.tensor(each[:1000]) for each in load_digits(return_X_y=True))
x, limit = (x / 16).float(), torch.zeros(1000)
bound = [sw.AtMost("loss", "limit")]
growing = sw.SequentialPenalty(bound, schedule=sw.Geometric(0.01, growth=1.015))
runs = {"teacher": (128, 100, sw.Unconstrained(bound))}
runs |= {"student, mean loss": (10, 500, sw.Unconstrained(bound)), "student, bounded": (10, 500, growing)}
beyond = {}
for name, (width, steps, method) in runs.items():
    torch.manual_seed(0)
    model = Sequential(Linear(64, width), ReLU(), Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        loss = cross_entropy(model(x), y, reduction="none")
        optimizer.zero_grad()
        method(loss, loss=loss, limit=limit).backward()
        optimizer.step()
        beyond[name] = method.step()["loss"].violated
    if name == "teacher":
        limit = loss.detach() + 0.5
    else:
        plt.plot(limit - 0.5, loss.detach(), ".", alpha=0.6, label=f"{name}: {beyond[name]} of 1,000 beyond")
plt.xlabel("loss of the teacher")
plt.ylabel("loss of the student")
plt.legend()
plt.savefig("teacher.png")
