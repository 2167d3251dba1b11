# SPDX-License-Identifier: Apache-2.0
"""Share GPUs between Slurm jobs that do not need a whole one, and account for what each job really used."""

__version__ = "0.1.0"
