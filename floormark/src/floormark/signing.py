"""Certificates signed with Ed25519: made by the holder of the private key, and not changed since."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from floormark.certificate import ALGORITHM, ImageCertificate, Signature
from floormark.disk import cannot_write, read_secret
from floormark.errors import ConfigurationError

MAX_PEM_BYTES = 1 << 14  # bytes; a key in PEM has some hundred
MAX_PASSPHRASE = 1023  # bytes that OpenSSL accepts
KEYGEN_ADVICE = "make one with: floormark keygen NAME"
FINGERPRINT_DIGITS = 32  # hexadecimal digits, 128 bits: a second key with the same cannot be found


@dataclass(frozen=True)
class PublicKey:
    """The key that verifies signatures of its private key."""

    raw: bytes

    @property
    def fingerprint(self) -> str:
        """The first digits of the key's SHA-256, for people to compare."""
        return hashlib.sha256(self.raw).hexdigest()[:FINGERPRINT_DIGITS]

    @property
    def pem(self) -> bytes:
        """The key in PEM, as OpenSSL reads it."""
        key = Ed25519PublicKey.from_public_bytes(self.raw)
        return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def verifies(self, content: bytes, signature: str) -> bool:
        """Whether the private key signed ``content``, by a signature in hexadecimal digits."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(bytes.fromhex(signature), content)
        except (InvalidSignature, ValueError):
            return False
        return True


@dataclass(frozen=True)
class Signer:
    """A private key, as plain bytes so that it can be sent to other processes; it is never shown."""

    secret: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        """A new key, from the system's source of randomness."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def _key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret)

    @property
    def public(self) -> PublicKey:
        """The public key, for verification."""
        return PublicKey(self._key.public_key().public_bytes_raw())

    def sign(self, certificate: ImageCertificate) -> ImageCertificate:
        """The certificate with a signature over all its other entries."""
        value = self.sign_bytes(canonical(certificate.entries()))
        return replace(certificate, signature=Signature(ALGORITHM, self.public.raw.hex(), value))

    def sign_bytes(self, content: bytes) -> str:
        """A signature in hexadecimal digits."""
        return self._key.sign(content).hex()

    def signed(self, entries: Mapping[str, Any], signature: Signature | None) -> bool:
        """Whether this key signed these entries of a file."""
        return signed_by(entries, signature) == self.public

    def pem(self, passphrase: bytes | None = None) -> bytes:
        """PKCS #8, encrypted if there is a passphrase."""
        hidden = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        return self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)


def canonical(entries: Mapping[str, Any]) -> bytes:
    """The bytes that are signed: all entries but the signature, as JSON in ASCII with sorted names and no spaces."""
    facts = {name: value for name, value in entries.items() if name != "signature"}
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def signed_by(entries: Mapping[str, Any], signature: Signature | None) -> PublicKey | None:
    """The key that signed the entries of a file; None if the signature is not valid for the key that it names."""
    if signature is None:
        return None
    key = PublicKey(bytes.fromhex(signature.public_key))
    return key if key.verifies(canonical(entries), signature.value) else None


def write_keys(path: Path, signer: Signer, passphrase: bytes | None = None) -> Path:
    """Write the private key to ``path``, for its owner alone, and the public one to ``path.pub``, which is returned.

    Raises:
        ConfigurationError: one of the files exists; no key is ever replaced.
        OutputError: they cannot be written.
    """
    if path.name in ("", ".."):
        raise ConfigurationError(f"{path}: expected the name of a file for the key, got a folder: add a name")
    beside = path.with_name(f"{path.name}.pub")
    made: list[Path] = []
    try:
        for file, content, mode in ((path, signer.pem(passphrase), 0o600), (beside, signer.public.pem, 0o666)):
            # Created with its mode, and only if it is new: others can read it at no moment.
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as opened:
                made.append(file)
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
    except BaseException as error:
        for file in made:
            file.unlink(missing_ok=True)
        if isinstance(error, FileExistsError):
            raise ConfigurationError(
                f"{error.filename}: is there already, and no key is replaced: choose another name"
            ) from error
        if isinstance(error, OSError):
            raise cannot_write(path, error) from error
        raise
    return beside


def read_signer(path: Path | str, passphrase: bytes | None = None) -> Signer:
    """The private key in a PEM file, which only its owner and group may read."""
    content = read_secret("private key", path, most=MAX_PEM_BYTES)
    if b"PUBLIC KEY" in content:
        raise ConfigurationError(f"{path}: holds a public key: to sign, give the private one, without .pub")
    try:
        key = serialization.load_pem_private_key(content, passphrase)
    except TypeError as error:
        wrong = "is encrypted: give its passphrase" if passphrase is None else "is not encrypted: give no passphrase"
        raise ConfigurationError(f"{path}: {wrong}") from error
    except (ValueError, UnsupportedAlgorithm) as error:  # their messages are long and lead to another project
        hidden = passphrase is not None and b"ENCRYPTED" in content
        wrong = "the passphrase is wrong, or the file damaged" if hidden else f"expected PEM; {KEYGEN_ADVICE}"
        raise ConfigurationError(f"{path}: cannot be read as a private key: {wrong}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"{path}: expected an Ed25519 key, got {_kind(key)}; {KEYGEN_ADVICE}")
    check_owner_only(path)
    return Signer(key.private_bytes_raw())


def check_owner_only(path: Path | str) -> None:
    """Refuse the file of a private key if others than its owner and group have access."""
    mode = Path(path).stat().st_mode
    # A pipe has no such mode, and Windows stores permissions elsewhere.
    if os.name == "posix" and stat.S_ISREG(mode) and mode & 0o007:
        raise ConfigurationError(f"{path}: every user of this machine can reach this private key: chmod 600 {path}")


def read_public_key(path: Path | str) -> PublicKey:
    """The public key in a PEM file."""
    content = read_secret("public key", path, most=MAX_PEM_BYTES)
    if b"PRIVATE KEY" in content:
        raise ConfigurationError(f"{path}: holds a private key, which is for signing: to verify, give its .pub")
    try:
        key = serialization.load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            f"{path}: cannot be read as a public key: expected PEM, as keygen writes it"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"{path}: expected an Ed25519 key, got {_kind(key)}")
    return PublicKey(key.public_bytes_raw())


def read_passphrase(file: Path | str | None = None, *, variable: str | None = None) -> bytes:
    """The passphrase of a private key from a file or an environment variable."""
    found = read_secret("passphrase", file, variable=variable, most=MAX_PASSPHRASE)
    if not found:
        raise ConfigurationError(f"{file or variable}: expected a passphrase of 1 to {MAX_PASSPHRASE} bytes, got none")
    return found


def _kind(key: object) -> str:
    """The kind of a key, such as RSA, from the name of its class."""
    return type(key).__name__.removesuffix("PrivateKey").removesuffix("PublicKey").lstrip("_")
