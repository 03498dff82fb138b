"""Signed checkpoints: how far a stream had come at a time, so that a tail cut off later is missed (DESIGN 5.5)."""

import base64
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

Kind = Literal["periodic", "rotation", "closing", "retention"]
PUBLIC_KEY_SUFFIX = ".pub"


class KeyFileError(ValueError):
    """A key file that cannot be used, with its name and what to do."""


class Checkpoint(msgspec.Struct, frozen=True):
    """Record `seq` of `stream` has `hash`; `retention`: it is the last one that was removed.

    The signature is base64 Ed25519 over `stream\\nseq\\nhash\\ntime\\nkind`. `seq` 0 with 64 zeros: nothing written.
    """

    stream: str
    seq: int
    hash: str
    time: str
    kind: Kind
    signature: str = ""

    @property
    def signed_bytes(self) -> bytes:
        return f"{self.stream}\n{self.seq}\n{self.hash}\n{self.time}\n{self.kind}".encode()

    def sign(self, key: Ed25519PrivateKey) -> "Checkpoint":
        signature = base64.b64encode(key.sign(self.signed_bytes)).decode()
        return msgspec.structs.replace(self, signature=signature)

    def is_signed_by(self, keys: Iterable[Ed25519PublicKey]) -> bool:
        """Whether one of these keys made the signature."""
        try:
            signature = base64.b64decode(self.signature, validate=True)
        except ValueError:
            return False
        return any(_verifies(key, signature, self.signed_bytes) for key in keys)


def _verifies(key: Ed25519PublicKey, signature: bytes, message: bytes) -> bool:
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


_decoder = msgspec.json.Decoder(Checkpoint)


def encode(checkpoint: Checkpoint) -> bytes:
    """One line, without its newline."""
    return msgspec.json.encode(checkpoint)


def decode(line: bytes) -> Checkpoint | None:
    """A line as a Checkpoint, None if it is something else."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


# -- keys -------------------------------------------------------------------------------------------------------------


def load_key(path: Path) -> Ed25519PrivateKey:
    """A private key from a PEM file (PKCS 8, as `openssl genpkey -algorithm ed25519` makes). Raises KeyFileError."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise KeyFileError(
            f"{path}: no usable Ed25519 private key: {error}; make one: openssl genpkey -algorithm ed25519"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: not an Ed25519 key; make one: openssl genpkey -algorithm ed25519")
    return key


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    """The key in a file, made with mode 0600 if there is no such file. Raises KeyFileError or OSError."""
    if path.exists():
        return load_key(path)
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
    try:
        os.link(temporary, path)  # unlike a rename, this never replaces the key of a process that was quicker
    except FileExistsError:
        return load_key(path)
    finally:
        temporary.unlink()
    return key


def public_pem(key: Ed25519PrivateKey) -> bytes:
    """The public key as PEM, for `audit verify --public-key`."""
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def public_key_name(key: Ed25519PrivateKey) -> str:
    """`audit-<first 8 hex digits of its SHA-256>.pub`: one file for each key that ever signed in a folder."""
    return f"audit-{hashlib.sha256(key.public_key().public_bytes_raw()).hexdigest()[:8]}{PUBLIC_KEY_SUFFIX}"


def load_public_key(path: Path) -> Ed25519PublicKey:
    """A public key from a PEM file. Raises KeyFileError."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError) as error:
        raise KeyFileError(f"{path}: no usable Ed25519 public key: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise KeyFileError(f"{path}: not an Ed25519 public key")
    return key
