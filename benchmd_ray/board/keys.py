"""The key of a board, by which records are hashed, and signatures of bundles.

Hashes are keyed by board and dataset, so that bundles for one board can be compared on one dataset.
Whoever has the key can hash names of records and look for them. Signatures are Ed25519 (RFC 8032),
by the extra ``board``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
from pydantic import Field

from benchmd_ray.errors import BenchmdError, composed
from benchmd_ray.extensions.extras import importing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HASH_BYTES = 16
HASHES = pa.binary(HASH_BYTES)
NAME = re.compile("[a-z0-9][a-z0-9-]{1,63}")
LEAST_KEY_BYTES, MOST_KEY_BYTES = 16, 4096
SIGNED = b"benchmd bundle 1\0"
"""What a signed text begins with, so that a signature is of nothing else."""
KEY = "^[0-9a-f]{64}$"
PEM = b"-----BEGIN"
PURPOSE = "a signature of a bundle"
PUBLIC = (
    "the board's key is its name: whoever has the datasets can tell whose scores a row has (a key "
    "file for --board prevents that)"
)
"""Warning of a `BoardKey.public`."""


@dataclass(frozen=True)
class BoardKey:
    """The key of a board."""

    key: bytes = field(repr=False)
    public: bool
    """Whether it is a mere name, which everybody can guess."""

    @property
    def check(self) -> str:
        """A digest that tells the board's key from others."""
        return hashlib.blake2b(b"check", key=self.key, digest_size=8).hexdigest()

    def hashes(self, kind: str, dataset: str, names: Iterable[str]) -> list[bytes]:
        """Keyed hashes of names of a kind (``record``, ``unit``, ``patient``) of a dataset."""
        start = hashlib.blake2b(key=self.key, digest_size=HASH_BYTES)
        start.update(f"{kind}\0{composed(dataset)}\0".encode())
        hashes = []
        for name in names:
            whole = start.copy()
            whole.update(composed(name).encode())
            hashes.append(whole.digest())
        return hashes


def board_key(text: str) -> BoardKey:
    """The key of a board: the content of a file, or made of a name.

    Raises:
        BenchmdError: It is neither, or the file is too short or too long.
    """
    path = Path(text)
    if path.is_file():
        with path.open("rb") as file:
            secret = file.read(MOST_KEY_BYTES + 1).strip()
        if secret.startswith(PEM):
            raise BenchmdError(
                f"{path} is a key to sign with (PEM), which stays with its owner: expected the key "
                "of the board, which its organiser gave you."
            )
        if not LEAST_KEY_BYTES <= len(secret) <= MOST_KEY_BYTES:
            raise BenchmdError(
                f"the key file {path} has another length than {LEAST_KEY_BYTES} to "
                f"{MOST_KEY_BYTES:,} bytes: make one with `openssl rand -hex 32 > {path.name}`, "
                "and give it to all who submit to the board."
            )
        return BoardKey(hashlib.blake2b(b"file\0" + secret, digest_size=32).digest(), public=False)
    if not NAME.fullmatch(text):
        raise BenchmdError(
            f"--board {text!r} is neither a file nor a name of a board: expected a key file that "
            "exists, or 2 to 64 lower-case letters, digits and hyphens."
        )
    return BoardKey(hashlib.blake2b(f"name\0{text}".encode(), digest_size=32).digest(), public=True)


@dataclass(frozen=True)
class Signature:
    """Content of ``signature.json``."""

    public_key: Annotated[str, Field(pattern=KEY)]
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


def private_key(key_file: Path) -> Ed25519PrivateKey:
    """A private key to sign with, in PEM.

    Raises:
        BenchmdError: The file is not an Ed25519 key, or has a password.
    """
    with importing("cryptography", PURPOSE):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    try:
        with key_file.open("rb") as file:
            key = serialization.load_pem_private_key(file.read(MOST_KEY_BYTES), password=None)
    except (ValueError, TypeError, OSError):
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise BenchmdError(
            f"{key_file} is not a private Ed25519 key in PEM without a password: make one with "
            "`openssl genpkey -algorithm ed25519 -out me.pem`."
        )
    return key


def signed(content: bytes, key: Ed25519PrivateKey) -> Signature:
    """Sign a bundle's description."""
    public = key.public_key().public_bytes_raw().hex()
    return Signature(public, key.sign(SIGNED + hashlib.sha256(content).digest()).hex())


def is_signed(content: bytes, stated: Signature) -> bool:
    """Whether a signature is that of the content by its public key."""
    with importing("cryptography", PURPOSE):
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(stated.public_key))
        key.verify(bytes.fromhex(stated.signature), SIGNED + hashlib.sha256(content).digest())
    except (ValueError, InvalidSignature):
        return False
    return True
