# SPDX-License-Identifier: Apache-2.0
"""Whether a script takes for a number what Slurm says of its GPU.

CUDA_VISIBLE_DEVICES is MIG-<uuid> on a slice, and the numbers of the others count slices: `+devices $GPU`, `cuda:$GPU`
or int() of them fail, or mean another GPU. Words that only say, test, count or hand on such a variable do no harm.
"""

import re

_DEVICES = rb"(?:CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|SLURM_(?:JOB|STEP)_GPUS)(?!\w)"
_VALUE_OF = rb"[\"'\\]{0,3}\$\{?%s(?::?-[^}\n]{0,80})?\}?[\"'\\]{0,3}"
_VALUE = _VALUE_OF % _DEVICES
_UUID = _VALUE_OF % rb"CUDA_VISIBLE_DEVICES(?!\w)"
_IN_PYTHON = (
    rb"(?:environ(?:\.get)?|\bgetenv)\s*[\[(]\s*[\"']%s[\"'](?:\s*,\s*[\"'][^\"'\n]{0,80}[\"'])?\s*[\])]" % _DEVICES
)
_READ = rb"\$\{?[#!]?%s|%s|\bENV\s*[\[{(]\s*[\"']?%s|\$\(\s*printenv\s+%s|`\s*printenv\s+%s" % (
    _DEVICES,
    _IN_PYTHON,
    _DEVICES,
    _DEVICES,
    _DEVICES,
)
# The value of an option, and a device of PyTorch's, also where a command is only said.
_OPTION = rb"(?:\bcuda:|[ \t](?:\+|--?)(?![nzev][ \t])\w[\w-]{0,80}(?:[ \t]{1,80}|=)[\"']?)\$\{?%s(?!:?\+)" % _DEVICES
# A command begins a line, or stands behind these.
_BEGINS = rb"(?:^|[;&|{]|\b(?:do|then|else)\b)[ \t]*(?:>&2[ \t]*)?"
_LOGGED = (
    rb"(?:(?:[12]?>{1,2}|\|[ \t]*tee)(?:[ \t]+-a)?[ \t]*"
    rb"(?:&[12]|[^\s;|&]{0,200}(?:log|out|err|null)[^\s;|&]{0,80}))?"
)
# Words between quotes are said, too, but for a command that stands there.
_QUOTED = rb"(?:\"(?:[^\"\\`$\n]|\\.|\$(?!\())*\"|'[^'\n]*')"
_HARMLESS = (
    # It is there or not: ${GPU:+x}, [ -n "$GPU" ], [ "$GPU" = "" ].
    rb"\$\{%s:?\+" % _DEVICES,
    rb"-[nzv][ \t]+%s" % _VALUE,
    rb"[\"']?x?%s[ \t]*(?:==?|!=)[ \t]*(?:[\"']x?(?:NoDevFiles)?[\"']|x?[\"']{2}|NoDevFiles|\*,\*)" % _VALUE,
    rb"%s:[ \t]+[\"']?\$\{%s:?[?=-]" % (_BEGINS, _DEVICES),
    # How many there are is one.
    rb"\becho[ \t]+(?:-n[ \t]+)?%s(?:[ \t]*\|[^|;&)`\n]{0,80}){0,3}?[ \t]*\|[ \t]*"
    rb"(?:wc[ \t]+-[lw]|awk[ \t]+-F[ \t]*[\"']?,[\"']?[ \t]+[\"']\{[ \t]*print[ \t]+NF;?[ \t]*\})" % _VALUE,
    rb"\blen\([ \t]*(?:os\.)?%s\.split\(" % _IN_PYTHON,
    # CUDA's own and containers' take a UUID.
    rb"\w{0,40}VISIBLE_DEVICES=%s(?=[\s;&|)\"',]|\Z)" % _UUID,
    rb"--gpus[ =]+[\"'\\]{0,3}device=%s(?=[\s;&|)\"']|\Z)" % _UUID,
    # It is said.
    rb"%s(?:echo|printf|logger)\b(?>%s|[^|>`(;&\n]){0,1000}%s(?=[ \t]*(?:[;&\n}]|\Z))" % (_BEGINS, _QUOTED, _LOGGED),
    rb"^[ \t]*(?:print|log(?:ger|ging)?\.\w{1,20})\((?:(?!int\()[^;\n]){0,1000}\)[ \t]*$",
    # It is set.
    rb"environ\[[\"']%s[\"']\][ \t]*=(?!=)" % _DEVICES,
)
_SKIPPED = b"(?m)" + b"|".join(b"(?:%s)" % pattern for pattern in _HARMLESS)
_INNER = rb"\$\((?:(?!%s)[^()`]){0,400}\)" % _DEVICES
# A script without any names no device. Compiled where one does: that takes 4 ms, and few scripts do.
_TELLING = (b"CUDA_VISIBLE_DEVICES", b"GPU_DEVICE_ORDINAL", b"SLURM_JOB_GPUS", b"SLURM_STEP_GPUS")


def device_taken_for_number(commands: bytes) -> str | None:
    """Return the variable that a script without its comments may take for a GPU's number; None where it takes none."""
    if not any(name in commands for name in _TELLING):
        return None
    # Words of another command in the middle of a sentence are none of its matter.
    text = re.sub(_INNER, b"", commands.replace(b"\\\n", b" "))
    use = re.search(_OPTION, text) or re.search(_READ, re.sub(_SKIPPED, b"", text))
    name = re.search(_DEVICES, use[0]) if use else None
    return name[0].decode() if name else None
