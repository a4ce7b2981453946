"""The keys of an encrypted store: a master key wraps a key for each owner, which seals texts and hashes search terms.

Sealing is AES-SIV (RFC 5297) without a nonce: equal texts at one place give equal bytes, so that a write that is tried again is
recognised. It gives nothing else away.
"""

from __future__ import annotations

import os
from binascii import Error, a2b_base64, b2a_base64
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

from ctxfold.errors import ConfigError, MissingExtraError, StoreCorruptError
from ctxfold.lru import lazy_pattern
from ctxfold.validation import kind_of

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV
    from cryptography.hazmat.primitives.hashes import SHA512
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise MissingExtraError('an encrypted store needs cryptography: pip install "ctxfold[encryption]"') from error

KEY_BYTES = 32
ID_CHARS = 8  # of the id of a key, in front of what it seals
TERM_CHARS = 8  # 6 bytes: of 100,000 terms of an owner, some two are equal with a chance of 1 to 50,000
_MASTER_NAME = lazy_pattern(r"[\w.:/@+-]{1,200}")

FindKey: TypeAlias = Callable[[str | None], tuple[str, bytes]]
KeySource: TypeAlias = "str | os.PathLike[str] | FindKey"


def key_finder(keys: KeySource) -> FindKey:
    """Returns a function that finds the master key of a name, or the one in use, with its name; LookupError for one it lacks."""
    if isinstance(keys, (str, os.PathLike)):
        path = Path(os.fspath(keys))
        return lambda name: _in_file(path, name)
    if not callable(keys):
        raise ConfigError(f"keys is {kind_of(keys)}: give the path of a key file, or a function of a key's name")
    return lambda name: _given(keys(name))


def _given(found: object) -> tuple[str, bytes]:
    """Returns what a user's function has found; raises ConfigError for what is no name with a key."""
    match found:
        case (str(name), bytes(key)):
            return name, key
        case _:
            raise ConfigError(f"the function of keys returned {kind_of(found)}: return the name and the bytes of a key")


def _in_file(path: Path, name: str | None) -> tuple[str, bytes]:
    """Finds a key in a file. It is read whenever a key is asked for, so that workers need no restart."""
    try:
        rows = [line.split() for line in path.read_text("utf-8-sig").splitlines() if line.strip() and line[0] != "#"]
        name = rows[-1][0] if name is None else name
        return name, a2b_base64(dict(rows)[name])
    except (OSError, ValueError, IndexError) as error:
        advice = "each line is a name and what `openssl rand -base64 32` prints, and the last line is the key in use"
        raise ConfigError(f"key file {str(path)!r} cannot be used ({type(error).__name__}): {advice}") from None


def wrap(find: FindKey, secret: bytes) -> str:
    """Returns the name of the master key in use, a space, and the secret wrapped by it."""
    name, key = find(None)
    return f"{name} {_text(_master(name, key).encrypt(secret, [name.encode()]))}"


def unwrap(find: FindKey, wrapped: str) -> bytes:
    """Reverses `wrap`. Raises ConfigError for a master key that is not there, StoreCorruptError for another one of its name."""
    name, _, data = wrapped.partition(" ")
    try:
        return _master(*find(name)).decrypt(a2b_base64(data), [name.encode()])
    except LookupError:
        raise ConfigError(f"master key {name!r} is in use and missing: add it, and remove it after rotate()") from None
    except (InvalidTag, Error):
        raise StoreCorruptError(f"master key {name!r} is not the one the store was written with: find that") from None


def _master(name: str, key: bytes) -> AESSIV:
    if len(key) != KEY_BYTES or not _MASTER_NAME.fullmatch(name):
        raise ConfigError(f"master key {name[:80]!r} has {len(key)} bytes: give {KEY_BYTES}, and a name without spaces")
    return AESSIV(_derived(key, "ctxfold master key"))


def _derived(secret: bytes, purpose: str) -> bytes:
    """Returns 64 bytes for one purpose."""
    return HKDF(SHA512(), 64, None, purpose.encode()).derive(secret)


def _text(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def new_secret(*, hides_names: bool = False) -> bytes:
    """Returns what an owner's key is made of."""
    return os.urandom(KEY_BYTES) + bytes([hides_names])


class OwnerKey:
    """The key of one owner: seals texts, and hashes terms and ids. `hides_names`: the store has names only in sealed form."""

    def __init__(self, secret: bytes, owner: str) -> None:
        self.hides_names = secret[-1:] == b"\1"
        self._siv = AESSIV(_derived(secret, f"ctxfold seals {owner}"))
        self._hash = blake2b(key=_derived(secret, f"ctxfold hashes {owner}"), digest_size=18)
        self.id = self.hashed("id of the key")[:ID_CHARS]

    def hashed(self, text: str) -> str:
        """Returns what stands for an id: 24 characters."""
        copy = self._hash.copy()
        copy.update(text.encode(errors="surrogatepass"))
        return _text(copy.digest())

    def term(self, term: str) -> str:
        """Returns what stands for a search term; the empty term, which names the documents, stays."""
        return self.hashed(term)[:TERM_CHARS] if term else ""

    def seal(self, content: str, *place: str) -> str:
        """Returns the sealed text, behind the id of the key; only `open` at the same place reads it."""
        return self.id + _text(self.seal_bytes(content.encode(), *place)[ID_CHARS:])

    def seal_bytes(self, content: bytes, *place: str) -> bytes:
        return self.id.encode() + self._siv.encrypt(b"\0" + content, ["\0".join(place).encode()])

    def open(self, sealed: str | bytes, *place: str) -> bytes:
        """Reverses both; raises StoreCorruptError for what is not as it was written, or was written elsewhere."""
        try:
            data = a2b_base64(sealed[ID_CHARS:]) if isinstance(sealed, str) else sealed[ID_CHARS:]
            if isinstance(sealed, str) and _text(data) != sealed[ID_CHARS:]:
                raise InvalidTag  # the last bits of base64 may differ and mean the same
            return self._siv.decrypt(data, ["\0".join(place).encode()])[1:]
        except (InvalidTag, ValueError):
            raise StoreCorruptError(f"{' '.join(place)!r} is not as it was sealed: restore a copy") from None
