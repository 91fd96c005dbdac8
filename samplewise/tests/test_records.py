"""JSON files of runs, and dataclasses of what they say."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from samplewise.errors import CheckpointError, DataError, RecordError
from samplewise.storage.records import decoding, from_plain, read_json


def test_a_record_is_an_object_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "split.json"
    path.write_text('{"format": "split-1", "seed": 3}')
    assert read_json(path, "a split") == {"format": "split-1", "seed": 3}
    assert read_json(path, "a split", format="split-1") == {"seed": 3}
    with pytest.raises(RecordError, match=r"split\.json.*split-2"):
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
    with pytest.raises(RecordError, match=f"x\\.json: .*{why}") as found:
        read_json(tmp_path / "x.json", "a split")
    assert isinstance(found.value, CheckpointError)
    assert isinstance(found.value, DataError)


def test_a_missing_file_and_a_folder_are_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="No such file"):
        read_json(tmp_path / "nowhere", "a split")
    with pytest.raises(RecordError, match="got a folder"):
        read_json(tmp_path, "a split")


def test_errors_of_our_own_pass(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^no patients$"), decoding(tmp_path, "a split"):
        raise DataError("no patients")


@dataclass(frozen=True)
class Part:
    name: str
    size: int
    rate: float | None = 0.5
    widths: tuple[int, ...] = ()
    shares: Mapping[str, float] | None = None


def test_a_dataclass_is_made_of_what_json_says() -> None:
    stored = {"size": 3, "rate": None, "widths": [4, 5], "shares": {"a": 1}, "unknown": 0}
    assert from_plain(Part, stored, name="x") == Part("x", 3, None, (4, 5), {"a": 1.0})
    assert from_plain(Part, {"name": "none", "size": 3}) == Part("none", 3)


@pytest.mark.parametrize(
    ("stored", "complaint"),
    [
        ({"size": "3"}, "a whole number as size"),
        ({"size": True}, "a whole number as size"),
        ({"size": 3, "rate": "none"}, "a finite number as rate"),
        ({"size": 3, "widths": 4}, "a list as widths"),
        ({"size": 3, "shares": {"a": "b"}}, "a finite number as shares/a"),
    ],
)
def test_a_value_of_another_type_is_refused(stored: Mapping[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"expected {complaint}, got"):
        from_plain(Part, stored, name="x")
