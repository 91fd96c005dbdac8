"""What the theory's stopping rule and learning rate change on the embedded digits, at the same number of epochs.

python benchmarks/stopping_rule.py --seeds 2
"""

import time
from typing import Any

import torch
from common import DigitNetwork, begin, keep, options, table

from samplewise import Geometric, Linear, Penalty, Quadratic, SequentialPenalty, audit, fit
from samplewise.optimality import certify
from samplewise.stopping import GradientRule, inverse_tau
from studies.data import digits
from studies.mnist.digit_network import CONSTRAINT, study_problem

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
    model = DigitNetwork(pixels=data.pixels, classes=data.classes, code=10)
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
        "feasibility": certificate.feasibility,
        "complementarity": certificate.complementarity,
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


def page(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each kind of run, with its means over the seeds."""
    lines = []
    keys = ("penalty", "rounds", "learning_rate")
    for kind in dict.fromkeys(tuple(row[key] for key in keys) for row in rows):
        own = [row for row in rows if tuple(row[key] for key in keys) == kind]
        mean = {key: sum(row[key] for row in own) / len(own) for key, value in own[0].items() if type(value) is not str}
        lines.append(
            (
                *kind,
                f"{mean['rounds_done']:.0f}",
                f"{mean['tau']:.0f}",
                f"{mean['stationarity']:.2g}",
                f"{mean['train_objective']:.4f} / {mean['train_accuracy']:.4f} / {mean['train_satisfied']:.3f}",
                f"{mean['test_accuracy']:.4f} / {mean['test_satisfied']:.3f}",
                f"{mean['seconds']:.1f}",
            )
        )
    train, test = "train CE / accuracy / satisfied", "test accuracy / satisfied"
    return table(
        ["penalty", "a round is", "learning rate", "rounds", "tau", "stationarity", train, test, "seconds"], lines
    )


def main() -> None:
    chosen = begin(options(__doc__, epochs=50, seeds=1))
    rows = []
    for name in PENALTIES:
        for rule in (False, True):
            for falling in (False, True):
                for seed in range(chosen.seeds):
                    rows.append(run(name, rule=rule, falling=falling, epochs=chosen.epochs, seed=seed))
                    print(rows[-1], flush=True)
    keep(__file__, chosen, {"epochs": chosen.epochs, "rows": rows}, page(rows))


if __name__ == "__main__":
    main()
