"""``keygen``, ``embed --sign`` and ``verify --public-key`` as commands."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from floormark import cli
from floormark.certificate import CERTIFICATE_FORMAT
from floormark.signing import Signer, write_keys
from natural_images import natural_image

SECRET = "correct horse battery staple"


def main(*arguments: str | Path) -> int:
    return cli.main(list(map(str, arguments)))


def error(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a bad command ends with."""
    assert main(*arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("floormark: error: ")
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
    assert "problem: expected a certificate signed by the key " in capsys.readouterr().err
    beside = tmp_path / "marked.png.json"
    beside.write_text(beside.read_text().replace('"floor": 40.0', '"floor": 39.0'))
    assert main("verify", image, marked) == 1
    told = capsys.readouterr()
    assert "signature       NOT VALID\n" in told.out
    assert told.err.startswith("problem: the signature does not fit the certificate")
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"signature": None}))
    assert main("verify", image, marked) == 0
    assert "signature       none: whoever can write" in capsys.readouterr().out
    assert main("verify", image, marked, "--public-key", f"{key}.pub") == 1
    assert "got no signature" in capsys.readouterr().err


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an image, what it became under a signed certificate, and the key."""
    folder = tmp_path_factory.mktemp("signed")
    Image.fromarray(natural_image(height=256, width=264)).save(folder / "xray.png")
    write_keys(folder / "key", Signer.generate())
    assert main("embed", folder / "xray.png", folder / "marked.png", "--text", "a", "--sign", folder / "key") == 0
    return folder


def edited(text: str, **changes: Any) -> str:
    """The certificate with other entries; those of the fidelity too."""
    values = json.loads(text)
    for name, value in changes.items():
        (values if name in values else values["fidelity"])[name] = value
    return json.dumps(values)


HOSTILE: dict[str, tuple[Callable[[str], str | bytes], int]] = {
    "as it is": (lambda text: text, 0),
    "empty": (lambda text: "", 2),
    "cut off": (lambda text: text[:300], 2),
    "zeros": (lambda text: bytes(1000), 2),
    "not text": (lambda text: b"\xff\xfe\xfa" + text.encode(), 2),
    "in UTF-16": (lambda text: text.encode("utf-16"), 0),
    "of another version": (lambda text: text.replace(CERTIFICATE_FORMAT, "floormark-certificate-1"), 2),
    "of a later version": (lambda text: text.replace(CERTIFICATE_FORMAT, "floormark-certificate-99"), 2),
    "a list": (lambda text: f"[{text}]", 2),
    "a number": (lambda text: "1", 2),
    "nested deeply": (lambda text: '{"format":' * 50_000 + "1" + "}" * 50_000, 2),
    "an entry of nested lists": (lambda text: text.replace('"ed25519"', "[" * 500 + "]" * 500), 2),
    "too large": (lambda text: text + " " * (1 << 20) + "x", 2),
    "twice": (lambda text: text + text, 2),
    "an entry twice": (lambda text: text.replace('"floor"', '"floor": 25.0, "floor"', 1), 2),
    "NaN": (lambda text: text.replace("45.0", "NaN"), 2),
    "infinite": (lambda text: text.replace("45.0", "-Infinity"), 2),
    "overflowing": (lambda text: text.replace("45.0", "1e999"), 2),
    "a number of many digits": (lambda text: text.replace("45.0", "9" * 10_000), 2),
    "a large count": (lambda text: edited(text, bits=10**4000), 2),
    "a long text": (lambda text: edited(text, model="m" * 10**5), 2),
    "a text for a number": (lambda text: edited(text, floor="45"), 2),
    "true for a number": (lambda text: edited(text, bits=True), 2),
    "null for a text": (lambda text: edited(text, model=None), 2),
    "escapes and half a character": (lambda text: edited(text, model="\x1b[2J\ud800\n"), 1),
    "a low floor": (lambda text: edited(text, floor=30.0), 1),
    "an impossible floor": (lambda text: edited(text, floor=-1000.0), 2),
    "signed by nobody": (lambda text: text.replace(json.loads(text)["signature"]["public_key"], "0" * 64), 1),
    "a signature of zeros": (lambda text: text.replace(json.loads(text)["signature"]["value"], "0" * 128), 1),
    "a signature cut off": (lambda text: text.replace(json.loads(text)["signature"]["value"], "00"), 2),
    "of another image": (lambda text: edited(text, original_sha256="0" * 64, signature=None), 1),
    "not satisfied": (lambda text: edited(text, satisfied=False, signature=None), 2),
    "a mask nobody has": (lambda text: edited(text, protected="0" * 64, protected_pixels=10**6, signature=None), 1),
    "a region outside": (lambda text: edited(text, protected="0,0,999999999,1", signature=None), 2),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_certificates_end_in_few_lines(
    capsys: pytest.CaptureFixture[str], signed: Path, tmp_path: Path, name: str
) -> None:
    shutil.copy(signed / "marked.png", tmp_path)
    change, code = HOSTILE[name]
    content = change((signed / "marked.png.json").read_text())
    beside = tmp_path / "marked.png.json"
    beside.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    capsys.readouterr()
    assert main("verify", signed / "xray.png", tmp_path / "marked.png") == code
    out, err = capsys.readouterr()
    assert "unexpected" not in err
    assert (out + err).replace("\n", "").isprintable()
    assert max(map(len, (out + err).splitlines())) < 600
    if code == 2:
        assert (out, err.count("\n")) == ("", 1)
        assert str(beside) in err


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
        (("keygen", "."), "expected the name of a file"),
        (("keygen", tmp_path / ".."), "expected the name of a file"),
        (("keygen", tmp_path / "new", "--passphrase", "env:NOT_SET"), "NOT_SET is not set"),
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
    assert "marked otherwise (signed_by" in error(capsys, *folder, "--resume", "--sign", tmp_path / "other")
