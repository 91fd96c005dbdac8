"""Two processes share each batch: tau and the violations are those of one process."""

import matplotlib.pyplot as plt
import torch
from lightning_fabric import Fabric
from torch.utils.data import TensorDataset

import samplewise as sw


def evaluate(model, batch):
    output = model(batch[0])
    return output.square().mean(1), {"error": sw.measures.mse(output, batch[0])}


def train(fabric):
    torch.manual_seed(0)
    data, model = TensorDataset(torch.rand(256, 20)), torch.nn.Linear(20, 20)
    problem = sw.Problem(evaluate, [sw.AtMost("error", 0.02)])
    method = sw.SequentialPenalty(problem.constraints, schedule=sw.Geometric(1.0, growth=1.2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    solution = sw.fit(problem, model, data, method=method, optimizer=optimizer, epochs=20, batch_size=64, fabric=fabric)
    return solution.history.column("running/error/satisfied")


if __name__ == "__main__":
    runs = []
    for devices, line in ((1, "-"), (2, "o")):
        fabric = Fabric(accelerator="cpu", devices=devices, strategy="ddp_spawn" if devices > 1 else "auto")
        runs.append(fabric.launch(train))
        plt.plot(runs[-1], line, fillstyle="none", label=f"{devices} process{'es' * (devices > 1)}")
    plt.xlabel("epoch")
    plt.ylabel("samples within the bound")
    plt.legend()
    plt.savefig("processes.png")
