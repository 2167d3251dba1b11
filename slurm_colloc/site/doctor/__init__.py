# SPDX-License-Identifier: Apache-2.0
"""What is wrong with how a live site shares its GPUs: checks, each with a code, over one record of facts."""
