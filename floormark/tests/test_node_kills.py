"""Killed at any moment, the node loses no image and delivers none as two instances."""

from pathlib import Path

import pytest

from dicom_peers import needs
from node_kills import through_dcmtk, through_orthanc

pytestmark = pytest.mark.slow


@needs("storescu", "storescp")
def test_none_lost_and_none_twice_between_dcmtk(tmp_path: Path) -> None:
    found = through_dcmtk(tmp_path, 1000, 50)
    assert (found["images"], found["instances"]) == (1000, 1000)
    assert (found["lost"], found["twice"], found["foreign"]) == (0, 0, 0)
    assert found["kills_in_the_middle"] >= 45


@needs("Orthanc")
def test_none_lost_and_none_twice_between_orthancs(tmp_path: Path) -> None:
    found = through_orthanc(tmp_path, 200, 10)
    assert (found["images"], found["instances"]) == (200, 200)
    assert (found["lost"], found["twice"], found["foreign"]) == (0, 0, 0)
    assert found["kills_in_the_middle"] >= 8
