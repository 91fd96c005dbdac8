"""One process of a run on several hosts, as torchrun starts it: trains, or goes on, and leaves what it ends with."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

import samplewise as sw
from small import evaluate, fit, make_model, make_problem

EPOCHS, BATCH = 6, 33


def main(folder: Path, pause: float) -> None:
    """Every step takes ``pause`` seconds more, so that there is time for something to happen."""
    torch.set_num_threads(1)
    several = "GROUP_WORLD_SIZE" in os.environ
    fabric = Fabric(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),  # as many as there are now
        strategy="ddp" if several else "auto",
    )
    fabric.launch()
    with (folder / "starts").open("a") as file:
        file.write(f"{fabric.global_rank}/{fabric.world_size}\n")

    def slowly(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        if model.training:
            time.sleep(pause)
        return evaluate(model, batch)

    problem, model = sw.Problem(slowly, make_problem().constraints), make_model(dropout=0.0)
    kept: dict[str, Any] = {"checkpoint": folder / "run", "checkpoint_steps": 2, "fabric": fabric}
    solution = fit(problem, model, kind="lagrangian", epochs=EPOCHS, batch_size=BATCH, **kept)
    found = {
        "weights": [value.tolist() for value in model.state_dict().values()],
        "satisfied": solution.audits["train"].satisfied,
        "epochs": solution.history.column("epoch"),
    }
    if fabric.global_rank == 0:
        (folder / "found.partial").write_text(json.dumps(found))
        (folder / "found.partial").replace(folder / "found.json")  # which is waited for, and read at once
    fabric.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
