# SPDX-License-Identifier: Apache-2.0
"""What stands in beneath the doors."""

import subprocess
from pathlib import Path


def build_slowfs(folder: Path) -> Path:
    """Compile slowfs.c into this folder and return the library for LD_PRELOAD."""
    library = folder / "slowfs.so"
    source = Path(__file__).with_name("slowfs.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library
