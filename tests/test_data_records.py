import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from samplewise.data.records import SettingsFile, decoding, read_json
from samplewise.errors import CheckpointError, DataError, RecordError


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


def test_a_record_is_an_object_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text('{"format": "split-1", "seed": 3}')
    assert read_json(path, "a split") == {"format": "split-1", "seed": 3}
    assert read_json(path, "a split", format="split-1") == {"seed": 3}
    with pytest.raises(RecordError, match=r"split\.json: is not a split of this version of the library \(split-2\)"):
        read_json(path, "a split", format="split-2")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"format": ', "Expecting value"),
        (b"[1]", "expected an object, got list"),
        (b'{"x": NaN}', "NaN is not strict JSON"),
        (b"\xff\xfe\x00", "codec can't decode"),
        (b'{"x": ' + b"[" * 100_000, "recursion depth"),
        (b'{"x": ' + b"9" * 100_000 + b"}", "Exceeds the limit"),
    ],
)
def test_a_file_that_is_torn_or_foreign_is_one_error(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(RecordError, match=f"x\\.json: cannot be read as a split: .*{why}") as found:
        read_json(tmp_path / "x.json", "a split")
    assert isinstance(found.value, CheckpointError)
    assert isinstance(found.value, DataError)


def test_a_missing_file_and_a_folder_are_told_in_the_words_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be read as a split: No such file or directory"):
        read_json(tmp_path / "nowhere", "a split")
    with pytest.raises(RecordError, match="cannot be read as a split: Is a directory"):
        read_json(tmp_path, "a split")


def test_errors_of_our_own_pass_and_no_more_is_read_than_allowed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^no patients$"), decoding(tmp_path, "a split"):
        raise DataError("no patients")
    (tmp_path / "x.json").write_text("{}" + " " * 100)
    assert read_json(tmp_path / "x.json", "a split", largest=2) == {}
