"""API keys: how one is made, what tells a whole key from a mistyped one, and what is kept of it.

A key is `pm_`, 32 random base-62 characters (190 bits) and 6 of a checksum; it is shown once. Kept
are its SHA-256, which is right for a key nobody can guess, and an id that is the digest's first 128
bits: looking the id up tells nothing of the rest.
"""

import hashlib
import re
import secrets
import zlib

from queueing.job import encode_base62

_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PREFIX = "pm_"
_NUM_RANDOM = 32
_NUM_CHECKSUM = 6
_SHAPE = re.compile(rf"pm_[0-9A-Za-z]{{{_NUM_RANDOM + _NUM_CHECKSUM}}}")


def new_api_key() -> str:
    """Return a key that nobody has."""
    random = "".join(secrets.choice(_ALPHABET) for _ in range(_NUM_RANDOM))
    return _PREFIX + random + _checksum(random)


def is_whole(text: str) -> bool:
    """Tell whether a text can be one of our keys: its shape and checksum are right."""
    if not _SHAPE.fullmatch(text):
        return False
    return text.endswith(_checksum(text.removeprefix(_PREFIX)[:_NUM_RANDOM]))


def digest_of(api_key: str) -> str:
    """Return a key's SHA-256 in hex."""
    # What comes over the wire is any sequence of characters, also of those without an encoding.
    return hashlib.sha256(api_key.encode("utf-8", "surrogatepass")).hexdigest()


def id_of(digest: str) -> str:
    """Return the id of the key with this digest."""
    return "key_" + encode_base62(int(digest[:32], 16))


def hint_of(api_key: str) -> str:
    """Return what its owner recognises a key by."""
    return f"{_PREFIX}...{api_key[-4:]}"


def _checksum(random: str) -> str:
    return encode_base62(zlib.crc32(random.encode()))[-_NUM_CHECKSUM:]
