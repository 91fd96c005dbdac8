"""``keygen``, ``embed --sign`` and ``verify --public-key`` as commands."""

import json
from pathlib import Path

import pytest
from PIL import Image

from natural_images import natural_image
from samplewise.cli import watermark
from samplewise.cli.outcome import run
from samplewise.watermark.signing import Signer, write_keys

SECRET = "correct horse battery staple"


def main(*arguments: str | Path) -> int:
    return run(watermark.app, list(map(str, arguments)))


def error(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a bad command ends with."""
    assert main(*arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("samplewise: error: ")
    return err


@pytest.fixture
def image(tmp_path: Path) -> Path:
    Image.fromarray(natural_image(height=256, width=264)).save(tmp_path / "xray.png")
    return tmp_path / "xray.png"


def test_from_a_new_key_to_a_verified_image(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, marked = tmp_path / "hospital", tmp_path / "marked.png"
    monkeypatch.setenv("WORDS", SECRET)
    assert main("keygen", key, "--passphrase", "env:WORDS", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made == {"private_key": str(key), "public_key": f"{key}.pub", "fingerprint": made["fingerprint"]}
    signing = ("embed", image, marked, "--text", "a", "--psnr", "40", "--sign", key)
    assert main(*signing, "--passphrase", "env:WORDS") == 0
    assert f", signed by {made['fingerprint']}\n" in capsys.readouterr().out
    assert main("verify", image, marked, "--public-key", f"{key}.pub") == 0
    assert f"signature       by {made['fingerprint']}, the key that was given\n" in capsys.readouterr().out
    assert main("verify", image, marked) == 0
    assert f"by {made['fingerprint']}, a key for which nobody vouched" in capsys.readouterr().out
    assert main("verify", image, marked, "--public-key", f"{key}.pub", "--json") == 0
    verified = json.loads(capsys.readouterr().out)
    assert (verified["signed_by"], verified["trusted"]) == (made["fingerprint"], True)

    other = write_keys(tmp_path / "other", Signer.generate())
    assert main("verify", image, marked, "--public-key", other) == 1
    assert "not well: expected a certificate signed by the key " in capsys.readouterr().err
    beside = tmp_path / "marked.png.json"
    beside.write_text(beside.read_text().replace('"floor": 40.0', '"floor": 39.0'))
    assert main("verify", image, marked) == 1
    told = capsys.readouterr()
    assert "signature       NOT VALID\n" in told.out
    assert told.err.startswith("not well: the signature does not fit the certificate")
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"signature": None}))
    assert main("verify", image, marked) == 0
    assert "signature       none: whoever can write" in capsys.readouterr().out
    assert main("verify", image, marked, "--public-key", f"{key}.pub") == 1
    assert "got no signature" in capsys.readouterr().err


def test_bad_keys_end_in_one_line(
    capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, out = tmp_path / "key", tmp_path / "b.png"
    public = write_keys(key, Signer.generate(), SECRET.encode())
    monkeypatch.setenv("WORDS", "wrong horse")
    before = {path.name for path in tmp_path.iterdir()}
    embed = ("embed", image, out, "--text", "a")
    for arguments, message in (
        (("keygen", key), "no key is replaced"),
        (("keygen", tmp_path / "new", "--passphrase", "env:NOT_SET"), "NOT_SET: expected a passphrase"),
        ((*embed, "--sign", key), "is encrypted: give its passphrase"),
        ((*embed, "--sign", key, "--passphrase", "env:WORDS"), "the passphrase is wrong"),
        ((*embed, "--sign", public), "holds a public key"),
        ((*embed, "--sign", image), "expected a private key, got more than"),
        ((*embed, "--sign", tmp_path / "nothing"), "the private key cannot be read: No such file"),
        ((*embed, "--passphrase", "env:WORDS"), "--passphrase opens the private key of --sign"),
        (("verify", image, image, "--public-key", key), "holds a private key"),
        (("verify", image, image, "--public-key", tmp_path / "nothing"), "the public key cannot be read"),
    ):
        told = error(capsys, *arguments)
        assert message in told
        assert SECRET not in told
    key.chmod(0o644)
    monkeypatch.setenv("WORDS", SECRET)
    assert "chmod 600" in error(capsys, *embed, "--sign", key, "--passphrase", "env:WORDS")
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_folder_is_signed(capsys: pytest.CaptureFixture[str], image: Path, tmp_path: Path) -> None:
    signer = Signer.generate()
    write_keys(tmp_path / "key", signer)
    write_keys(tmp_path / "other", Signer.generate())
    (tmp_path / "in").mkdir()
    image.rename(tmp_path / "in" / "xray.png")
    folder = ("embed", tmp_path / "in", tmp_path / "out", "--text", "a", "--psnr", "40", "--json")
    assert main(*folder, "--sign", tmp_path / "key") == 0
    assert json.loads(capsys.readouterr().out)["signed_by"] == signer.public.fingerprint
    assert "holds another run (signed_by" in error(capsys, *folder, "--resume", "--sign", tmp_path / "other")
