# SPDX-License-Identifier: Apache-2.0
"""The programs: the only printing and exiting."""
