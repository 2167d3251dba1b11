# SPDX-License-Identifier: Apache-2.0
"""Classifies files by name: code, settings, data or output of a run."""

import re
from collections.abc import Collection

C_LIKE = frozenset({"c", "cc", "cpp", "cxx", "cu", "cuh", "h", "hpp", "hip"})
COMPILED = C_LIKE | {"f", "f90", "f95"}
SHELL = frozenset({"sh", "bash", "zsh", "ksh", "sbatch", "slurm", "pbs"})
_CODE = COMPILED | SHELL | {"py", "pyx", "r", "jl", "m", "lua", "ipynb"}
PLAIN_SETTINGS = frozenset({"yaml", "yml", "json", "toml", "ini", "cfg", "conf", "env"})
_SETTINGS = PLAIN_SETTINGS | {
    *("jsonc", "config", "gin", "properties", "xml", "mk", "cmake", "in", "inp", "lmp", "mdp", "top", "itp", "namd"),
    *("mdin", "nml", "smk", "rules", "jinja", "j2", "tcl", "jsonnet", "libsonnet", "pbtxt", "prototxt", "hocon"),
}
WRITTEN_BY_PROGRAMS = frozenset({"json", "xml"})
_SETTINGS_NAMES = re.compile(
    r"(?:GNU)?[Mm]akefile|Snakefile|Justfile|INCAR|POSCAR|KPOINTS|in\..+|model\.xyz|\w+(?:Dict|Properties)|fv\w+|inputs"
)
# Nobody's but the tools' and the packages'; who needs one names it.
OF_TOOLS = re.compile(
    r"pyproject\.toml|setup\.(?:py|cfg)|(?:Julia)?Manifest\.toml|environment\.ya?ml|tox\.ini|package(?:-lock)?\.json"
)
# What only runs write.
_RESULTS = frozenset(
    {"log", "out", "err", "o", "pyc", "lock", "xtc", "trr", "dcd", "edr", "cpt", "nc", "html", "md", "rst", "tmp"}
    | {"png", "jpg", "jpeg", "gif", "svg", "pdf", "cache", "swp", "bak"}
)
WEIGHTS = frozenset({"safetensors", "bin", "pt", "pth", "ckpt", "gguf", "onnx", "h5"})
CACHES = frozenset({"tmp", "__pycache__", "node_modules", "site-packages", "wandb", "mlruns"})
RESULTS_FOLDERS = (
    r"(?i)logs?|.*[_-]logs?|outputs?|results?|runs?|checkpoints?|ckpts?|multirun|artifacts|work_dirs|tensorboard"
    r"|saves?|executed"
)
# Unless something names them.
ASIDE = re.compile(r"tests?|docs?|examples?|notebooks?|analysis|figures?|plots?|assets|static|ci")
_OF_NAMES = bytes(c if chr(c).isalnum() or c in b"_.+" or c > 127 else 95 if c == 45 else 32 for c in range(256))
_OF_PATHS = bytes(c if chr(c).isalnum() or c in b"_.+-/~" or c > 127 else 32 for c in range(256))
_PART = re.compile(rb"[^\W\d_]+|\d+")


def ending_of(name: str) -> str:
    return name.rpartition(".")[2].lower() if "." in name else ""


def kind_of(name: str) -> str:
    """Return whether a file is code, settings, data, or what a run left behind, by its name."""
    ending = ending_of(name)
    if ending in _CODE:
        return "code"
    if ending in _SETTINGS or _SETTINGS_NAMES.fullmatch(name):
        return "settings"
    return "results" if ending in _RESULTS else "data"


def names_in(content: bytes) -> set[bytes]:
    """Return the words of a text that may name files; those with dots in parts, too."""
    found = set(content.translate(_OF_NAMES).split())
    dotted = [word for word in found if b"." in word]
    for word in dotted:
        found.add(word.strip(b"."))
        found.update(word.split(b"."))
    if b"*." in content:
        found.update(re.findall(rb"\*\.\w+", content))
    return found


def elsewhere(content: bytes) -> set[str]:
    """Return the code and settings, and folders from the one above, that a text names elsewhere, or hidden: all else
    beneath the job's folder is looked at anyway.
    """
    words = {word for word in content.translate(_OF_PATHS).split() if word[0] in b"/~." and not word.startswith(b"//")}
    found = {word.decode(errors="surrogateescape").rstrip("./") for word in words}
    return {word for word in found if word.startswith("../") or is_read_by_name(word)}


def is_read_by_name(path: str) -> bool:
    """Return whether a file is code or settings by its name."""
    return kind_of(path.rpartition("/")[2]) in ("code", "settings")


def as_word(name: str) -> bytes:
    return name.encode(errors="surrogateescape").replace(b"-", b"_")


def is_named(name: str, words: Collection[bytes], parts_of: Collection[bytes] = ()) -> bool:
    """Return whether a file's name, without its ending, is among words, or is made up of others."""
    whole = as_word(name)
    stem = whole.rpartition(b".")[0] or whole
    if stem in words or whole in words:
        return True
    parts = _PART.findall(stem)
    return len(parts) > 1 and all(part in parts_of for part in parts)
