# SPDX-License-Identifier: Apache-2.0
"""What stands in beneath the doors."""

import subprocess
from pathlib import Path


def build_preload(name: str, folder: Path) -> Path:
    """Compile NAME.c into this folder and return the library for LD_PRELOAD."""
    library = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, source, "-ldl"], check=True)
    return library
