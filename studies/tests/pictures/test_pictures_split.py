import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplewise.errors import CheckpointError, DataError
from studies.pictures import PARTS, Split
from studies.pictures.split import merged_patients

PATIENTS = st.lists(st.integers(0, 60).map("{:08d}".format), min_size=3, max_size=150).filter(lambda p: len(set(p)) > 2)


def named(patients: list[str]) -> list[str]:
    return [f"{patient}_{number:03d}.png" for number, patient in enumerate(patients)]


def sides(split: Split, names: list[str], patients: list[str]) -> dict[str, set[str]]:
    """The parts that each patient is found in, looked up the slow way."""
    return {
        patient: {
            part
            for part in PARTS
            for n, p in zip(names, patients, strict=True)
            if p == patient and n in split.part(part)
        }
        for patient in patients
    }


@given(PATIENTS, st.integers(0, 5))
def test_no_patient_is_on_two_sides_and_no_picture_is_lost(patients: list[str], seed: int) -> None:
    names = named(patients)
    split = Split.by_patient(names, patients, seed=seed)
    assert all(len(found) == 1 for found in sides(split, names, patients).values())
    assert sorted(split.train + split.validation + split.test) == sorted(names)
    assert split.train
    assert split.validation
    assert split.test


@given(PATIENTS, st.randoms(use_true_random=False))
def test_the_order_of_the_files_does_not_matter(patients: list[str], random: Any) -> None:
    names = named(patients)
    pairs = list(zip(names, patients, strict=True))
    random.shuffle(pairs)
    mixed_names, mixed_patients = zip(*pairs, strict=True)
    assert Split.by_patient(mixed_names, mixed_patients) == Split.by_patient(names, patients)


def test_fractions_are_of_the_patients() -> None:
    patients = [f"{number:08d}" for number in range(1000)]
    split = Split.by_patient(named(patients), patients)
    assert [len(split.part(part)) for part in PARTS] == [700, 150, 150]


def test_a_seed_gives_the_same_split_in_every_version() -> None:
    patients = [f"{number:08d}" for number in range(10)]
    split = Split.by_patient(patients, patients, seed=1)
    assert split.validation == ("00000003", "00000009")
    assert split.test == ("00000006", "00000007")
    assert Split.by_patient(patients, patients, seed=2) != split


def test_patients_who_join_later_move_few_others() -> None:
    patients = [f"{number:08d}" for number in range(1000)]
    before = Split.by_patient(patients[:950], patients[:950])
    after = Split.by_patient(patients, patients)
    assert len(set(before.test) & set(after.test)) > 0.9 * len(before.test)


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(DataError, match="3 patients"):
        Split.by_patient(["a", "b", "c"], ["x", "y", "y"])


def official(patients: list[str], tested: set[str], seed: int = 0) -> Split:
    names = named(patients)
    stems = {name.removesuffix(".png") for name in names}
    test = {stem for stem in stems if stem[:8] in tested}
    return Split.official(names, patients, train_val=stems - test | {"99999999_000"}, test=test, seed=seed)


@given(PATIENTS, st.integers(0, 5))
def test_the_official_test_list_is_the_test_part(patients: list[str], seed: int) -> None:
    tested = {min(patients)}
    split = official(patients, tested, seed)
    assert {name[:8] for name in split.test} == tested
    assert all(len(found) == 1 for found in sides(split, named(patients), patients).values())
    assert sorted(split.train + split.validation + split.test) == sorted(named(patients))
    assert split.validation


def test_official_lists_that_do_not_fit_are_refused() -> None:
    names, patients = ["a_0.png", "a_1.png", "b_0.png", "c_0.png"], ["a", "a", "b", "c"]
    with pytest.raises(DataError, match="both official lists: a"):
        Split.official(names, patients, train_val={"a_0", "b_0", "c_0"}, test={"a_1"})
    with pytest.raises(DataError, match=r"neither .*: c_0"):
        Split.official(names, patients, train_val={"a_0", "a_1"}, test={"b_0"})
    with pytest.raises(DataError, match="0 for test"):
        Split.official(names, patients, train_val={"a_0", "a_1", "b_0", "c_0"}, test={"z"})


NAMES = ["a0", "a1", "b0", "c0", "d0"]
OWNERS = ["a", "a", "b", "c", "d"]


def test_a_split_comes_back_from_its_file(tmp_path: Path) -> None:
    split = Split.by_patient(NAMES, OWNERS, seed=3)
    split.write(tmp_path / "split.json")
    assert Split.read(tmp_path / "split.json", NAMES, OWNERS) == split


def parts(train: list[str], validation: list[str], test: list[str]) -> Callable[[dict[str, Any]], Any]:
    return lambda stored: {**stored, "train": train, "validation": validation, "test": test}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (parts(["a0", "b0", "c0"], ["a1"], ["d0"]), "patient a"),
        (parts(["a0", "a1", "b0"], ["c0"], []), ": d0"),
        (parts(["a0", "a1", "b0", "x"], ["c0"], ["d0"]), ": x"),
        (parts(["a0", "a1", "a1", "b0"], ["c0"], ["d0"]), ": a1"),
        (lambda stored: {**stored, "format": "other"}, "version"),
        (lambda stored: [stored], "version"),
        (lambda stored: {key: stored[key] for key in stored if key != "test"}, "cannot be read as a split"),
        (lambda stored: {**stored, "rule": "random"}, "cannot be read as a split"),
        (lambda stored: {**stored, "train": 7}, "cannot be read as a split"),
    ],
)
def test_a_split_of_something_else_is_refused(tmp_path: Path, change: Any, complaint: str) -> None:
    path = tmp_path / "split.json"
    Split.by_patient(NAMES, OWNERS).write(path)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(CheckpointError, match=complaint):
        Split.read(path, NAMES, OWNERS)


def test_a_split_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "torn.json").write_text('{"format": "samplew')
    with pytest.raises(CheckpointError, match="cannot be read as a split"):
        Split.read(tmp_path / "torn.json", NAMES, OWNERS)
    with pytest.raises(DataError, match="a split: No such file"):
        Split.read(tmp_path / "none.json", NAMES, OWNERS)


def test_patients_who_share_a_picture_are_kin_also_over_others() -> None:
    assert merged_patients(["d", "a", "b", "c", "b", "e"], ["5", "1", "2", "3", "1", "3"]) == [
        "d",
        "a",
        "a",
        "c",
        "a",
        "c",
    ]
    assert merged_patients(["c", "b", "b", "a"], ["1", "1", "2", "2"]) == ["a"] * 4
