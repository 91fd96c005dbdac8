"""A run as a process of its own, to be killed, resumed, or started on several devices by the tests.

python run_small.py FOLDER METHOD [--devices N] [--epochs N] [--result FILE]
"""

import argparse
from pathlib import Path

import torch
from lightning_fabric import Fabric

import samplewise as sw
from samplewise import distributed
from samplewise.checkpoint import save_state
from small import make_data, make_method, make_model, make_problem


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("method")
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--norm", action="store_true")
    parser.add_argument("--batch", type=int, default=33)  # the last step has two samples
    parser.add_argument("--result", type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    strategy = "ddp_find_unused_parameters_true" if arguments.devices > 1 else "auto"  # warm-up leaves the decoder out
    fabric = Fabric(accelerator="cpu", devices=arguments.devices, strategy=strategy)
    fabric.launch()
    problem, data, model = make_problem(), make_data(), make_model(dropout=arguments.dropout, norm=arguments.norm)
    method = make_method(arguments.method)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    solution = sw.fit(
        problem,
        model,
        data,
        method=method,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        epochs=arguments.epochs,
        warmup_epochs=1,
        batch_size=arguments.batch,
        audit_on={"train": data, "test": make_data(51, seed=1)},
        checkpoint=arguments.folder,
        checkpoint_steps=2,
        fabric=fabric,
    )
    if arguments.result is not None:
        own = arguments.result.with_suffix(f".{distributed.rank()}")
        save_state(
            own,
            {
                "model": dict(model.state_dict()),
                "method": dict(method.state_dict()),
                "history": [{k: v for k, v in row.items() if k != "seconds"} for row in solution.history.rows],
                "violators": solution.audits["test"]["reconstruction"].violators,
                "objective": solution.audits["test"].objective,
                "samples": solution.audits["test"].samples,
            },
        )


if __name__ == "__main__":  # several processes start from this file too
    main()
