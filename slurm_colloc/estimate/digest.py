# SPDX-License-Identifier: Apache-2.0
"""Short keys of texts."""

try:  # hashlib would give the same, and loading OpenSSL costs each submission 4 ms
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b


def digest(text: bytes | str, size_bytes: int = 16) -> str:
    """Return a key of two characters for each of so many bytes; a text may hold any bytes that are no characters."""
    content = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return blake2b(content, digest_size=size_bytes).hexdigest()
