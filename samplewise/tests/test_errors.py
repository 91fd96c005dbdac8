import inspect
import pickle

import numpy as np
import pytest

from samplewise import errors
from samplewise.errors import (
    ConfigurationError,
    MissingMeasureError,
    SamplewiseError,
    did_you_mean,
    finite_number,
    whole_number,
)

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, SamplewiseError) and found is not SamplewiseError
]


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_is_also_a_builtin_one(error: type[SamplewiseError]) -> None:
    builtin = [base for base in error.__mro__ if base.__module__ == "builtins" and base not in (Exception, object)]
    assert {base.__name__ for base in builtin} - {"BaseException"}


@pytest.mark.parametrize("error", CLASSES)
def test_errors_print_their_message_as_it_is_and_survive_pickling(error: type[SamplewiseError]) -> None:
    raised = pickle.loads(pickle.dumps(error("expected 'a'\ngot 'b'")))
    assert type(raised) is error
    assert str(raised) == "expected 'a'\ngot 'b'"


def test_a_missing_measure_is_caught_as_key_error() -> None:
    with pytest.raises(KeyError, match="mse"):
        raise MissingMeasureError("mse")


def test_did_you_mean_finds_the_nearest_name_or_nothing() -> None:
    assert did_you_mean("reconstuction", ["reconstruction", "psnr"]) == " Did you mean 'reconstruction'?"
    assert did_you_mean("zzz", ["reconstruction", "psnr"]) == ""
    assert did_you_mean("x", []) == ""


@pytest.mark.parametrize("value", [1, 1.5, np.float32(0.5), np.int64(3)])
def test_finite_number_takes_any_real_number_as_float(value: float) -> None:
    found = finite_number(value, "bound")
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize(
    "value",
    [True, None, "1", float("nan"), float("inf"), 1j, 10**400, -(10**5000)],
    ids=lambda value: type(value).__name__,
)
def test_finite_number_refuses_the_rest(value: object) -> None:
    with pytest.raises(ConfigurationError, match="bound"):
        finite_number(value, "bound")


@pytest.mark.parametrize("value", [3, 4, 2**70])
def test_whole_number_takes_what_is_large_enough(value: int) -> None:
    assert whole_number(value, "rounds", 3) == value


@pytest.mark.parametrize("value", [2, -1, 3.0, "3", None, True])
def test_whole_number_refuses_the_rest(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"rounds .* >= 3"):
        whole_number(value, "rounds", 3)
