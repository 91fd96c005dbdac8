"""Manifests of C2PA in marked files: signed by a chain made on the spot, and read by the library of its makers."""

import datetime
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from PIL import Image

from floormark import cli
from floormark.register import Register
from natural_images import natural_image

c2pa = pytest.importorskip("c2pa")
GREY = natural_image(height=256, width=264)
MEDIA = {"png": "image/png", "jpg": "image/jpeg", "tif": "image/tiff"}


@dataclass(frozen=True)
class Chain:
    """A root that nobody knows, and a certificate that it signed, as files."""

    root: bytes
    certificates: Path
    key: Path


def chain(folder: Path, key: Any, *, purpose: x509.ObjectIdentifier = ExtendedKeyUsageOID.EMAIL_PROTECTION) -> Chain:
    root_key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name: str, of: Any, *extensions: tuple[x509.ExtensionType, bool]) -> x509.Certificate:
        def named(common: str) -> x509.Name:
            organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "St. Elsewhere")
            return x509.Name([organization, x509.NameAttribute(NameOID.COMMON_NAME, common)])

        made = x509.CertificateBuilder().subject_name(named(name)).issuer_name(named("root")).public_key(of)
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        made = made.not_valid_after(now + datetime.timedelta(days=2))
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
        for extension, critical in (
            *extensions,
            (x509.SubjectKeyIdentifier.from_public_key(of), False),
            (issuer, False),
        ):
            made = made.add_extension(extension, critical)
        return made.sign(root_key, hashes.SHA256())

    def usage(*, root: bool) -> x509.KeyUsage:
        other = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        other += ("crl_sign", "encipher_only", "decipher_only")  # type: ignore[assignment]
        return x509.KeyUsage(digital_signature=not root, key_cert_sign=root, **dict.fromkeys(other, False))

    above = certificate(
        "root", root_key.public_key(), (x509.BasicConstraints(True, None), True), (usage(root=True), True)
    )
    leaf = certificate(
        "signer",
        key.public_key(),
        (x509.BasicConstraints(False, None), True),
        (usage(root=False), True),
        (x509.ExtendedKeyUsage([purpose]), False),
    )
    pem = [each.public_bytes(serialization.Encoding.PEM) for each in (leaf, above)]
    (folder / "chain.pem").write_bytes(b"".join(pem))
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "signer.pem").write_bytes(secret)
    (folder / "signer.pem").chmod(0o600)
    return Chain(pem[1], folder / "chain.pem", folder / "signer.pem")


@pytest.fixture
def signing(tmp_path: Path) -> Chain:
    return chain(tmp_path, ec.generate_private_key(ec.SECP256R1()))


def main(*arguments: str | Path) -> int:
    return cli.main(list(map(str, arguments)))


def manifest(content: bytes, media_type: str, root: bytes) -> dict[str, Any]:
    """What a reader says that trusts the root."""
    trusting = {"trust": {"trust_anchors": root.decode()}, "verify": {"verify_trust": True, "ocsp_fetch": False}}
    context = c2pa.Context(c2pa.Settings.from_dict(trusting))
    with c2pa.Reader(media_type, io.BytesIO(content), context=context) as reader:
        found: dict[str, Any] = json.loads(reader.json())
    return found


@pytest.mark.parametrize("suffix", MEDIA)
def test_a_marked_file_has_a_manifest_that_names_its_mark_and_is_as_good_as_without(
    suffix: str, signing: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, plain = (tmp_path / f"{name}.{suffix}" for name in ("in", "out", "plain"))
    Image.fromarray(GREY).save(source)
    common = ("--psnr", "40", "--lossy", "--text", "Ada")
    options = (*common, "--c2pa", signing.certificates, signing.key)
    assert main("embed", source, target, *options, "--register", tmp_path / "r.db") == 0
    (record,) = Register.open(tmp_path / "r.db").records()
    found = manifest(target.read_bytes(), MEDIA[suffix], signing.root)
    assert found["validation_state"] == "Trusted"
    assert not found["validation_results"]["activeManifest"]["failure"]
    active = found["manifests"][found["active_manifest"]]
    said = {each["label"]: each["data"] for each in active["assertions"]}
    assert said["c2pa.soft-binding"]["blocks"] == [{"scope": {}, "value": record.row.identifier}]
    assert said["c2pa.soft-binding"]["alg"].startswith("floormark.lattice-")
    assert [each["action"] for each in said["c2pa.actions.v2"]["actions"]] == ["c2pa.opened", "c2pa.watermarked.bound"]
    assert active["signature_info"]["common_name"] == "signer"
    assert "Ada" not in json.dumps(found)
    assert "in." not in json.dumps(found), "names of files stay here"
    capsys.readouterr()
    assert main("verify", source, target) == 0  # certificate, floor and mark hold for the file as it is now
    assert main("extract", target) == 0
    assert f"message         {record.row.identifier}\n" in capsys.readouterr().out
    # The same pixels as without, and nothing that is changed later goes unnoticed.
    assert main("embed", source, plain, *common[:3], "--hex", record.row.identifier) == 0
    assert np.array_equal(np.asarray(Image.open(target)), np.asarray(Image.open(plain)))
    content = bytearray(target.read_bytes())
    content[len(content) // 2] ^= 1
    assert manifest(bytes(content), MEDIA[suffix], signing.root)["validation_state"] == "Invalid"


@pytest.mark.parametrize("key", [ed25519.Ed25519PrivateKey.generate(), rsa.generate_private_key(65537, 2048)])
def test_other_kinds_of_keys_sign_too(key: Any, tmp_path: Path) -> None:
    signing = chain(tmp_path, key)
    Image.fromarray(GREY).save(tmp_path / "in.png")
    options = ("--psnr", "40", "--text", "Ada", "--c2pa", signing.certificates, signing.key)
    assert main("embed", tmp_path / "in.png", tmp_path / "out.png", *options) == 0
    found = manifest((tmp_path / "out.png").read_bytes(), "image/png", signing.root)
    assert found["validation_state"] == "Trusted"


def test_the_manifest_of_the_original_is_kept_as_that_of_its_source(signing: Chain, tmp_path: Path) -> None:
    names = [tmp_path / f"{name}.png" for name in "abc"]
    Image.fromarray(GREY).save(names[0])
    options = ("--psnr", "40", "--replace", "--c2pa", signing.certificates, signing.key)
    assert main("embed", names[0], names[1], *options, "--text", "first") == 0
    assert main("embed", names[1], names[2], *options, "--text", "second") == 0
    found = manifest(names[2].read_bytes(), "image/png", signing.root)
    assert (found["validation_state"], len(found["manifests"])) == ("Trusted", 2)


def test_what_cannot_be_signed_is_said_in_one_line_and_nothing_is_written(
    signing: Chain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "in.png", tmp_path / "out.png"
    Image.fromarray(GREY).save(source)
    Image.fromarray(GREY).save(tmp_path / "in.bmp")
    (tmp_path / "key.txt").write_text("correct horse battery staple")
    leaf = b"".join(signing.certificates.read_bytes().partition(b"-----END CERTIFICATE-----\n")[:2])
    (tmp_path / "leaf.pem").write_bytes(leaf)
    other, wrong, open_key = (tmp_path / name for name in ("other", "wrong", "open.pem"))
    for folder in (other, wrong):
        folder.mkdir()
    strange = chain(other, ec.generate_private_key(ec.SECP256R1()))
    purpose = chain(wrong, ec.generate_private_key(ec.SECP256R1()), purpose=ExtendedKeyUsageOID.SERVER_AUTH)
    curve = tmp_path / "curve"
    curve.mkdir()
    unknown = chain(curve, ec.generate_private_key(ec.SECP256K1()))
    open_key.write_bytes(signing.key.read_bytes())
    open_key.chmod(0o644)
    for arguments, told in (
        ((signing.certificates, strange.key), "is not the key of the first certificate"),
        ((tmp_path / "leaf.pem", signing.key), "got one certificate"),
        ((purpose.certificates, purpose.key), "no manifest could be signed"),
        ((unknown.certificates, unknown.key), "expected a key of ECDSA"),
        ((signing.key, signing.key), "expected certificates in PEM"),
        ((signing.certificates, signing.certificates), "expected a private key in PEM"),
        ((signing.certificates, open_key), "chmod 600"),
        ((tmp_path / "none", signing.key), "cannot be read"),
        ((signing.certificates, signing.key, "--key", tmp_path / "key.txt"), "add a register"),
    ):
        assert main("embed", source, target, "--text", "a", "--psnr", "40", "--c2pa", *arguments) == 2, told
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert told in err
        assert not target.exists()
    c2pa_options = ("--text", "a", "--psnr", "40", "--c2pa", signing.certificates, signing.key)
    for names in (("in.bmp", "out.png"), ("in.png", "out.bmp")):
        assert main("embed", *(tmp_path / name for name in names), *c2pa_options) == 2
        assert "BMP" in capsys.readouterr().err


def test_a_folder_is_gone_on_with_by_the_same_chain_only(signing: Chain, tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    Image.fromarray(GREY).save(tmp_path / "scans" / "a.png")
    common = ("embed", tmp_path / "scans", tmp_path / "out", "--text", "a", "--psnr", "40", "--workers", "1")
    assert main(*common, "--c2pa", signing.certificates, signing.key) == 0
    assert main(*common, "--resume") == 2
    assert main(*common, "--resume", "--c2pa", signing.certificates, signing.key) == 0
