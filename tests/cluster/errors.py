# SPDX-License-Identifier: Apache-2.0
"""What a lab raises."""

from __future__ import annotations


class LabError(Exception):
    """The lab could not do what it was asked; the message carries the tail of the log that tells why."""
