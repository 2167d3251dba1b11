# SPDX-License-Identifier: Apache-2.0
"""Classifies options and variables by name: a size, or only a label of the run.

A name is read as its words: ``maxSeqLen`` and ``--max-seq-len`` are one.
"""

import re

_NUMBER = r"[-+]?\d+(?:_\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?"
IS_NUMBER = re.compile(_NUMBER)
_WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]*|\d+")

# What tells runs of one job apart, and what no other word could make use of.
_ALWAYS_NOISE = frozenset({"seed", "rng", "port", "timestamp"})
# What does nothing else: where its results go, what it is called, its seed and its port.
_NOISE = _ALWAYS_NOISE | {
    "seeds",
    "out",
    "output",
    "outdir",
    "outputs",
    "savedir",
    "logdir",
    "logfile",
    "notes",
    "comment",
}
_RANDOM_STATE = frozenset({"random", "state"})
_LOG_LEVELS = tuple(
    map(frozenset, ({"log", "level"}, {"loglevel"}, {"logging", "level"}, {"log", "verbosity"}, {"verbosity"}))
)
_HOW_MANY = frozenset({"n", "num", "number", "seeds"})
# How often something is written: any other number behind such a word may size, as --log-grid and --out do.
_RHYTHM = frozenset(
    {"every", "interval", "freq", "frequency", "steps", "step", "epochs", "epoch", "iter", "iters", "limit"}
)
# Of these some are switches, and what stands behind them is another word: only a path or a rhythm belongs to them.
_NOISE_OR_SWITCH = frozenset(
    {"save", "log", "logs", "logging", "logger", "result", "results", "wandb", "tensorboard", "tb", "mlflow"}
)
# A size whose name holds such a word as well: --output-size, --log-alpha.
_SIZES = frozenset(
    {"size", "dim", "dims", "channel", "channels", "feature", "features", "class", "classes", "length", "len", "width"}
    | {"height", "layer", "layers", "unit", "units", "hidden", "token", "tokens", "depth", "batch", "model", "dataset"}
    | {"res", "resolution", "image", "images", "samples", "prompt", "frames"}
)
# "output_attentions: true" is no place.
_SWITCHED = frozenset({"true", "false", "yes", "no", "on", "off"})
_TRACKERS = frozenset({"wandb", "mlflow", "tensorboard"})
_FOLDERS = frozenset({"dir", "folder", "path", "root"})
# With "name", "id" or "tag".
_RUNS = frozenset({"run", "job", "project", "group", "session", "wandb", "exp", "experiment", "trial"})
# Whatever they are of: --hidden-dropout, --embedding-lr.
_NO_SIZE = frozenset(
    {"lr", "decay", "wd", "momentum", "dropout", "patience", "eps", "epsilon", "temperature", "smoothing", "prob"}
)
# Of these any number but 0 needs as much as another, unless it says how many parts are left out.
_RATES = frozenset({"lr", "decay", "wd", "momentum", "dropout"})
_OF_PARTS = frozenset({"patch", "token", "path", "edge", "node", "layer", "steps", "epochs", "step", "iters", "every"})
# Numbers that change how long or how well a job runs, not what it needs of a GPU.
_INERT = _NO_SIZE | {
    *("epoch", "epochs", "warmup", "interval", "freq", "frequency", "every", "workers", "timeout", "threads")
}
# Beside one of these they may: --mask-every, --sample-freq, --num-env-workers.
_NOT_INERT = frozenset(
    {"mask", "masking", "mlp", "ffn", "expand", "expansion", "sample", "sampling", "frame", "size"}
) | {*("env", "envs", "gpu", "rollout", "actor")}
# How long a whole run is: other steps may be those of a rollout that is kept on the GPU, of a loop, of a grid.
_RUN_LENGTH = frozenset({"steps", "iter", "iters", "iterations", "timesteps", "updates"})
_WHOLE_RUN = frozenset({"max", "total", "train", "training"})
_LEARNING_RATE = frozenset({"learning", "rate"})
# Beside what grows: more of it makes that smaller, or bounds it from below.
_SHRINKS = frozenset(
    {"spacing", "stride", "patch", "parallel", "parallelism", "downsample", "downsampling", "subsample", "subsampling"}
    | {"min", "minimum", "compression"}
)
_RANKS = frozenset({"node", "local", "global", "machine"})
# Numbers of which twice as much may need four times the memory, and more.
_EDGES = frozenset(
    {"img", "image", "resolution", "res", "crop", "grid", "hidden", "dim", "dims", "embed", "embedding", "width"}
    | {"channels"}
)
# Numbers of which more never needs less memory.
_GROWS = _EDGES | {
    *("batch", "bs", "b", "bsz", "seq", "sequence", "length", "len", "tokens", "height", "layers", "depth", "heads"),
    *("atoms", "particles", "nx", "ny", "nz", "units", "filters", "vocab"),
}
# So many of something, whatever stands before: --momentum-queue, --freq-bins.
_COUNTED = _SIZES | _GROWS | {"bins", "queue", "window", "buffer"}


def is_noise(name: str, value: str) -> bool:
    """Return whether a value under this name only tells runs of one job apart."""
    words = _words(name)
    is_number = bool(IS_NUMBER.fullmatch(value))
    if words >= _RANDOM_STATE or words in _LOG_LEVELS or _last_word(name) == "seed":
        return True
    if words & _SIZES or (value.lower() in _SWITCHED and not words & _TRACKERS):
        return False
    if is_number:
        is_rhythm = bool(words & _RHYTHM and words & (_NOISE_OR_SWITCH | _NOISE))
        return is_rhythm or bool(words & _ALWAYS_NOISE and not words & _HOW_MANY) or is_label(name)
    # Only of the tool itself: "--wandb" may be a switch.
    if words & _TRACKERS and not words <= _TRACKERS:
        return True
    if words & _NOISE or (words & _NOISE_OR_SWITCH and ("/" in value or words & _FOLDERS)):
        return True
    return is_label(name)


def is_choice(name: str) -> bool:
    """Return whether a number of this name is one of several things, and no size."""
    return bool(_words(name) & {"exp", "experiment", "trial"})


def is_label(name: str) -> bool:
    """Return whether what stands under this name is what a run is called."""
    words = _words(name)
    called = words & {"name", "id", "tag", "tags"}
    return bool(called) and words <= _RUNS | called and (words != called or not words & {"name", "id"})


def is_always_noise(name: str) -> bool:
    """Return whether what stands under this name tells runs apart and nothing else could make use of it."""
    return bool(_words(name) & _ALWAYS_NOISE)


def is_inert(name: str) -> bool:
    """Return whether a number of this name changes nothing of what a job needs of a GPU."""
    words = _words(name)
    if words & _NOT_INERT or (words & _GROWS and not _is_rate(words)) or _last_word(name) in _COUNTED:
        return False
    is_length = bool(words & _RUN_LENGTH and words & _WHOLE_RUN)
    return bool(words & _INERT) or is_length or words >= _LEARNING_RATE or ("rank" in words and bool(words & _RANKS))


def is_rate(name: str) -> bool:
    """Return whether a number of this name, but for 0, changes neither what a job needs of a GPU nor its run time."""
    words = _words(name)
    is_plain = bool(words & _RATES) and not words & _OF_PARTS
    return is_inert(name) and (is_plain or words >= _LEARNING_RATE)


def grows(name: str) -> bool:
    """Return whether more of a number of this name never needs less memory."""
    words = _words(name)
    return bool(words & _GROWS) and not (words & _SHRINKS or _is_rate(words))


def is_in_proportion(name: str) -> bool:
    """Return whether twice this number needs at most about twice the memory: not so of an edge or a width."""
    return not _words(name) & _EDGES


def _is_rate(words: frozenset[str]) -> bool:
    return bool(words & _NO_SIZE) or words >= _LEARNING_RATE


def _words(name: str) -> frozenset[str]:
    return frozenset(map(str.lower, _WORDS_OF_NAME.findall(name)))


def _last_word(name: str) -> str:
    words = [word for word in _WORDS_OF_NAME.findall(name) if not word.isdecimal()]
    return words[-1].lower() if words else ""
