from pathlib import Path

import pytest

from picture_folders import chest_names, row, write_chest, write_pictures, write_table
from samplewise.errors import DataError
from studies.pictures import find
from studies.pictures.listing import read_rows


def names(root: Path) -> list[str]:
    return [picture.name for picture in find(root).pictures]


def test_any_folder_is_searched_to_the_bottom_and_sorted(tmp_path: Path) -> None:
    write_pictures(tmp_path, ["b.png", "a/z.JPG", "a/b/c.tiff", "d.bmp", "e.jpeg", "f.tif"])
    write_pictures(tmp_path, [".hidden.png", ".cache/g.png"])
    (tmp_path / "notes.txt").write_text("no picture")
    assert names(tmp_path) == ["a/b/c.tiff", "a/z.JPG", "b.png", "d.bmp", "e.jpeg", "f.tif"]


def test_a_picture_is_its_own_patient_unless_its_name_is_official(tmp_path: Path) -> None:
    write_pictures(tmp_path, ["x/cat.png", "00000007_000.png", "00000007_001.png", "0007_001.png"])
    assert {p.name: p.patient for p in find(tmp_path).pictures} == {
        "x/cat.png": "x/cat.png",
        "00000007_000.png": "00000007",
        "00000007_001.png": "00000007",
        "0007_001.png": "0007_001.png",
    }


@pytest.mark.parametrize("given", ["", "px256", "px256/images"])
def test_the_table_is_found_from_every_level(tmp_path: Path, given: str) -> None:
    write_chest(tmp_path, images="px256/images")
    listing = find(tmp_path / given)
    assert {p.name: "|".join(p.findings) or "No Finding" for p in listing.pictures} == chest_names()
    assert listing.pictures[3].patient == "00000002"
    assert (listing.absent, listing.unlisted) == ((), ())


def test_a_relative_folder_has_parents_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_chest(tmp_path)
    monkeypatch.chdir(tmp_path / "images")
    assert find(".", labels=True).table == tmp_path / "Data_Entry_2017_v2020.csv"


def test_the_twelve_official_folders_are_one_set(tmp_path: Path) -> None:
    chest = list(chest_names())
    for number in range(12):
        write_pictures(tmp_path / f"images_{number + 1:03d}" / "images", chest[2 * number : 2 * number + 2])
    write_table(tmp_path, map(row, chest), name="Data_Entry_2017.csv")
    assert names(tmp_path) == chest


def test_the_newer_of_two_tables_counts(tmp_path: Path) -> None:
    write_chest(tmp_path)
    write_table(tmp_path, ["old"], name="Data_Entry_2017.csv")
    assert find(tmp_path).table == tmp_path / "Data_Entry_2017_v2020.csv"


def test_other_pictures_below_the_table_are_a_plain_folder(tmp_path: Path) -> None:
    write_chest(tmp_path)
    write_pictures(tmp_path / "mine", ["cat.png"])
    listing = find(tmp_path / "mine")
    assert listing.table is None
    assert [p.name for p in listing.pictures] == ["cat.png"]
    assert find(tmp_path / "images", labels=False).table is None


def test_rows_without_files_and_files_without_rows_are_told_apart(tmp_path: Path) -> None:
    write_pictures(tmp_path / "images", ["00000001_000.png", "00000002_000.png"])
    write_table(tmp_path, map(row, ["00000001_000.png", "00000003_000.png"]))
    listing = find(tmp_path)
    assert [p.name for p in listing.pictures] == ["00000001_000.png"]
    assert (listing.unlisted, listing.absent) == (("00000002_000.png",), ("00000003_000",))


def test_a_name_in_two_folders_is_refused_and_both_are_named(tmp_path: Path) -> None:
    write_chest(tmp_path, images="px128/images")
    write_pictures(tmp_path / "px256/images", list(chest_names())[:4])
    with pytest.raises(DataError, match=r"4 names come twice \(00000001_000, .* and 1 more\), in .*px128.*px256"):
        find(tmp_path)


def test_folders_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="nowhere"):
        find(tmp_path / "nowhere")
    with pytest.raises(DataError, match="file: no such folder"):
        find(tmp_path / "file")
    with pytest.raises(DataError, match="empty: holds no pictures"):
        find(tmp_path / "empty")
    write_pictures(tmp_path / "plain", ["cat.png"])
    with pytest.raises(DataError, match=r"plain: no Data_Entry_2017\*\.csv there or in the two folders above"):
        find(tmp_path / "plain", labels=True)


def test_a_link_to_a_folder_above_does_not_go_round(tmp_path: Path) -> None:
    write_pictures(tmp_path / "a", ["x.png"])
    write_pictures(tmp_path / "elsewhere" / "disk", ["y.png"])
    (tmp_path / "a" / "up").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "disk").symlink_to(tmp_path / "elsewhere" / "disk")
    assert names(tmp_path / "a") == ["disk/y.png", "x.png"]


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    write_pictures(tmp_path, ["line\nbreak.png"])
    with pytest.raises(DataError, match="1 names are not plain text"):
        find(tmp_path)


def test_the_fingerprint_is_of_the_pictures_and_not_of_the_place(tmp_path: Path) -> None:
    seen = {find(write_chest(tmp_path / "one")).fingerprint()}
    assert find(write_chest(tmp_path / "two")).fingerprint() in seen
    chest = chest_names()
    first = next(iter(chest))
    changes = [
        {**chest, first: "Mass"},
        {name: findings for name, findings in chest.items() if name != first},
        {**chest, "00000099_000.png": "Mass"},
    ]
    for number, changed in enumerate(changes):
        seen.add(find(write_chest(tmp_path / str(number), changed)).fingerprint())
    (tmp_path / "two" / "images" / first).write_bytes(b"shorter")
    seen.add(find(tmp_path / "two").fingerprint())
    seen.add(find(tmp_path / "one", labels=False).fingerprint())
    assert len(seen) == 6


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        (
            ["00000001_000.png,Cardiomegalie|Flu,0,1", "00000001_001.png,Cardiomegalie,1,1"],
            r"'Cardiomegalie' \(rows: 2\), 'Flu' \(rows: 1\).*Did you mean 'Cardiomegaly'",
        ),
        (["00000001_000.png,,0,1"], r"'' \(rows: 1\)"),
        (["00000001_000.png,Mass,0,1", "00000001_000.png,Mass,0,1"], r"line 3"),
        (["00000001_000.png,Mass,0,2"], "00000002"),
        (["00000001_000.png,Mass,0,one"], "'one'"),
        (["00000001_000.png,Mass"], "Patient ID, got ''"),
        (["00000001_000.png,No Finding|Mass,0,1"], "'No Finding'"),
    ],
)
def test_a_table_with_a_mistake_is_refused(tmp_path: Path, rows: list[str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read_rows(write_table(tmp_path, rows))


def test_a_file_that_is_not_the_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Finding Labels, Patient ID"):
        read_rows(write_table(tmp_path, [], header="Image Index,Labels"))
    path = tmp_path / "binary.csv"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(DataError, match="CSV"):
        read_rows(path)


def test_a_table_from_a_spreadsheet_is_read_too(tmp_path: Path) -> None:
    path = write_table(tmp_path, [row("00000001_000.png", "Mass | Hernia")])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_rows(path) == {"00000001_000": ("00000001", ("Mass", "Hernia"))}
