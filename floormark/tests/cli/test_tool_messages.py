"""A message for each file of a folder, and messages read by several processes."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dicom_files import make
from floormark import cli
from natural_images import natural_image

GREY = natural_image(height=256, width=264)
PATIENTS = {"a.dcm": "PAT-1", "sub/b.dcm": "PAT-2"}


def main(*arguments: str | Path) -> int:
    return cli.main(list(map(str, arguments)))


def embed(source: Path, out: Path, *arguments: str | Path) -> int:
    return main("embed", source, out, "--psnr", "40", "--workers", "1", *arguments)


def messages(capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str | Path) -> dict[str, Any]:
    capsys.readouterr()
    main("extract", folder, "--json", *arguments)
    return {name: found["message"] for name, found in json.loads(capsys.readouterr().out).items()}


def patient(path: Path, **attributes: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return make(path, GREY, **attributes)


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    for name, identifier in PATIENTS.items():
        patient(tmp_path / "scans" / name, PatientID=identifier, PhotometricInterpretation="MONOCHROME1")
    return tmp_path / "scans"


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    return path


@pytest.mark.usefixtures("forked_workers")
def test_each_file_gets_the_text_of_its_row(capsys: pytest.CaptureFixture[str], scans: Path, tmp_path: Path) -> None:
    Image.fromarray(GREY).save(scans / "photo, old.jpg")
    rows = table(tmp_path, '\ufefffile,text\r\nsub/b.dcm,"two, zwö"\r\n./a.dcm,one\r\n\r\n"photo, old.jpg",three\r\n')
    assert embed(scans, tmp_path / "out", "--messages", rows) == 0
    found = {"a.dcm": "one", "photo, old.png": "three", "sub/b.dcm": "two, zwö"}
    assert messages(capsys, tmp_path / "out") == found
    # Several processes read the same, in the same order.
    assert list(messages(capsys, tmp_path / "out", "--workers", "2").items()) == list(found.items())
    (tmp_path / "out" / "a.dcm").unlink()
    assert embed(scans, tmp_path / "out", "--messages", rows, "--resume") == 0
    assert messages(capsys, tmp_path / "out") == found
    table(tmp_path, 'file,text\nsub/b.dcm,"two, zwö"\na.dcm,other\n"photo, old.jpg",three\n')
    assert embed(scans, tmp_path / "out", "--messages", rows, "--resume") == 2
    assert "marked otherwise (message_and_key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a.dcm,one\nsub/b.dcm,two\n", "expected file,text as its first line, got 2 other columns"),
        ("", "expected file,text as its first line, got 0 other columns"),
        ("file,text\na.dcm,one\n", "got no row for sub/b.dcm"),
        ("file,text\na.dcm,1\nsub/b.dcm,2\nc.dcm,3\nd,4\n", "got rows for c.dcm, d, which are no images of the folder"),
        ("file,text\nb.dcm,2\n", "got no row for a.dcm, sub/b.dcm; rows for b.dcm, which"),
        ("file,text\na.dcm,1\nsub/../a.dcm,2\n", "rows for sub/../a.dcm"),
        ("file,text\na.dcm,1\nsub/b.dcm,2\n./a.dcm,3\n", "got one more for a.dcm in line 4"),
        ("file,text\na.dcm,1,2\n", "expected 2 entries in line 2, got 3"),
        ('file,text\n"a.dcm,1\n', "cannot be read as a table of messages"),
    ],
)
def test_a_table_that_does_not_fit_ends_before_anything_is_written(
    text: str, told: str, capsys: pytest.CaptureFixture[str], scans: Path, tmp_path: Path
) -> None:
    assert embed(scans, tmp_path / "out", "--messages", table(tmp_path, text)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert not (tmp_path / "out").exists()


def test_a_text_that_cannot_be_hidden_is_bad_input_of_one_file(
    capsys: pytest.CaptureFixture[str], scans: Path, tmp_path: Path
) -> None:
    shutil.copy(scans / "a.dcm", scans / "c.dcm")
    rows = table(tmp_path, f"file,text\na.dcm,\nsub/b.dcm,two\nc.dcm,{'x' * 17}\n")
    assert embed(scans, tmp_path / "out", "--messages", rows) == 1
    told, err = capsys.readouterr()
    assert told.startswith("1 written, 2 bad input")
    assert f"bad input: {scans / 'a.dcm'}: expected a payload of at least one byte" in err
    assert f"bad input: {scans / 'c.dcm'}: expected a payload of 1 to 16 bytes" in err
    assert messages(capsys, tmp_path / "out") == {"sub/b.dcm": "two"}


def test_messages_come_from_the_attributes_of_each_file(
    capsys: pytest.CaptureFixture[str], scans: Path, tmp_path: Path
) -> None:
    patient(scans / "empty.dcm", PatientID="")
    patient(scans / "long.dcm", PatientID="Mustermann Erika 1964")
    patient(scans / "none.dcm", Modality="CR")
    Image.fromarray(GREY).save(scans / "photo.png")
    assert embed(scans, tmp_path / "out", "--message-from", "{PatientID}!") == 1
    told, err = capsys.readouterr()
    assert told.startswith("2 written, 4 bad input")
    for name, why in {
        "empty.dcm": "expected a value of PatientID for the message, got none",
        "none.dcm": "expected a value of PatientID for the message, got none",
        "long.dcm": "expected a payload of 1 to 16 bytes",
        "photo.png": "expected a DICOM file, as the message comes from its attributes",
    }.items():
        assert f"bad input: {scans / name}: {why}" in err
    assert "Erika" not in told + err
    assert "PAT-" not in told + err + "".join(path.read_text() for path in (tmp_path / "out").rglob("*.json"))
    assert messages(capsys, tmp_path / "out") == {name: f"{text}!" for name, text in PATIENTS.items()}
    assert embed(scans, tmp_path / "out", "--message-from", "{PatientID}?", "--resume") == 2
    assert "marked otherwise (message_and_key" in capsys.readouterr().err


def test_a_single_file_takes_a_template_of_several_keywords(
    capsys: pytest.CaptureFixture[str], scans: Path, tmp_path: Path
) -> None:
    source = patient(scans / "c.dcm", PatientID="4711 ", Modality="DX", SeriesNumber="3", PixelSpacing=["1", "2"])
    one = ("embed", source, "--psnr", "40")
    template = "{Modality}:{PatientID}-{SeriesNumber}"
    assert main(*one, tmp_path / "a.dcm", "--message-from", template) == 0
    assert main("extract", tmp_path / "a.dcm") == 0
    assert capsys.readouterr().out.endswith("DX:4711-3\n")
    assert main(*one, tmp_path / "b.dcm", "--message-from", "{{{PixelSpacing}") == 0
    assert main("extract", tmp_path / "b.dcm") == 0
    assert capsys.readouterr().out.endswith("{1\\2\n")
    for arguments, told in {
        ("--message-from", "PatientID"): "expected DICOM keywords in braces, such as {PatientID}, and other text",
        ("--message-from", "{PatientID"): "expected DICOM keywords in braces",
        ("--message-from", "{}"): "expected DICOM keywords in braces, such as {PatientID}, and other text, got '{}'",
        ("--message-from", "{PatientID!r}"): "and other text, got",
        ("--message-from", "{PatientId}"): "got 'PatientId'. Did you mean",
        ("--message-from", "{PatientID.x}"): "got 'PatientID.x'",
        ("--message-from", "{PixelData}"): "expected a value of PixelData",
        ("--messages", str(tmp_path)): "--messages is for folders",
        ("--message-from", "{PatientID}", "--text", "x"): "as the message, got 2 of them",
    }.items():
        assert main(*one, tmp_path / "c.dcm", *arguments) == 2, arguments
        assert told in capsys.readouterr().err, arguments


def test_a_value_that_cannot_be_read_is_not_shown(
    capsys: pytest.CaptureFixture[str], scans: Path, tmp_path: Path
) -> None:
    path = patient(scans / "c.dcm", SeriesNumber="4711")
    path.write_bytes(path.read_bytes().replace(b"IS\x04\x004711", b"FD\x04\x004711"))
    assert main("embed", path, tmp_path / "c.dcm", "--message-from", "{SeriesNumber}") == 2
    told = "".join(capsys.readouterr())
    assert "expected a valid SeriesNumber for the message" in told
    assert "4711" not in told


def test_deep_grey_where_white_is_zero_is_marked_and_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    deep = np.asarray(GREY, np.uint16) * 16
    extra: dict[str, Any] = {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 12, "HighBit": 11}
    source = make(tmp_path / "a.dcm", deep, **extra)
    assert main("embed", source, tmp_path / "b.dcm", "--text", "hello", "--psnr", "40") == 0
    capsys.readouterr()
    assert main("extract", tmp_path / "b.dcm") == 0
    assert capsys.readouterr().out == "hello\n"
    assert main("verify", source, tmp_path / "b.dcm") == 0
