# SPDX-License-Identifier: Apache-2.0
"""Checks of how a live site shares its GPUs, each with a code, over one record of facts."""
