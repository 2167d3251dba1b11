# SPDX-License-Identifier: Apache-2.0
"""Whether a node could hold GPU memory limits by cgroup: NVML's nvmlDeviceSetMemoryLimits_v1, not called yet."""

import re
from pathlib import Path

# The first driver, and the first kernel with the controller dmem; the driver falls back on misc.
_DRIVER = 615
_KERNEL = (6, 14)


def memory_limits_of(root: Path, kernel: str) -> str:
    """Return what the files of a node say of GPU memory limits that hold; empty where there is no driver.

    Args:
        root: the root of its file system.
        kernel: its release, as uname has it.
    """
    driver = re.search(r"Kernel Module.*?\s(\d{3,})\.(\d[\d.]*)", _text(root / "proc/driver/nvidia/version"))
    if driver is None:
        return ""
    controllers = _text(root / "sys/fs/cgroup/cgroup.controllers").split()
    numbers = re.match(r"(\d+)\.(\d+)", kernel)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    lacking = [
        *([f"driver {driver[1]}.{driver[2]} is older than r{_DRIVER}"] if int(driver[1]) < _DRIVER else []),
        *(["cgroup v2 is not there"] if not controllers else []),
        *(["cgroup v2 has neither dmem nor misc"] if controllers and not {"dmem", "misc"} & set(controllers) else []),
    ]
    if lacking:
        return f"no GPU memory limit by cgroup could hold here: {', '.join(lacking)}"
    by = "dmem" if "dmem" in controllers and release >= _KERNEL else "misc, for want of dmem"
    return f"GPU memory limits by cgroup ({by}) could hold here; Slurm and colloc do not set them yet"


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
