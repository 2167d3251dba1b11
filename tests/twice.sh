#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pytest with these arguments; what failed, if it is little, once more without others beside it. A fault fails again. A
# test that depends on how busy the machine is passes, and is named: it is to be mended, and holds up nobody until then.
set -uo pipefail
cd "$(dirname "$0")/.."
cache=$(mktemp -d)
trap 'rm -rf "$cache"' EXIT
.venv/bin/pytest -o cache_dir="$cache" "$@"
status=$?
failed=$cache/v/cache/lastfailed
# 1: tests failed; 2 to 5: pytest itself, or its arguments.
[ "$status" = 1 ] && [ -s "$failed" ] && [ "$(grep -c '": true' "$failed")" -le 5 ] || exit "$status"
named=$(sed -n 's/^ *"\(.*\)": true.*/\1/p' "$failed")
.venv/bin/pytest -o cache_dir="$cache" "$@" -n 0 --last-failed --last-failed-no-failures none || exit
printf '%s\n' "passed the second time, alone, and to be mended:" "$named"
