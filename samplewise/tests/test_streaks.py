import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.errors import ConfigurationError
from samplewise.history import Streaks


def audit(values: list[float]) -> sw.Audit:
    problem = sw.Problem(lambda model, batch: (batch[0], {"x": batch[0]}), [sw.AtMost("x", 1.0)])
    return sw.audit(problem, nn.Identity(), TensorDataset(torch.tensor(values)))


def test_only_those_violated_in_every_round_stay() -> None:
    streaks = Streaks()
    for values in ([2.0, 2.0, 0.0, 3.0], [2.0, 0.0, 5.0, 4.0], [1.5, 2.0, 5.0, 6.0]):
        streaks.update(audit(values))
    assert streaks.persistent("x", rounds=3) == [(3, 5.0), (0, 0.5)]
    assert [number for number, _ in streaks.persistent("x", rounds=2)] == [3, 2, 0]
    assert [number for number, _ in streaks.persistent("x", rounds=1)] == [3, 2, 1, 0]


def test_state_goes_through_a_checkpoint() -> None:
    streaks, again = Streaks(), Streaks()
    streaks.update(audit([2.0, 0.0]))
    again.load_state_dict(streaks.state_dict(), samples=2)
    again.update(audit([2.0, 2.0]))
    assert again.persistent("x", rounds=2) == [(0, 1.0)]


def test_more_rounds_than_audits_is_an_error() -> None:
    streaks = Streaks()
    with pytest.raises(ConfigurationError, match="no constraint is called 'x'"):
        streaks.persistent("x", rounds=1)
    streaks.update(audit([2.0]))
    with pytest.raises(ConfigurationError, match="from 1 to 1"):
        streaks.persistent("x", rounds=2)
