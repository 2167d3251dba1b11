# SPDX-License-Identifier: Apache-2.0
"""Short keys of texts."""

try:  # what hashlib would give, without the 4 ms that loading OpenSSL costs each submission
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b


def digest(text: bytes, size_bytes: int = 16) -> str:
    """Return a key of two characters for each of so many bytes."""
    return blake2b(text, digest_size=size_bytes).hexdigest()
