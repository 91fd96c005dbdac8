"""How soon a monitor sees that a promised share has fallen, and how often its alarms and bounds are wrong.

Streams of samples of which each violates a constraint with one probability, simulated; the monitor is read after each
batch. "After a good time" the share was half of the allowed violations better than promised before it fell.

python benchmarks/monitor.py
"""

import math
from typing import Any

import numpy as np
from common import begin, keep, options, table
from numpy.typing import NDArray

from samplewise.audits.monitor import first_bets, log_evidence, log_wealth_above, play

RISK, SIZE, GOOD = 0.05, 10, 5000
FALLS = ((0.95, 0.90), (0.99, 0.97), (0.90, 0.80))


def alarms(share: float, violated: NDArray[np.int64]) -> NDArray[np.float64]:
    """After how many samples of each stream, a column of batches, the alarm is raised; infinity if it is not."""
    logs, after = first_bets(share), np.full(violated.shape[1], math.inf)
    for step, counts in enumerate(violated):
        logs = play(logs, share, step * SIZE, SIZE, counts)
        raised = log_evidence(logs, share, (step + 1) * SIZE) >= -math.log(RISK)
        after = np.where(raised & np.isinf(after), (step + 1) * SIZE, after)
    return after


def detection(share: float, fallen: float, streams: int, samples: int, draw: np.random.Generator) -> dict[str, Any]:
    """How many samples it takes from the fall on, at once and after a good time."""
    row: dict[str, Any] = {"promised": share, "fallen_to": fallen}
    for name, good in (("at_once", 0), ("after_good_time", GOOD)):
        before = draw.binomial(SIZE, (1 - share) / 2, (good // SIZE, streams))
        falls = draw.binomial(SIZE, 1 - fallen, (samples // SIZE, streams))
        after = alarms(share, np.concatenate([before, falls])) - good
        seen = after[after > 0]  # a false alarm before it is no detection
        row[name] = {
            "median": float(np.quantile(seen, 0.5, method="higher")),
            "quantile_90": float(np.quantile(seen, 0.9, method="higher")),
            "not_seen": float(np.isinf(seen).mean()),
            "false_before": float((after <= 0).mean()),
        }
    return row


def errors(share: float, streams: int, samples: int, draw: np.random.Generator) -> dict[str, Any]:
    """At exactly the promised share: false alarms, and bounds on the share that were wrong at some time."""
    violated = draw.binomial(SIZE, 1 - share, (samples // SIZE, streams))
    missed, total = np.zeros(streams, bool), np.zeros(streams, np.int64)
    for step, counts in enumerate(violated):
        total += counts
        missed |= log_wealth_above(share, (step + 1) * SIZE, total) >= -math.log(RISK)
    false = float(np.isfinite(alarms(share, violated)).mean())
    return {"share": share, "false_alarms": false, "covered_at_all_times": 1 - float(missed.mean())}


def page(found: list[dict[str, Any]], held: list[dict[str, Any]], streams: int, samples: int) -> list[str]:
    def shown(row: dict[str, Any]) -> str:
        return f"{row['median']:,.0f} / {row['quantile_90']:,.0f}"

    falls = [
        (f"{row['promised']:.0%} to {row['fallen_to']:.0%}", shown(row["at_once"]), shown(row["after_good_time"]))
        for row in found
    ]
    kept = [(f"{row['share']:.0%}", f"{row['false_alarms']:.2%}", f"{row['covered_at_all_times']:.2%}") for row in held]
    return [
        f"`Promised.monitor(alarm={RISK})` on {streams:,} simulated streams, read after every {SIZE} samples.",
        "",
        f"Samples from the fall to the alarm, median / 90 % quantile; the good time is {GOOD:,} samples with half of "
        "the violations that the promise allows:",
        "",
        *table(["share", "fallen from the start", "fallen after a good time"], falls),
        "",
        f"At exactly the promised share, over {samples:,} samples, read after each batch: at most {RISK:.0%} and at "
        f"least {1 - RISK:.0%} are asked for.",
        "",
        *table(["share", "false alarms", "`share_at_least` right at all times"], kept),
    ]


def main() -> None:
    chosen = begin(options(__doc__, streams=2000, samples=5000))
    draw = np.random.default_rng(chosen.seed)
    found = [detection(*fall, chosen.streams, chosen.samples, draw) for fall in FALLS]
    held = [errors(share, chosen.streams, chosen.samples, draw) for share, _ in FALLS]
    content = {"risk": RISK, "batch": SIZE, "streams": chosen.streams, "samples": chosen.samples}
    keep(__file__, chosen, {**content, "falls": found, "held": held}, page(found, held, chosen.streams, chosen.samples))


if __name__ == "__main__":
    main()
