# SPDX-License-Identifier: Apache-2.0
"""The encoding of standard output and error. Imports little, because the sampler imports it."""

import io
import sys


def set_letters() -> None:
    """Have standard output and error escape the letters that they lack, instead of failing over them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
