"""The key of a payload: where it comes from, and the bits that are derived from it."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError

__all__ = ["Key", "checksum_bits", "mask", "permutation", "read_key"]

MIN_BYTES = 16  # shorter ones can be found by trying
MAX_BYTES = 4096  # a file above is not a key: most likely the wrong path
ADVICE = "make one with: openssl rand -hex 32"


@dataclass(frozen=True)
class Key:
    """A secret that masks and permutes the bits of a payload and signs them.

    Without it nothing can be read and nothing that will be believed can be written, not even with the network.
    It is not encryption in the strict sense: so few bits leave no room for a nonce, so one key gives the same mask
    and order for every image. Whoever has the network sees whether two images carry the same payload, and who also
    knows the payloads of some images can work out the mask, and read others. Forging stays hard: the checksum is a
    keyed BLAKE2b. A whole watermark can however be copied from one image to another. Put an identifier into the
    payload, not the secret itself.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < MIN_BYTES:  # neither the key nor its length is told
            raise ConfigurationError(f"expected a key of at least {MIN_BYTES} bytes, got a shorter one; {ADVICE}")


def read_key(file: Path | str | None = None, *, variable: str | None = None) -> Key | None:
    """The key from a file or from an environment variable; None if neither is named.

    Line ends behind it are not part of the key. There is no way to give it on a command line, where every user of
    the machine could read it.

    Args:
        file: its path.
        variable: the name of the environment variable.
    """
    if file is not None and variable is not None:
        raise ConfigurationError("expected the key in a file or in an environment variable, got both: give one")
    if file is not None:
        where = f"the file {file}"
        try:
            with Path(file).open("rb") as opened:  # no is_file: a pipe from a password manager is welcome
                secret = opened.read(MAX_BYTES + 1)
        except OSError as error:
            raise ConfigurationError(f"the key file {file} cannot be read: {error.strerror or error}") from error
    elif variable is not None:
        where = f"the environment variable {variable}"
        if variable not in os.environ:
            raise ConfigurationError(f"{where} is not set: it should hold the key")
        secret = os.fsencode(os.environ[variable])
    else:
        return None
    if len(secret) > MAX_BYTES:
        raise ConfigurationError(f"{where} holds more than {MAX_BYTES} bytes: expected a key; {ADVICE}")
    secret = secret.rstrip(b"\r\n")
    if len(secret) < MIN_BYTES:
        raise ConfigurationError(f"{where} holds less than {MIN_BYTES} bytes: too short for a key; {ADVICE}")
    return Key(secret)


def _derive(key: Key | None, purpose: str, size: int) -> bytes:
    """Bytes for one purpose. Without a key they are public, but still unlike what an unmarked image reads as."""
    secret = b"" if key is None else key.secret
    master = hashlib.blake2b(secret, person=b"samplewise key 1").digest()
    return hashlib.shake_256(master + purpose.encode()).digest(size)


def mask(key: Key | None, bits: int) -> NDArray[np.uint8]:
    """Zeros and ones to add to a frame, ``(bits,)``."""
    stream = np.frombuffer(_derive(key, f"mask {bits}", -(-bits // 8)), np.uint8)
    return np.unpackbits(stream)[:bits]


def permutation(key: Key | None, bits: int) -> NDArray[np.intp]:
    """The order in which a frame's bits are hidden, ``(bits,)``."""
    stream = np.frombuffer(_derive(key, f"order {bits}", 8 * bits), "<u8")
    return np.argsort(stream, kind="stable")


def checksum_bits(key: Key | None, content: bytes, size: int) -> NDArray[np.uint8]:
    """The first ``size`` bits of the keyed BLAKE2b of ``content``."""
    digest = hashlib.blake2b(content, key=_derive(key, "checksum", hashlib.blake2b.MAX_KEY_SIZE)).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8))[:size]
