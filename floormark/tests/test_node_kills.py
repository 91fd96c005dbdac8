"""Killed at any moment, the node loses no image and delivers none as two instances."""

from pathlib import Path

import pytest
from pydicom import dcmread

from dicom_peers import needs
from floormark.register import Register
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
    found = through_orthanc(tmp_path, 1000, 50)
    assert (found["images"], found["instances"]) == (1000, 1000)
    assert (found["lost"], found["twice"], found["foreign"]) == (0, 0, 0)
    assert found["kills_in_the_middle"] >= 45


@needs("storescu", "storescp")
def test_with_a_register_every_image_keeps_the_identifier_that_it_got_first(tmp_path: Path) -> None:
    found = through_dcmtk(tmp_path, 100, 10, "--register", tmp_path / "register.db")
    assert (found["images"], found["instances"]) == (100, 100)
    assert (found["lost"], found["twice"], found["foreign"]) == (0, 0, 0)
    register = Register.open(tmp_path / "register.db", create=False)
    written = [record.row for record in register.records() if record.state == "written"]
    arrived = {str(dcmread(path).SOPInstanceUID) for path in (tmp_path / "archive").iterdir()}
    assert {row.new_uid for row in written} == arrived
    assert len(written) == 100
    assert not register.check().problems
