# SPDX-License-Identifier: Apache-2.0
"""What time a user's running jobs have left, as squeue prints it."""

import math

from slurm_colloc.slurm.running import parse_left


def test_a_line_of_another_form_is_left_out() -> None:
    text = "1|59:00\n4_2|1-02:00:00\n7|UNLIMITED\n8|INVALID\n9\nslurm_load_jobs error: Unable to contact\n"
    assert parse_left(text) == {"1": 3540, "4_2": 93600, "7": math.inf}
