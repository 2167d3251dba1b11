# SPDX-License-Identifier: Apache-2.0
"""``python -m slurm_colloc.cli.colloc``: how a job starts its own sampler, whatever PATH says."""

from slurm_colloc.cli.colloc import main

main()
