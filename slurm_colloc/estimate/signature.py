# SPDX-License-Identifier: Apache-2.0
"""What makes two submissions the same job."""

from collections.abc import Sequence

try:  # what hashlib would give, without the 4 ms that loading OpenSSL costs each submission
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b


def signature(script: bytes, script_args: Sequence[str], gpu_count: int) -> str:
    """Return a key that is equal for submissions of the same text with the same arguments and number of GPUs.

    Directive lines are left out: a longer time limit or another partition does not change what a job does to a GPU.
    """
    body = [line for line in script.splitlines() if not line.startswith((b"#SBATCH", b"#CSUB"))]
    parts = [b"\n".join(body), *(argument.encode(errors="surrogateescape") for argument in script_args)]
    # Length-prefixed, so that moving a character from one argument to the next makes another key.
    return digest(b"%d" % gpu_count + b"".join(b"%d:" % len(part) + part for part in parts))


def digest(text: bytes) -> str:
    """Return a key of 32 characters for a text."""
    return blake2b(text, digest_size=16).hexdigest()
