from samplewise.training.selection import Selection, better


def candidate(epoch: int, satisfied: float, objective: float, violation: float = 0.0) -> Selection:
    return Selection(epoch, "train", 0.9, satisfied, violation, objective)


def test_a_feasible_epoch_beats_any_other() -> None:
    assert better(candidate(2, 0.90, 5.0), candidate(1, 0.89, 1.0))
    assert not better(candidate(2, 0.89, 1.0), candidate(1, 0.90, 5.0))


def test_among_feasible_ones_the_objective_decides() -> None:
    assert better(candidate(2, 0.91, 1.0), candidate(1, 0.99, 2.0))
    assert not better(candidate(2, 0.99, 1.0), candidate(1, 0.91, 1.0)), "the earlier stays on a tie"


def test_among_infeasible_ones_feasibility_decides() -> None:
    assert better(candidate(2, 0.5, 9.0), candidate(1, 0.4, 1.0))
    assert better(candidate(2, 0.5, 9.0, violation=0.1), candidate(1, 0.5, 1.0, violation=0.2))


def test_the_reason_is_recorded() -> None:
    assert better(candidate(1, 0.1, 1.0), None)
    assert "no audited epoch reached the target of 90.00%" in candidate(3, 0.5, 1.0).reason
    assert "best objective on train" in candidate(3, 0.95, 1.0).to_dict()["reason"]
