"""Two processes of torchrun: one decision for both, and a clear word where they do not work together."""

import json
from typing import Any

import pytest
from run_torchrun import write_report

from forked import Forked, torchrun


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("torchrun")
    code, _, err = Forked(torchrun, write_report, folder, told=folder / "told").finish()
    assert code == 0, err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_without_a_fabric_the_cause_is_named(reports: list[dict[str, Any]]) -> None:
    for report in reports:
        assert report["no fabric"].startswith("ConfigurationError: torchrun started this process, but no fabric= was")
        assert "fabric.launch()" in report["no fabric"]


def test_the_first_process_decides_for_all_when_a_round_ends(reports: list[dict[str, Any]]) -> None:
    first, second = (report["together"] for report in reports)
    assert first["rounds"] == [0, 1, 2], "the first process found the rule met at once"
    assert first == second


def test_an_audit_that_one_process_calls_alone_says_that_all_must(reports: list[dict[str, Any]]) -> None:
    said = reports[0]["alone"]
    assert said.startswith("ProcessesError: the other 1 processes did not answer")
    assert "must be called by every process" in said
