# SPDX-License-Identifier: Apache-2.0
"""What the name of an option, a setting or a variable says of its value: a size, or only what tells runs apart.

A name is read as its words: ``maxSeqLen`` and ``--max-seq-len`` are one.
"""

import re

_NUMBER = r"[-+]?\d+(?:_\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?"
IS_NUMBER = re.compile(_NUMBER)
_WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]*|\d+")

_CONFIG_ENDINGS = (".py", ".yaml", ".yml", ".json", ".toml")

# What tells runs of one job apart and nothing else: where its results go, what it is called, its seed and its port.
_NOISE = frozenset(
    {"out", "output", "outdir", "outputs", "savedir", "logdir", "logfile", "ckptdir", "tag", "tags", "notes", "comment"}
    | {"seed", "seeds", "rng", "port", "timestamp"}
)
# Of these, what no other word could make use of.
_ALWAYS_NOISE = frozenset({"seed", "seeds", "rng", "port", "timestamp"})
_HOW_MANY = frozenset({"n", "num", "number"})
# Of these some are switches, and what stands behind them is another word: only a path or a number belongs to them.
_NOISE_OR_SWITCH = frozenset(
    {"save", "log", "logs", "logging", "logger", "result", "results", "wandb", "tensorboard", "tb", "mlflow"}
    | {"experiment", "exp", "trial"}
)
# A size whose name holds such a word as well: --output-size, --log-alpha.
_SIZES = frozenset(
    {"size", "dim", "dims", "channel", "channels", "feature", "features", "class", "classes", "length", "len", "width"}
    | {"height", "layer", "layers", "unit", "units", "hidden", "token", "tokens", "depth", "batch", "model", "dataset"}
)
_ONLY_A_NAME = frozenset({"run", "job", "project", "group", "session", "exp", "experiment", "trial", "wandb"})
# Numbers that change how long or how well a job runs, not what it needs of a GPU.
_INERT = frozenset(
    {"lr", "learning", "rate", "epoch", "epochs", "step", "steps", "iter", "iters", "iterations", "decay", "wd"}
    | {"momentum", "dropout", "warmup", "patience", "beta", "beta1", "beta2", "gamma", "eps", "epsilon", "temperature"}
    | {"alpha", "interval", "freq", "frequency", "every", "worker", "workers", "timeout", "fold", "split", "idx"}
    | {"index", "threads", "smoothing", "clip", "tol", "lambda", "ratio", "prob", "p", "max_steps"}
)
# Beside one of these they may: --mask-ratio, --sample-rate, --clip-size.
_NOT_INERT = frozenset({"mask", "masking", "mlp", "ffn", "expand", "expansion", "sample", "sampling", "frame", "size"})
# Whatever they are of: --hidden-dropout, --embedding-lr.
_NO_SIZE = frozenset(
    {"lr", "decay", "wd", "momentum", "dropout", "patience", "eps", "epsilon", "temperature", "smoothing", "prob"}
)
_LEARNING_RATE = frozenset({"learning", "rate"})
# Beside what grows: more of it makes that smaller, or bounds it from below.
_SHRINKS = frozenset(
    {"spacing", "stride", "patch", "parallel", "parallelism", "downsample", "downsampling", "subsample", "subsampling"}
    | {"min", "minimum", "compression"}
)
_RANKS = frozenset({"node", "local", "global", "machine"})
# As a whole: of a rollout kept on the GPU, of a low-rank adapter or of anything.
_MAY_SIZE = tuple(map(frozenset, ({"num", "steps"}, {"n", "steps"}, {"num", "step"}, {"n", "step"}, {"p"})))
# Numbers of which more never needs less memory.
_GROWS = frozenset(
    {"batch", "bs", "b", "bsz", "seq", "sequence", "length", "len", "tokens", "hidden", "dim", "dims", "width"}
    | {"height", "layers", "depth", "channels", "img", "image", "resolution", "res", "crop", "embed", "embedding"}
    | {"heads", "atoms", "particles", "grid", "nx", "ny", "nz", "units", "filters", "vocab"}
)


def is_noise(name: str, value: str) -> bool:
    """Return whether a value under this name only tells runs of one job apart."""
    words = _words(name)
    is_number = bool(IS_NUMBER.fullmatch(value))
    if words & _SIZES or (is_number and words & _HOW_MANY):
        return False
    only_a_name = words - {"name", "id"}
    if words & _NOISE or (only_a_name != words and only_a_name <= _ONLY_A_NAME):
        return True
    # What is to be run, not where it leaves its results: --exp_file exps/large.py, experiment=vision/large.
    is_choice = value.endswith(_CONFIG_ENDINGS) or (
        bool(words & {"exp", "experiment"}) and name.islower() and not name.startswith("-") and value[:1] not in "/.~$"
    )
    return bool(words & _NOISE_OR_SWITCH) and (is_number or ("/" in value and not is_choice))


def is_always_noise(name: str) -> bool:
    """Return whether what stands under this name tells runs apart and nothing else could make use of it."""
    return bool(_words(name) & _ALWAYS_NOISE)


def is_inert(name: str) -> bool:
    """Return whether a number of this name changes nothing of what a job needs of a GPU."""
    words = _words(name)
    if words & _NOT_INERT or words in _MAY_SIZE or (words & _GROWS and not _is_rate(words)):
        return False
    return bool(words & _INERT or ("rank" in words and words & _RANKS))


def grows(name: str) -> bool:
    """Return whether more of a number of this name never needs less memory."""
    words = _words(name)
    return bool(words & _GROWS) and not (words & _SHRINKS or _is_rate(words))


def _is_rate(words: frozenset[str]) -> bool:
    return bool(words & _NO_SIZE) or words >= _LEARNING_RATE


def _words(name: str) -> frozenset[str]:
    return frozenset(map(str.lower, _WORDS_OF_NAME.findall(name)))
