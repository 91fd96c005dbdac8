"""What the theory's stopping rule and learning rate change on the embedded digits, at the same number of epochs.

Run from the root of the repository::

    python benchmarks/stopping_rule.py

Writes ``results/theory/stopping.json`` and ``stopping.md``.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from samplewise import Geometric, Linear, Penalty, Quadratic, SequentialPenalty, audit, fit
from samplewise.certificate import certify
from samplewise.data import digits
from samplewise.provenance import provenance
from samplewise.stopping import GradientRule, inverse_tau
from samplewise.studies.mnist.network import CONSTRAINT, Network, study_problem

ROOT = Path(__file__).resolve().parent.parent
THETA, BATCH, RATE = 0.02, 32, 1e-3
# The rule leaves fewer rounds in the same epochs, so each raises tau more, up to the same seven times the first.
EVERY_EPOCH, BY_RULE, LARGEST = 1.05, 1.3, 7.0
PENALTIES: dict[str, tuple[Penalty, float, float]] = {
    "linear": (Linear(), 20.0, 0.5),
    "quadratic": (Quadratic(), 2000.0, 0.5),
}


def run(name: str, *, rule: bool, falling: bool, epochs: int, seed: int) -> dict[str, Any]:
    penalty, tau, epsilon = PENALTIES[name]
    data = digits(seed=seed)
    torch.manual_seed(seed)
    model = Network(pixels=data.pixels, classes=data.classes, code=10)
    problem = study_problem(THETA)
    schedule = Geometric(tau, growth=BY_RULE if rule else EVERY_EPOCH, maximum=LARGEST * tau)
    method = SequentialPenalty(problem.constraints, penalty=penalty, schedule=schedule)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=1e-4)
    began = time.perf_counter()
    fit(
        problem,
        model,
        data.train,
        method=method,
        optimizer=optimizer,
        epochs=epochs,
        batch_size=BATCH,
        seed=seed,
        warmup_epochs=5,
        round_rule=GradientRule(epsilon, max_epochs=10, batches=16, batch_size=256) if rule else None,
        scheduler=inverse_tau(optimizer, method) if falling else None,
        progress=False,
    )
    seconds = time.perf_counter() - began
    certificate = certify(problem, model, data.train, method)
    row: dict[str, Any] = {
        "penalty": name,
        "rounds": "gradient rule" if rule else "one epoch",
        "learning_rate": "1/tau" if falling else "constant",
        "seed": seed,
        "rounds_done": method.rounds,
        "tau": method.tau,
        "seconds": seconds,
        "stationarity": certificate.stationarity,
        "relative": certificate.relative,
    }
    for split, part in (("train", data.train), ("test", data.test)):
        found = audit(problem, model, part)
        row |= {
            f"{split}_objective": found.objective,
            f"{split}_accuracy": found.means["accuracy"],
            f"{split}_satisfied": found.satisfied,
            f"{split}_violation": found[CONSTRAINT].mean_violation,
        }
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| penalty | a round is | learning rate | rounds | tau | stationarity | train CE / accuracy / satisfied "
        "| test accuracy / satisfied | seconds |",
        "|" + "---|" * 9,
    ]
    keys = ("penalty", "rounds", "learning_rate")
    for kind in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in keys) == kind]

        def mean(key: str, own: list[dict[str, Any]] = own) -> float:
            return float(sum(row[key] for row in own) / len(own))

        lines.append(
            f"| {' | '.join(kind)} | {mean('rounds_done'):.0f} | {mean('tau'):.0f} | {mean('stationarity'):.2g} "
            f"| {mean('train_objective'):.4f} / {mean('train_accuracy'):.4f} / {mean('train_satisfied'):.3f} "
            f"| {mean('test_accuracy'):.4f} / {mean('test_satisfied'):.3f} | {mean('seconds'):.1f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in PENALTIES:
        for rule in (False, True):
            for falling in (False, True):
                for seed in range(arguments.seeds):
                    rows.append(run(name, rule=rule, falling=falling, epochs=arguments.epochs, seed=seed))
                    print(json.dumps(rows[-1]), flush=True)
    folder = ROOT / "results" / "theory"
    folder.mkdir(parents=True, exist_ok=True)
    content = {"provenance": provenance(), "epochs": arguments.epochs, "rows": rows}
    (folder / "stopping.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    (folder / "stopping.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
