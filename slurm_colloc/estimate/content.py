# SPDX-License-Identifier: Apache-2.0
"""The part of a file that matters for a job: without comments, messages and labels of runs."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress

from slurm_colloc.estimate.file_kinds import C_LIKE, PLAIN_SETTINGS, SHELL
from slurm_colloc.estimate.option_names import is_noise

# Each begins with a letter that is rare where it can: so a text is searched ten times as fast.
_READ_BY_MACHINES = rb"(?![ \t]*(?:include|define|undef|if|ifdef|ifndef|elif|else|endif|pragma|import)\b)"
_COMMENT_LINE = re.compile(rb"[ \t]*+#" + _READ_BY_MACHINES)
# Behind code a comment begins only where no quote follows: it could be within a text.
_COMMENT = re.compile(rb"#(?<=[ \t]#)" + _READ_BY_MACHINES + rb"[^\n\"']{0,200}$", re.MULTILINE)
_C = rb"(?m)^[ \t]*+//[^\n]*|(?<=[;{})])[ \t]{0,40}//[^\n\"]{0,200}$"
# Patterns as text are compiled where one is needed: few files of a kind are read at a submission.
_OTHER_COMMENTS = {
    **dict.fromkeys(C_LIKE, _C),
    **dict.fromkeys(("f", "f90", "f95", "nml"), rb"(?m)^[ \t]*+![^\n]*"),
    **dict.fromkeys(("mdp", "top", "itp", "ini", "cfg"), rb"(?m)^[ \t]*+;[^\n]*|;[^\n\"']{0,200}$"),
    "m": rb"(?m)^[ \t]*+%[^\n]*|(?<=;)[ \t]{0,40}%[^\n']{0,200}$",
    "lua": rb"(?m)^[ \t]*+--[^\n]*",
}
# What a program says and nothing else.
_MESSAGE = (
    rb"[ \t]*+(?:print|println|cat|message|disp|f?printf|log(?:ger|ging)?\.(?:debug|info|warning))[ \t]*\([^()]*\);?$"
)
# A setting on a line of its own.
_SETTING = re.compile(
    rb"^([ \t\"'-]*+(?:export[ \t]++)?)([\w.+-]{1,80}+)([\"']?[ \t]*+[:=][ \t]*+)([^\n]{1,400})$", re.MULTILINE
)
_BLANKS = re.compile(rb"(?<=\S)[ \t]+")
_RUN_NUMBER = (
    rb"(?i)((?<![a-z])(?:seed|port|(?:log|print|save|eval)_(?:interval|freq|every))[\"']?(?:[ \t]*+[:=][ \t]*+|[ \t]++)"
    rb"|velocity[ \t]+\S{1,40}[ \t]+create[ \t]+\S{1,40}[ \t]+)\d+\b"
)
_OF_RUNS = (b"seed", b"port=", b"port =", b"port:", b"port ", b"_interval", b"_freq", b"_every", b"velocity")
# What a function, a class or a module says of itself.
_TEXT = rb"(?:\"\"\"[^\"]*(?:\"(?!\"\")[^\"]*)*\"\"\"|'''[^']*(?:'(?!'')[^']*)*''')[ \t]*$"
_DOCSTRING = rb"(?m):[ \t]*\n\s{0,40}" + _TEXT
_FIRST_DOCSTRING = rb"(?m)\A\s*+" + _TEXT
# Of a here-document: it starts as a comment does.
_DEFINES = re.compile(r"#\s*define\s")
_SAYS = re.compile(
    r"(?:echo|printf)\b(?:\$\((?:date|hostname)\b[^>|`(;&)]*\)|[^>|`(;&])*$|mkdir\b[^>|`(;&$]*$"
    r"|(?:date|hostname|nvidia-smi|env|pwd|uname|which|ls|free|df|lscpu|whoami|module\s+list)\b[^>|`(;&]*$|set\s+-[a-z]+\s*$"
)
_BEHIND = r"\s#[^\"']{0,200}$"


def said(content: bytes, ending: str) -> bytes:
    """Return what decides of a file of this ending (without its dot)."""
    if ending == "ipynb":
        return _of_notebook(content)
    other = _OTHER_COMMENTS.get(ending)
    if ending in C_LIKE and b"/*" in content:
        before, *rest = content.split(b"/*")
        content = before + b"".join(part.partition(b"*/")[2] for part in rest)
    content = re.sub(other, b"", content) if other else _COMMENT.sub(b"", content) if b"#" in content else content
    if ending in SHELL:
        content = shell_lines(content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    lines: Iterable[bytes] = filter(None, map(bytes.rstrip, content.split(b"\n")))
    if b"#" in content and ending not in C_LIKE:
        lines = (line for line in lines if b"#" not in line or not _COMMENT_LINE.match(line))
    if ending not in PLAIN_SETTINGS:
        lines = (line for line in lines if line[-1:] not in b");" or not re.match(_MESSAGE, line))
    content = b"\n".join(lines)
    if ending == "py" and (b'"""' in content or b"'''" in content):
        content = re.sub(_DOCSTRING, b":", content)
        content = re.sub(_FIRST_DOCSTRING, b"", content).lstrip()
    if ending in PLAIN_SETTINGS:
        content = _BLANKS.sub(b" ", _SETTING.sub(_but_noise, content))
    if ending == "json":
        content = content.translate(None, b" \t\r\n")
    small = content.lower()
    return re.sub(_RUN_NUMBER, rb"\1*", content) if any(name in small for name in _OF_RUNS) else content


def _but_noise(found: re.Match[bytes]) -> bytes:
    name = found[2].decode(errors="replace")
    value = found[4].decode(errors="replace").strip(" \t\r,").strip("\"'")
    return b"%s%s=*" % (found[1], found[2]) if value and value[0] not in "[{|>&" and is_noise(name, value) else found[0]


def _of_notebook(content: bytes) -> bytes:
    """Return the code of a notebook, without what running it wrote there."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        cells = json.loads(content)["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        return said("\n".join(code).encode(errors="surrogatepass"), "py")
    return content


def shell_lines(text: str) -> str:
    """Return the lines of a script that do something, each on one line."""
    lines = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines()):
        bare = " ".join(line.split())
        bare = re.sub(_BEHIND, "", bare) if " #" in bare else bare
        is_comment = bare.startswith("#") and not _DEFINES.match(bare) and (number or not bare.startswith("#!"))
        if not bare or _SAYS.match(bare) or is_comment:
            continue
        lines.append(bare)
    return "\n".join(lines)
