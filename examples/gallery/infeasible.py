"""Five labels are wrong, so no model meets all bounds. Find the samples, then ask for 95 % of them."""

import matplotlib.pyplot as plt
import torch
from torch.utils.data import TensorDataset

import samplewise as sw

torch.manual_seed(0)
x = torch.rand(100, 1)
y = 2 * x[:, 0] + 0.1 * torch.rand(100)
y[:5] += 1.0


def evaluate(model, batch):
    error = model(batch[0])[:, 0] - batch[1]
    return error.square(), {"error": error.abs()}


plt.plot(x[:, 0], y, ".", color="0.65", label="samples")
for share in (1.0, 0.95):
    problem = sw.Problem(evaluate, [sw.AtMost("error", 0.1, share=share)])
    model, data = torch.nn.Linear(1, 1), TensorDataset(x, y)
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(0.1, growth=1.1, maximum=50))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    options = {"epochs": 40, "explain_infeasibility": True, "progress": False}
    solution = sw.fit(problem, model, data, method=method, optimizer=optimizer, **options)
    plt.plot(x[:, 0], model(x).detach(), label=f"{share:.0%} asked: {solution.status.name}")
    if share == 1:
        worst = [sample for sample, _ in solution.infeasibility.violators["error"][:5]]
        plt.plot(x[worst, 0], y[worst], "o", color="C3", fillstyle="none", label="the five that conflict most")
plt.legend()
plt.savefig("infeasible.png")
