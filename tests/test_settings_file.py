import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from samplewise.errors import CheckpointError, DataError
from samplewise.settings_file import SettingsFile


@dataclass(frozen=True)
class Kind:
    size: int
    rate: float = 0.5


FILE = SettingsFile("run.json", "test-1", Kind, "testing")


def test_what_was_added_later_has_its_default_in_older_runs(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": "test-1", "settings": {"size": 3}}')
    assert FILE.read(tmp_path) == Kind(3)
    FILE.open(tmp_path, Kind(3), resume=True)
    with pytest.raises(CheckpointError, match=r"rate 0\.5 there, 0\.1 here"):
        FILE.open(tmp_path, Kind(3, 0.1), resume=True)


@pytest.mark.parametrize("settings", [{"rate": 0.1}, {"size": 3, "rat": 0.1}, [3], None])
def test_what_is_missing_or_unknown_is_refused(settings: object, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": "test-1", "settings": settings}))
    with pytest.raises(CheckpointError, match="not a run of this version of testing"):
        FILE.read(tmp_path)


def test_a_folder_is_that_of_one_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no run of testing"):
        FILE.read(tmp_path)
    FILE.open(tmp_path / "new", Kind(3), resume=False)
    assert FILE.read(tmp_path / "new") == Kind(3)
    with pytest.raises(CheckpointError, match="add --resume"):
        FILE.open(tmp_path / "new", Kind(3), resume=False)
