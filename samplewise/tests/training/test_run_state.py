import json
from dataclasses import replace
from typing import Any

import pytest

from samplewise.audits import selection_loss
from samplewise.errors import CheckpointError, ConfigurationError
from samplewise.training.state import RunState, Selection, Status, Validation


def candidate(epoch: int, satisfied: float, objective: float, violation: float = 0.0) -> Selection:
    violated = round(100 * (1 - satisfied))
    return Selection(epoch, "train", satisfied, objective, violated, violated, violation, aim=0.9)


def test_a_feasible_epoch_beats_any_other() -> None:
    assert candidate(2, 0.90, 5.0).better_than(candidate(1, 0.89, 1.0))
    assert not candidate(2, 0.89, 1.0).better_than(candidate(1, 0.90, 5.0))


def test_among_feasible_ones_the_objective_decides() -> None:
    assert candidate(2, 0.91, 1.0).better_than(candidate(1, 0.99, 2.0))
    assert not candidate(2, 0.99, 1.0).better_than(candidate(1, 0.91, 1.0)), "the earlier stays on a tie"


def test_among_infeasible_ones_feasibility_decides() -> None:
    assert candidate(2, 0.5, 9.0).better_than(candidate(1, 0.4, 1.0))
    assert candidate(2, 0.5, 9.0, violation=0.1).better_than(candidate(1, 0.5, 1.0, violation=0.2))


def test_under_another_aim_an_epoch_ranks_as_if_it_had_been_audited_under_it() -> None:
    many, few = candidate(1, 0.91, 1.0, violation=0.2), candidate(2, 0.985, 5.0, violation=0.1)
    assert many.better_than(few), "both meet 90%"
    stricter = [replace(each, aim=0.99) for each in (many, few)]
    assert [each.feasible for each in stricter] == [False, False]
    assert stricter[1].better_than(stricter[0]), "9 violated samples against 1 or 2"
    assert stricter[0].loss == selection_loss(False, 1.0, 9, 0.2)
    assert replace(candidate(1, 0.5, 3.0), aim=0.4).loss == 3.0


def test_the_reason_is_recorded() -> None:
    assert candidate(1, 0.1, 1.0).better_than(None)
    plain = [replace(candidate(3, share, 1.0), aim=None, failed=failed) for share, failed in ((0.5, 50), (0.95, 0))]
    assert "beyond what was asked (50" in plain[0].reason
    assert "best objective on train" in plain[1].to_dict()["reason"]


def test_the_reason_of_a_promise_says_which_model_ships() -> None:
    chosen = replace(candidate(40, 0.95, 1.0), since=24, tested=5)
    assert "not proved yet" in replace(chosen, since=None).reason
    assert replace(chosen, tested=1).reason.startswith("epoch 40: the last one")
    for part, start in (
        (1.0, "epoch 40: best"),
        (0.0, "epoch 24: best"),
        (0.25, "25% of the way from epoch 24 to epoch 40"),
    ):
        assert replace(chosen, part=part).reason.startswith(start)


def test_the_objective_alone_decides_where_that_is_asked() -> None:
    good, bad = (replace(each, select="objective") for each in (candidate(1, 0.95, 2.0), candidate(2, 0.5, 1.0)))
    assert bad.better_than(good)
    assert not bad.feasible, "which it does not hide"
    assert "best objective" in replace(bad, aim=None).reason


@pytest.mark.parametrize("wrong", [{"every": 0}, {"patience": 0}, {"select": "loss"}])
def test_a_validation_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Validation(**wrong)


REACHED, PATIENCE, FEASIBLE, UNFINISHED = (
    Status.TARGET_REACHED,
    Status.NO_LONGER_BETTER,
    Status.FEASIBLE,
    Status.UNFINISHED,
)
GOOD, BAD = 0.95, 0.5
"""Fractions of the samples satisfied: with an aim of 0.9 the one is feasible, the other is not."""


@pytest.mark.parametrize(
    ("epoch", "best", "satisfied", "reached", "stop", "patience", "expected"),
    [
        # Nothing ends it.
        (0, None, GOOD, False, False, None, None),
        (5, 1, GOOD, True, False, None, None),  # reached, but not asked to stop there
        (5, 1, BAD, False, True, None, None),
        (5, 3, GOOD, False, False, 3, None),  # two epochs back
        (5, None, GOOD, False, True, 1, None),  # nothing was audited yet
        # The target.
        (5, 5, GOOD, True, True, None, REACHED),
        (5, 4, GOOD, True, True, 9, REACHED),  # an earlier feasible epoch stays the better one
        (5, 1, GOOD, True, True, 2, REACHED),  # the target and the patience at once: the good news
        # The patience, whatever the best epoch is like and whatever else was asked.
        (5, 3, GOOD, False, False, 2, PATIENCE),
        (5, 3, BAD, False, False, 2, PATIENCE),
        (5, 3, GOOD, False, True, 2, PATIENCE),
        (4, 1, GOOD, False, True, 2, PATIENCE),  # since the warm-up of two epochs, not since the first
        (3, 1, GOOD, False, True, 2, None),
        # The last epoch is no early stop.
        (10, 10, GOOD, True, True, 1, FEASIBLE),
        (10, 2, GOOD, False, True, 1, FEASIBLE),
        (10, 10, BAD, False, True, 1, UNFINISHED),
        (10, None, BAD, False, False, None, UNFINISHED),
        (12, 11, GOOD, True, True, None, FEASIBLE),  # asked for fewer epochs than were run
    ],
)
def test_why_a_run_ends(
    epoch: int,
    best: int | None,
    satisfied: float,
    reached: bool,
    stop: bool,
    patience: int | None,
    expected: Status | None,
) -> None:
    selected = None if best is None else candidate(best, satisfied, 1.0)
    state = RunState(planned=10, epoch=epoch, reached=reached, best=selected)
    found = state.terminate(Validation(stop=stop, patience=patience), epochs=10, warmup=2)
    assert found is expected


def test_a_state_is_what_a_checkpoint_holds_of_it() -> None:
    for best in (None, candidate(3, 0.5, 1.0)):
        state = RunState(planned=10, epoch=4, step=2, steps=30, round_epochs=1, reached=True, best=best)
        assert RunState.of(json.loads(json.dumps(state.to_dict()))) == state


def test_a_state_of_another_version_is_refused() -> None:
    stored = RunState(planned=10).to_dict()
    with pytest.raises(CheckpointError, match="version"):
        RunState.of({**stored, "laps": 3})
    with pytest.raises(CheckpointError, match="version"):
        RunState.of({"epoch": 3})
