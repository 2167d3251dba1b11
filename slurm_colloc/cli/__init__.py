# SPDX-License-Identifier: Apache-2.0
"""The programs: the only printing and exiting."""

import os
import sys


def _own_modules_first() -> None:
    """Move what PYTHONPATH names behind the interpreter's own folders.

    It is meant for the user's programs. A json.py in it, or in the current folder that an empty part of it stands for,
    must not come before ours: csub would end before it could hand the job to sbatch.
    """
    named = os.environ.get("PYTHONPATH")
    if not named:
        return
    foreign = set()
    for part in named.split(os.pathsep):
        foreign.add(part)
        try:
            foreign.add(os.path.abspath(part))
        except OSError:  # the current folder is gone
            continue
    sys.path.sort(key=lambda folder: folder in foreign)


_own_modules_first()
