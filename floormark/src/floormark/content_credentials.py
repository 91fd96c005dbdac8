"""Content Credentials (C2PA): a signed manifest inside the file that says that it was marked, and with what.

The manifest is not part of the pixels, so the floor and the mark do not change; the file is hashed afterwards. If the
manifest is removed, the mark is left, by which the manifest can be found again: C2PA calls this a soft binding.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from floormark.disk import read_secret
from floormark.errors import ConfigurationError, DataError
from floormark.imageio import Format, ImageFile, read
from floormark.imageio.stored import one_line
from floormark.payload import Payload
from floormark.signing import check_owner_only

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

MEDIA_TYPES = {"png": "image/png", "jpeg": "image/jpeg", "tiff": "image/tiff"}
ECDSA = {"secp256r1": "es256", "secp384r1": "es384", "secp521r1": "es512"}
MAX_PEM_BYTES = 1 << 16  # bytes of a chain of certificates
SETTINGS = {
    "builder": {"thumbnail": {"enabled": False}},  # it would show the original
    "verify": {"remote_manifest_fetch": False, "ocsp_fetch": False},  # no network access
}
ADVICE = "a certificate that a root has signed, with digital signature as its use and e-mail protection as its purpose"


@dataclass(frozen=True)
class Credentials:
    """Who signs manifests: a chain of certificates, the signer's own first, and its private key."""

    chain: bytes
    key: bytes = field(repr=False)
    algorithm: str

    @classmethod
    def read(cls, chain: Path, key: Path) -> Self:
        """Read both from PEM files.

        Raises:
            ConfigurationError: one is not valid PEM, they do not match, or C2PA does not know this kind of key.
        """
        try:
            import c2pa  # noqa: F401 - a missing package is an error before any work
        except ImportError as error:
            raise ConfigurationError("--c2pa needs c2pa-python: install floormark with its extra c2pa") from error
        certificates = read_secret("chain of certificates", chain, most=MAX_PEM_BYTES)
        secret = read_secret("private key", key, most=MAX_PEM_BYTES)
        try:
            first, *above = x509.load_pem_x509_certificates(certificates)
        except ValueError as error:
            raise ConfigurationError(f"{chain}: expected certificates in PEM: {one_line(error)}") from error
        try:
            found = serialization.load_pem_private_key(secret, None)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{key}: expected a private key in PEM without a passphrase") from error
        check_owner_only(key)
        if first.public_key() != found.public_key():
            raise ConfigurationError(f"{key}: is not the key of the first certificate in {chain}")
        if not above:
            raise ConfigurationError(f"{chain}: expected {ADVICE}, and then that root; got one certificate")
        return cls(certificates, secret, _algorithm(found))

    @property
    def fingerprint(self) -> str:
        """The beginning of the SHA-256 of the chain."""
        return hashlib.sha256(self.chain).hexdigest()[:32]

    def check(self, source: Format, target: Format) -> None:
        """Refuse formats that hold no manifest, before the work of marking."""
        for which, kind in (("read", source), ("write", target)):
            if kind.name not in MEDIA_TYPES:
                told = f"expected to {which} PNG, JPEG or TIFF with --c2pa, got {kind.name.upper()}"
                raise ConfigurationError(f"{told}: leave out --c2pa")

    def add(self, original: ImageFile, written: ImageFile, payload: Payload, model: str) -> ImageFile:
        """Put a manifest into a written file that has not taken its final name; returns the new file.

        Raises:
            ConfigurationError: the certificates cannot sign a manifest.
            DataError: the file could not be read back as it was.
        """
        import c2pa

        actions = [
            {"action": "c2pa.opened", "parameters": {"ingredientIds": ["original"]}},
            {"action": "c2pa.watermarked.bound"},
        ]
        binding = {"alg": f"floormark.{model}", "blocks": [{"scope": {}, "value": payload.content.hex()}], "pad": ""}
        manifest = {
            "claim_generator_info": [{"name": "floormark", "version": version("floormark")}],
            "assertions": [
                {"label": "c2pa.actions.v2", "data": {"actions": actions}},
                {"label": "c2pa.soft-binding", "data": binding},
            ],
        }
        ingredient = {"title": "original", "relationship": "parentOf", "label": "original"}
        result, media_type = io.BytesIO(), MEDIA_TYPES[written.format.name]
        try:
            signer = c2pa.Signer.from_info(c2pa.C2paSignerInfo(self.algorithm, self.chain, self.key, None))
            with signer, c2pa.Builder(manifest, c2pa.Context(c2pa.Settings.from_dict(SETTINGS))) as builder:
                with original.path.open("rb") as source:
                    builder.add_ingredient(ingredient, MEDIA_TYPES[original.format.name], source)
                builder.sign(signer, media_type, io.BytesIO(written.path.read_bytes()), result)
        except c2pa.C2paError as error:
            raise ConfigurationError(f"no manifest could be signed: {one_line(error)}: expected {ADVICE}") from error
        written.path.write_bytes(result.getvalue())
        found = read(written.path)
        if found.format is not written.format or found.pixels_sha256 != written.pixels_sha256:
            raise DataError(f"{original.path}: does not read back with a manifest as it was; nothing was kept")
        return found


def _algorithm(key: PrivateKeyTypes) -> str:
    """The C2PA name of the signature algorithm of a key."""
    found: Any = None
    if isinstance(key, ec.EllipticCurvePrivateKey):
        found = ECDSA.get(key.curve.name)
    elif isinstance(key, ed25519.Ed25519PrivateKey):
        found = "ed25519"
    elif isinstance(key, rsa.RSAPrivateKey):
        found = "ps256"
    if found is None:
        raise ConfigurationError(
            f"expected a key of ECDSA (P-256, P-384, P-521), Ed25519 or RSA, got {type(key).__name__}"
        )
    return str(found)
