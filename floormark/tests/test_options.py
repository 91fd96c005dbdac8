"""The options of an embedding: one list for Python, for files, for folders and for the command."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from floormark import ConfigurationError
from floormark.cli import main
from floormark.options import EmbedOptions, OptionsByName

NAMES = [field.name for field in fields(EmbedOptions)]


def test_python_and_the_command_have_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    typed = {name: hint.__forward_arg__ for name, hint in OptionsByName.__annotations__.items()}
    assert typed == {field.name: field.type for field in fields(EmbedOptions)}
    assert main(["embed", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in told for name in NAMES)
    assert EmbedOptions().settings().keys() == set(NAMES)


def test_texts_are_read_as_the_options_are() -> None:
    found = EmbedOptions.parsed({"psnr": "41.5", "protect": "1, 2,3,4", "max_difference": "7", "replace": True})
    assert found.settings() == {"psnr": 41.5, "protect": "1,2,3,4", "max_difference": 7.0, "replace": True}
    assert EmbedOptions.parsed({"psnr": None, "protect": None, "replace": False}).psnr == 45.0
    mask = np.zeros((4, 5), np.bool_)
    region = EmbedOptions(protect=mask).region
    assert region is not None
    assert EmbedOptions(protect=region).settings() == EmbedOptions(protect=mask).settings()


@pytest.mark.parametrize(
    "wrong",
    [
        {"psnr": "many"},
        {"psnr": "nan"},
        {"psnr": "7"},
        {"max_difference": "0"},
        {"max_difference": "x"},
        {"protect": "1"},
    ],
)
def test_texts_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"expected .* got"):
        EmbedOptions.parsed(wrong)
