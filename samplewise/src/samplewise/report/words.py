"""Numbers, verdicts and tables in words."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from samplewise.printed import percentage
from samplewise.report.run import Audited, RunReport

share = percentage
"""A fraction in percent, with as many digits as keep it apart from none and all."""


def at_least(value: float) -> str:
    """A fraction that is a lower bound, in percent: never rounded up."""
    return percentage(value, math.floor)


def percent(value: float) -> str:
    """A fraction that was chosen, in percent with the digits that it was given.

    Example:
        >>> percent(0.95), percent(0.999)
        ('95%', '99.9%')
    """
    return f"{100 * value:.10g}%"


def count(value: int) -> str:
    """An integer with separators."""
    return f"{value:,}"


def number(value: float | None) -> str:
    """A number to five digits; a dash where there is none."""
    return "–" if value is None else f"{value:.5g}"  # noqa: RUF001 - a dash, not a minus


def verdict(run: RunReport) -> str:
    """What was asked and whether it holds on unseen samples: the outcome of a promise, or the audit of unseen data."""
    return f"{asked(run)} {outcome(run)}".strip()


def asked(run: RunReport) -> str:
    """The constraints, and the share that was promised to meet them, in one sentence."""
    if not run.requirements:
        return "Nothing was required of the samples."
    promised = f", for {run.promised_share} of unseen samples" if run.promised_share else ""
    return f"Asked: {'; '.join(each.formula for each in run.requirements)}{promised}."


def outcome(run: RunReport) -> str:
    """Whether that holds on unseen samples, in one or two sentences; empty if nothing was required."""
    if not run.requirements:
        return ""
    if run.promise is not None:
        return run.promise.sentence
    if not run.splits:
        return "Not known yet: no audit has been made; the curves show what was seen while training."
    bound = {1: "the bound", 2: "both bounds"}.get(len(run.requirements), f"all {len(run.requirements)} bounds")
    unseen = run.unseen
    if unseen is None:
        held = " and ".join(_held(split) for split in run.splits)
        return f"Not known for unseen samples: none were audited; {held} meet {bound}."
    verdict = "Holds" if unseen.met else "Does not hold"
    return (
        f"{verdict} on the {count(unseen.samples)} unseen samples of {unseen.name}: {_part(unseen)} meet {bound}"
        f"{_missed(unseen)}. At {percent(unseen.confidence)} confidence at least {at_least(unseen.at_least)} of all "
        f"such samples do{corrected(unseen)}."
    )


def _missed(split: Audited) -> str:
    """Which of several constraints do not hold as asked."""
    missed = [name for name, part in split.constraints.items() if not part.met]
    if len(split.constraints) == 1 or not missed:
        return ""
    return f", and {', '.join(missed)} {'is' if len(missed) == 1 else 'are'} violated more often than allowed"


def corrected(split: Audited) -> str:
    """What an exact bound on a data set that chose the model is corrected for; nothing of another."""
    return f" (corrected: best of {split.n_comparisons:,.10g} epochs on these data)" if split.n_comparisons > 1 else ""


def comparison(runs: Sequence[RunReport]) -> str:
    """Which of several runs meets the bounds most often, on each data set, in one sentence."""
    if not same_problem(runs):
        return "The runs were asked different things, so their shares do not compare: see each of them."
    names = dict.fromkeys(split.name for run in runs for split in run.splits)
    said = []
    for name in names:
        found = [(run, split) for run in runs for split in run.splits if split.name == name]
        run, best = max(found, key=lambda pair: (pair[1].satisfied, -pair[1].objective))
        # Without the exact bound: being the best of several makes a share look better than it is.
        said.append(f"on {name} by {run.name} ({share(best.satisfied)} of {count(best.samples)} samples)")
    return f"The bounds are met most often {' and '.join(said)}." if said else "No audit has been made yet."


def objective(runs: Sequence[RunReport]) -> str:
    """What the objective of all runs is, if it is the same."""
    kinds = {run.objective for run in runs}
    return kinds.pop() if len(kinds) == 1 else "objective"


def same_problem(runs: Sequence[RunReport]) -> bool:
    """Whether all runs were asked the same."""
    return len({(run.problem, *((each.name, each.formula) for each in run.requirements)) for run in runs}) == 1


def _held(split: Audited) -> str:
    kind = "training samples" if split.trained_on else f"samples of {split.name}"
    return f"{_part(split)} of the {count(split.samples)} {kind}"


def _part(split: Audited) -> str:
    return "all" if split.satisfied == 1.0 else share(split.satisfied)


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested settings as lines of name and text."""
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from flat(item, f"{prefix}{name}.")
        else:
            text = ", ".join(map(str, item)) if isinstance(item, list | tuple) else str(item)
            yield f"{prefix}{name}", "none" if item is None else text


def facts(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    """Nested findings as lines for people: names with spaces, numbers to five digits."""
    for name, item in value.items():
        label = prefix + name.replace("_", " ")
        if isinstance(item, Mapping):
            yield from facts(item, f"{label}: ")
        elif isinstance(item, bool):
            yield label, "yes" if item else "no"
        else:
            yield label, number(item) if isinstance(item, float | None) else str(item)
