import json
from dataclasses import asdict, replace

import pytest

from samplewise.audits import selection_loss
from samplewise.errors import CheckpointError
from samplewise.training.position import Position, Selection, Status, better, terminate


def candidate(epoch: int, satisfied: float, objective: float, violation: float = 0.0) -> Selection:
    violated = round(100 * (1 - satisfied))
    return Selection(epoch, "train", 0.9, satisfied, objective, violated, violated, violation)


def test_a_feasible_epoch_beats_any_other() -> None:
    assert better(candidate(2, 0.90, 5.0), candidate(1, 0.89, 1.0))
    assert not better(candidate(2, 0.89, 1.0), candidate(1, 0.90, 5.0))


def test_among_feasible_ones_the_objective_decides() -> None:
    assert better(candidate(2, 0.91, 1.0), candidate(1, 0.99, 2.0))
    assert not better(candidate(2, 0.99, 1.0), candidate(1, 0.91, 1.0)), "the earlier stays on a tie"


def test_among_infeasible_ones_feasibility_decides() -> None:
    assert better(candidate(2, 0.5, 9.0), candidate(1, 0.4, 1.0))
    assert better(candidate(2, 0.5, 9.0, violation=0.1), candidate(1, 0.5, 1.0, violation=0.2))


def test_under_another_target_an_epoch_ranks_as_if_it_had_been_audited_under_it() -> None:
    many, few = candidate(1, 0.91, 1.0, violation=0.2), candidate(2, 0.985, 5.0, violation=0.1)
    assert better(many, few), "both meet 90%"
    stricter = [replace(each, target=0.99) for each in (many, few)]
    assert [each.feasible for each in stricter] == [False, False]
    assert better(stricter[1], stricter[0]), "9 violated samples against 1 or 2"
    assert stricter[0].loss == selection_loss(False, 1.0, 9, 0.2)
    assert replace(candidate(1, 0.5, 3.0), target=0.4).loss == 3.0


def test_the_reason_is_recorded() -> None:
    assert better(candidate(1, 0.1, 1.0), None)
    assert "no audited epoch reached the target of 90.00%" in candidate(3, 0.5, 1.0).reason
    assert "best objective on train" in candidate(3, 0.95, 1.0).to_dict()["reason"]


REACHED, PATIENCE, FEASIBLE, UNFINISHED = (
    Status.TARGET_REACHED,
    Status.NO_LONGER_BETTER,
    Status.FEASIBLE,
    Status.UNFINISHED,
)
GOOD, BAD = 0.95, 0.5
"""Shares of samples satisfied: with a target of 0.9 the one is feasible, the other is not."""


@pytest.mark.parametrize(
    ("epoch", "best", "satisfied", "reached", "stop_at_target", "patience", "expected"),
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
    stop_at_target: bool,
    patience: int | None,
    expected: Status | None,
) -> None:
    selection = None if best is None else candidate(best, satisfied, 1.0)
    position = Position(planned=10, epoch=epoch, reached=reached, best=selection)
    found = terminate(position, epochs=10, warmup=2, stop_at_target=stop_at_target, patience=patience)
    assert found is expected


def test_a_position_is_what_a_checkpoint_holds_of_it() -> None:
    for best in (None, candidate(3, 0.5, 1.0)):
        position = Position(planned=10, epoch=4, step=2, steps=30, round_epochs=1, reached=True, best=best)
        assert Position.of(json.loads(json.dumps(asdict(position)))) == position


def test_a_position_of_another_version_is_refused() -> None:
    stored = asdict(Position(planned=10))
    with pytest.raises(CheckpointError, match="another version"):
        Position.of({**stored, "laps": 3})
    with pytest.raises(CheckpointError, match="another version"):
        Position.of({"epoch": 3})
