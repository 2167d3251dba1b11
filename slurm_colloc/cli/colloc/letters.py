# SPDX-License-Identifier: Apache-2.0
"""Which letters standard output and error can show. Nothing is imported here that a sampler should not carry."""

import io
import sys


def set_letters() -> None:
    """Have standard output and error escape the letters that they lack, instead of failing over them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
