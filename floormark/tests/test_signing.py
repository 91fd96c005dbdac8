"""Signed certificates: real keys and files, and every way in which somebody might have touched them."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from floormark import Payload, Watermarker
from floormark.certificate import ImageCertificate, certificate_path, read_entries
from floormark.errors import ConfigurationError, DataError, OutputError
from floormark.files.folder import Status, image_files, mark_folder, tasks
from floormark.files.marking import FileMarker
from floormark.options import Region
from floormark.signing import (
    Signer,
    canonical,
    read_passphrase,
    read_public_key,
    read_signer,
    signed_by,
    write_keys,
)
from floormark.verify import Verification, verify_files
from marking import marking
from natural_images import natural_image
from test_image_certificate import certificates, example

MARKER = Watermarker.load()
MINE, OTHER = Signer.generate(), Signer.generate()
GREY = natural_image(height=256, width=256)


def file_marker(signer: Signer | None = MINE, **options: Any) -> FileMarker:
    return marking(MARKER, Payload.from_text("hello"), 40.0, signer=signer, **options)


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an image, ``a.png``, and what it became, ``b.png``, under a signed certificate."""
    folder = tmp_path_factory.mktemp("signed")
    Image.fromarray(GREY).save(folder / "a.png")
    file_marker(protect=Region.parse("40,30,100,60")).mark_file(folder / "a.png", folder / "b.png")
    return folder


@pytest.fixture
def pair(signed: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies to tamper with."""
    for name in ("a.png", "b.png", "b.png.json"):
        shutil.copy(signed / name, tmp_path)
    return tmp_path / "a.png", tmp_path / "b.png"


def rewritten(pair: tuple[Path, Path], values: dict[str, Any], **options: Any) -> Verification:
    certificate_path(pair[1]).write_text(json.dumps(values))
    return verify_files(MARKER, *pair, **options)


def test_a_signature_is_checked_with_the_key_and_without(pair: tuple[Path, Path]) -> None:
    found = verify_files(MARKER, *pair, public_key=MINE.public)
    assert (found.problems, found.signed_by, found.trusted) == ((), MINE.public.fingerprint, True)
    found = verify_files(MARKER, *pair)
    assert (found.problems, found.signed_by, found.trusted) == ((), MINE.public.fingerprint, False)
    found = verify_files(MARKER, *pair, public_key=OTHER.public)
    assert found.problems == (
        f"expected a certificate signed by the key {OTHER.public.fingerprint}, got one by {MINE.public.fingerprint}",
    )
    assert (found.signed_by, found.trusted) == (MINE.public.fingerprint, False)
    assert json.loads(json.dumps(found.to_dict()))["certificate"]["signature"]["algorithm"] == "ed25519"


def test_a_signature_survives_lossless_encoding_anew(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with Image.open(pair[1]) as image:
        image.save(tmp_path / "anew.tiff", compression="tiff_lzw")
    beside = certificate_path(pair[1])
    found = verify_files(MARKER, pair[0], tmp_path / "anew.tiff", public_key=MINE.public, certificate=beside)
    assert (found.problems, found.re_encoded) == ((), ("result",))
    values = json.loads(beside.read_text())
    (tmp_path / "unsigned.json").write_text(json.dumps(values | {"signature": None}))
    found = verify_files(MARKER, pair[0], tmp_path / "anew.tiff", certificate=tmp_path / "unsigned.json")
    assert found.re_encoded == ()
    assert any("result_sha256" in problem for problem in found.problems)


def test_a_pixel_that_differs_is_no_encoding_anew(pair: tuple[Path, Path]) -> None:
    with Image.open(pair[1]) as image:
        pixels = np.array(image)
    pixels[3, 5] ^= 1
    Image.fromarray(pixels).save(pair[1])
    found = verify_files(MARKER, *pair, public_key=MINE.public)
    assert found.re_encoded == ()
    assert any("result_pixels_sha256" in problem for problem in found.problems)


def leaves(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in values.items():
        yield from leaves(value, (*above, name)) if isinstance(value, dict) else [((*above, name), value)]


def altered(value: Any) -> Any:
    """Another value of the same type, near enough to pass for an honest one."""
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return value - 1e-9 if isinstance(value, float) else value[:-1] + ("0" if value[-1:] != "0" else "1")


def with_leaf(values: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    inner = value if len(path) == 1 else with_leaf(values[path[0]], path[1:], value)
    return values | {path[0]: inner}


def test_every_changed_or_missing_entry_fails(pair: tuple[Path, Path]) -> None:
    values = json.loads(certificate_path(pair[1]).read_text())
    paths = dict(leaves(values))
    assert {path[-1] for path in paths} >= {"format", "floor", "psnr", "protected", "public_key", "value", "model"}
    for path, value in paths.items():
        try:
            found = rewritten(pair, with_leaf(values, path, altered(value)))
        except (DataError, ConfigurationError):
            continue  # refused before it was compared
        assert any("the signature does not fit the certificate" in each for each in found.problems), path
        assert found.signed_by is None
    for name in values:
        missing = {other: value for other, value in values.items() if other != name}
        try:
            problems = rewritten(pair, missing, public_key=MINE.public).problems
        except DataError:
            continue
        assert any("signature" in each for each in problems), name
    with pytest.raises(DataError, match="unknown entry 'more'"):
        rewritten(pair, values | {"more": 1})
    assert not rewritten(pair, values, public_key=MINE.public).problems


def test_a_lower_floor_is_the_lie_that_only_a_signature_shows(pair: tuple[Path, Path]) -> None:
    values = json.loads(certificate_path(pair[1]).read_text()) | {"floor": 30.0}
    assert rewritten(pair, values).problems != ()
    assert rewritten(pair, values | {"signature": None}).problems == ()
    assert rewritten(pair, values | {"signature": None}, public_key=MINE.public).problems == (
        f"expected a certificate signed by the key {MINE.public.fingerprint}, got no signature",
    )
    again = OTHER.sign(ImageCertificate.read(certificate_path(pair[1])))  # whoever tampers can sign as well
    again.write(certificate_path(pair[1]))
    assert verify_files(MARKER, *pair).problems == ()
    assert "got one by" in verify_files(MARKER, *pair, public_key=MINE.public).problems[0]
    certificate_path(pair[1]).unlink()
    assert verify_files(MARKER, *pair, public_key=MINE.public).problems[0].startswith("no certificate beside the image")


def test_a_signature_of_another_certificate_does_not_fit(pair: tuple[Path, Path]) -> None:
    values = json.loads(certificate_path(pair[1]).read_text())
    other = MINE.sign(example()).signature
    assert other is not None
    found = rewritten(pair, values | {"signature": vars(other)}, public_key=MINE.public)
    assert found.problems[0].startswith("the signature does not fit the certificate")


@settings(max_examples=60)
@given(certificates, st.data())
def test_any_change_of_any_certificate_is_seen(certificate: ImageCertificate, data: st.DataObject) -> None:
    made = MINE.sign(certificate)
    assert made.signature is not None
    entries = json.loads(json.dumps(made.entries()))
    assert signed_by(entries, made.signature) == MINE.public
    assert MINE.signed(entries, made.signature)
    assert not OTHER.signed(entries, made.signature)
    facts = {path: value for path, value in leaves(entries) if path[0] != "signature"}
    path = data.draw(st.sampled_from(sorted(facts)))
    value = data.draw(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
    )
    if json.dumps(value) != json.dumps(facts[path]):
        assert signed_by(with_leaf(entries, path, value), made.signature) is None


def test_entries_of_later_versions_need_no_change_here() -> None:
    entries = {"format": "later", "fidelity": {"new": [1, None, "ä"]}, "also": 0.5}
    assert canonical(entries | {"signature": 1}) == (
        rb'{"also":0.5,"fidelity":{"new":[1,null,"\u00e4"]},"format":"later"}'
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="OpenSSL's command is the independent judge")
def test_openssl_agrees(signed: Path, tmp_path: Path) -> None:
    """With the keys as they are written, and the signed bytes made by hand."""
    write_keys(tmp_path / "key", MINE, b"secret")
    certificate, entries = read_entries(signed / "b.png.json")
    assert certificate.signature is not None
    del entries["signature"]
    (tmp_path / "facts").write_text(json.dumps(entries, sort_keys=True, separators=(",", ":")))
    (tmp_path / "value").write_bytes(bytes.fromhex(certificate.signature.value))
    public = ("-pubin", "-inkey", "key.pub", "-sigfile", "value")
    private = ("-inkey", "key", "-passin", "pass:secret", "-out", "again")
    for options in (("-verify", *public), ("-sign", *private)):
        command = ["openssl", "pkeyutl", *options, "-rawin", "-in", "facts"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "value").read_bytes()


def test_keys_are_written_for_their_owner_and_never_replaced(tmp_path: Path) -> None:
    private = tmp_path / "key"
    public = write_keys(private, MINE)
    assert public == tmp_path / "key.pub"
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert read_signer(private) == MINE
    assert read_public_key(public) == MINE.public
    assert MINE.secret.hex() not in repr(file_marker())
    before = private.read_bytes(), public.read_bytes()
    with pytest.raises(ConfigurationError, match=r"key: is there already, and no key is replaced"):
        write_keys(private, OTHER)
    private.unlink()
    with pytest.raises(ConfigurationError, match=r"key\.pub: is there already"):
        write_keys(private, OTHER)
    assert not private.exists()  # not one without the other
    private.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="is there already"):
        write_keys(private, OTHER)
    assert not (tmp_path / "elsewhere").exists()
    assert public.read_bytes() == before[1]
    with pytest.raises(OutputError, match="cannot write"):
        write_keys(tmp_path / "nowhere" / "key", OTHER)


def pem(key: Any) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))


def public_pem(key: Any) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))


RSA, CURVE = rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP256R1())


@pytest.mark.parametrize(
    ("content", "passphrase", "message"),
    [
        (b"", None, "cannot be read as a private key: expected PEM; make one with: floormark keygen NAME"),
        (b"\x00\xff" * 50, None, "cannot be read as a private key: expected PEM"),
        (MINE.pem()[:70], b"x", "cannot be read as a private key: expected PEM"),
        (b"x" * 20_000, None, "expected a private key, got more than 16384 bytes"),
        (MINE.public.pem, None, "holds a public key: to sign, give the private one"),
        (pem(RSA), None, "expected an Ed25519 key, got RSA"),
        (pem(CURVE), None, "expected an Ed25519 key, got EC"),
        (MINE.pem(b"right"), b"wrong", "the passphrase is wrong, or the file damaged"),
        (MINE.pem(b"right"), None, "is encrypted: give its passphrase"),
        (MINE.pem(), b"right", "is not encrypted: give no passphrase"),
    ],
    ids=lambda value: "",  # keys are never the same twice, and workers must agree on the names of tests
)
def test_what_cannot_sign_is_refused(content: bytes, passphrase: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=message) as caught:
        read_signer(path, passphrase)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_private_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    write_keys(tmp_path / "key", MINE)
    for mode in (0o644, 0o602):
        (tmp_path / "key").chmod(mode)
        with pytest.raises(ConfigurationError, match=r"every user of this machine can reach .* chmod 600"):
            read_signer(tmp_path / "key")
    (tmp_path / "key").chmod(0o640)  # a group may be meant
    assert read_signer(tmp_path / "key") == MINE
    for missing in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigurationError, match="the private key cannot be read"):
            read_signer(missing)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (MINE.pem(), "holds a private key, which is for signing: to verify, give its .pub"),
        (b"words", "cannot be read as a public key"),
        (MINE.public.pem[:50], "cannot be read as a public key"),
        (public_pem(RSA), "expected an Ed25519 key, got RSA"),
    ],
    ids=lambda value: "",
)
def test_what_is_no_public_key_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "key.pub").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        read_public_key(tmp_path / "key.pub")


def test_passphrases_come_from_files_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "words").write_bytes(b"horse staple\r\n")
    monkeypatch.setenv("WORDS", "horse staple")
    assert read_passphrase(tmp_path / "words") == read_passphrase(variable="WORDS") == b"horse staple"
    write_keys(tmp_path / "key", MINE, b"horse staple")
    assert read_signer(tmp_path / "key", b"horse staple") == MINE
    (tmp_path / "long").write_bytes(b"x" * 1024)
    (tmp_path / "empty").write_bytes(b"\n")
    for arguments, message in (
        ({"file": tmp_path / "long"}, "more than 1023 bytes"),
        ({"file": tmp_path / "empty"}, "1 to 1023 bytes, got none"),
        ({"variable": "NOT_SET"}, "the environment variable NOT_SET is not set"),
        ({"file": tmp_path / "nothing"}, "the passphrase cannot be read"),
        ({}, "give one of the two"),
        ({"file": tmp_path / "words", "variable": "WORDS"}, "give one of the two"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            read_passphrase(**arguments)


@pytest.mark.usefixtures("forked_workers")
def test_a_folder_is_signed_file_by_file_and_gone_on_with_by_the_same_key_only(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for name in ("a.png", "b.png"):
        Image.fromarray(GREY).save(source / name)
    found = tasks(source, image_files(source)[0], out)

    def marked(signer: Signer | None, workers: int = 1, resume: bool = True) -> list[Status]:
        run = mark_folder(file_marker(signer), found, out, workers=workers, resume=resume)
        return [one.status for one in run]

    assert marked(MINE, workers=2, resume=False) == [Status.WRITTEN] * 2
    for task in found:
        assert not verify_files(MARKER, task.source, task.target, public_key=MINE.public).problems
    for signer in (OTHER, None):
        with pytest.raises(ConfigurationError, match=f"marked otherwise .*signed_by {MINE.public.fingerprint} there"):
            marked(signer)
    OTHER.sign(ImageCertificate.read(out / "b.png.json")).write(out / "b.png.json")
    assert marked(MINE) == [Status.DONE, Status.BAD]
    (out / "b.png").unlink()
    assert marked(MINE) == [Status.DONE, Status.WRITTEN]
    kept = [path for path in out.iterdir() if MINE.secret.hex().encode() in path.read_bytes()]
    assert not kept


def test_a_key_may_come_through_a_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, MINE.pem())
    os.close(writer)
    try:
        assert read_signer(f"/dev/fd/{reader}") == MINE
    finally:
        os.close(reader)
