import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from bad_commands import refused
from picture_folders import chest_names, noise, row, save, write_chest, write_pictures, write_table
from studies.commands import main
from studies.pictures import Store


def command(data: Path, out: Path, *arguments: str) -> list[str]:
    return ["chest", "prepare", "--data", str(data), "--out", str(out), "--size", "8", *arguments]


def prepare(data: Path, out: Path, *arguments: str) -> int:
    return main(command(data, out, *arguments))


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """120 pictures, one of them damaged and two in colour, and two rows without a file."""
    names = chest_names(60)
    folder = write_chest(tmp_path / "in", names)
    write_table(
        folder, [row(n, f) for n, f in {**names, "00000098_000.png": "Mass", "00000099_000.png": "Mass"}.items()]
    )
    (folder / "images" / "00000005_000.png").write_bytes(b"\x89PNG broken")
    for seed, name in enumerate(("00000006_000.png", "00000007_000.png"), start=1000):
        Image.fromarray(noise(seed)).convert("RGBA").save(folder / "images" / name)
    return folder


def test_the_summary_counts_all_there_is_to_know(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert prepare(mixed, out, "--json", "--workers", "1", "--seed", "3") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["images"], summary["patients"], summary["size"]) == (119, 60, 8)
    assert summary["split"] == {"rule": "patients", "seed": 3}
    assert {name: part["patients"] for name, part in summary["parts"].items()} == {
        "train": 42,
        "validation": 9,
        "test": 9,
    }
    assert list(summary["skipped"]) == ["00000005_000.png"]
    assert summary["converted"] == {"RGBA": 2}
    assert (summary["rows_without_file"], summary["rows_without_file_first"][0]) == (2, "00000098_000")
    shown = [f for name, f in chest_names(60).items() if name != "00000005_000.png"]
    for label in ("Cardiomegaly", "Effusion", "Hernia"):
        assert sum(p["labels"][label] for p in summary["parts"].values()) == sum(label in f for f in shown)
    assert sum(p["no_finding"] for p in summary["parts"].values()) == shown.count("No Finding")
    assert len(Store.open(out).select("test")) == summary["parts"]["test"]["images"]


def test_the_summary_for_people_says_the_same(mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(mixed, tmp_path / "out") == 0
    shown = capsys.readouterr()
    assert "119" in shown.out.splitlines()[0]
    assert re.search(r"\| patients +\| 42 +\| 9 +\| 9 +\|\n", shown.out)
    for token in ("00000005_000.png", "2 RGBA", "Data_Entry_2017_v2020.csv", "00000098_000", "00000099_000"):
        assert token in shown.out
    lines = shown.err.splitlines()
    assert "0 of 120" in lines[0]
    assert "120 of 120" in lines[-2]


def test_a_finished_store_is_only_used_again_with_resume(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert prepare(mixed, out) == 0
    summary = capsys.readouterr().out
    assert "--resume" in refused(capsys, *command(mixed, out))
    assert "seed 0, not" in refused(capsys, *command(mixed, out, "--resume", "--seed", "1"))
    assert prepare(mixed / "images", out, "--resume") == 0
    assert capsys.readouterr().out == summary


def test_bad_input_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, chest = tmp_path / "out", write_chest(tmp_path / "chest")
    plain = write_pictures(tmp_path / "plain", ["cat.png"])
    assert "Data_Entry_2017*.csv" in refused(capsys, *command(plain, out))
    assert "test_list.txt" in refused(capsys, *command(chest, out, "--split", "official"))
    save(chest / "copy" / "00000077_000.png", noise(0))
    assert "00000077_000.png (no row in" in refused(capsys, *command(chest, out))
    assert not out.exists()
    (chest / "copy" / "00000077_000.png").unlink()
    (chest / "images" / "00000001_000.png").write_bytes(b"\xff\xd8 broken")
    assert "1 of 24 pictures" in refused(capsys, *command(chest, out), told_before=True)
    (out / "mine.txt").write_text("in the way")
    assert "is not a store" in refused(capsys, *command(chest, out))


@pytest.mark.parametrize("words", [("chest",), ("chest", "--help"), ("chest", "prepare", "--help")])
def test_help_shows_an_example(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert main(words) == 0
    assert "Example: studies chest prepare --data" in re.sub(r"\s+", " ", capsys.readouterr().out)


def test_a_store_that_a_kill_left_is_begun_anew_with_a_line(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "images.u8").write_bytes(bytes(1000))
    assert prepare(mixed, out) == 0
    assert "anew" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["images.u8", "index.json", "split.json"]


def test_a_pipe_among_the_images_is_passed_over(mixed: Path, tmp_path: Path) -> None:
    os.mkfifo(mixed / "images" / "00000099_000.png")
    started = [sys.executable, "-m", "studies", *command(mixed, tmp_path / "out")]
    ran = subprocess.run(started, timeout=300, check=True, capture_output=True, text=True)
    assert "119 images of 60 patients" in ran.stdout
