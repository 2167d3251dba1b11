# SPDX-License-Identifier: Apache-2.0
"""Classifies options and variables by name: a size, or only a seed or label of the run.

A name is read as its words: ``maxSeqLen`` and ``--max-seq-len`` are one.
"""

import re
from collections.abc import Collection, Mapping

_NUMBER = r"[-+]?\d+(?:_\d{3})*(?:\.\d*)?(?:[eE][-+]?\d+)?"
IS_NUMBER = re.compile(_NUMBER)
_WORDS_OF_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Za-z][a-z]*|\d+")


def word_sets(lists: Mapping[str, str]) -> dict[str, frozenset[str]]:
    """Return the words of each list."""
    return {kind: frozenset(words.split()) for kind, words in lists.items()}


# Words of names, by what a name with one of them is.
_WORDS = word_sets(
    {
        # A value of these tells runs of one job apart, and no other word could make use of it.
        "always noise": "seed rng port timestamp",
        # These say where results go, or what a run is called.
        "noise": "seed rng port timestamp seeds out output outdir outputs savedir logdir logfile notes comment",
        "how many": "n num number seeds",
        # These say how often something is written: any other number behind such a word may size (--log-grid, --out).
        "rhythm": "every interval freq frequency steps step epochs epoch iter iters limit",
        # Some of these are switches, and the next word is another: only a path or a rhythm belongs to them.
        "noise or switch": "save log logs logging logger result results wandb tensorboard tb mlflow",
        # A size may hold such a word as well: --output-size, --log-alpha.
        "size": "size dim dims channel channels feature features class classes length len width height layer layers"
        " unit units hidden token tokens depth batch model dataset res resolution image images samples prompt frames",
        # "output_attentions: true" is no place.
        "switched": "true false yes no on off",
        "tracker": "wandb mlflow tensorboard",
        "folder": "dir folder path root",
        # These stand with "name", "id" or "tag".
        "run": "run job project group session wandb exp experiment trial",
        "choice": "exp experiment trial",
        # These size nothing, whatever they are of: --hidden-dropout, --embedding-lr.
        "no size": "lr decay wd momentum dropout patience eps epsilon temperature smoothing prob",
        # Any number of these but 0 needs as much as another, unless it says how many parts are left out.
        "rate": "lr decay wd momentum dropout",
        "part": "patch token path edge node layer steps epochs step iters every",
        # Numbers of these change how long or how well a job runs, not its need of a GPU.
        "inert": "lr decay wd momentum dropout patience eps epsilon temperature smoothing prob epoch epochs warmup"
        " interval freq frequency every workers timeout threads",
        # They may beside one of these: --mask-every, --sample-freq, --num-env-workers.
        "not inert": "mask masking mlp ffn expand expansion sample sampling frame size env envs gpu rollout actor",
        # These say how long a whole run is: other steps may be a rollout's that is kept on the GPU, a loop's, a grid's.
        "run length": "steps iter iters iterations timesteps updates",
        "whole run": "max total train training",
        # These stand beside a word that grows: more of it makes that smaller, or bounds it from below.
        "shrinks": "spacing stride patch parallel parallelism downsample downsampling subsample subsampling min"
        " minimum compression",
        "rank": "node local global machine",
        # Twice as much of these numbers may need four times the memory, and more.
        "edge": "img image resolution res crop grid hidden dim dims embed embedding width channels",
        # More of these numbers, and of edges, never needs less memory.
        "grows": "batch bs b bsz seq sequence length len tokens height layers depth heads atoms particles nx ny nz"
        " units filters vocab",
        # These count something, as sizes do, whatever stands before: --momentum-queue, --freq-bins.
        "counted": "bins queue window buffer",
    }
)
_RANDOM_STATE, _LEARNING_RATE = {"random", "state"}, {"learning", "rate"}
_LOG_LEVEL = r"(?i)\W*(?:\w+[-_])?(?:log(?:ging)?[-_.]?level|(?:log[-_.]?)?verbosity|report[-_]to)"


def is_noise(name: str, value: str) -> bool:
    """Return whether a value under this name only tells runs of one job apart."""
    words = _words(name)
    if words >= _RANDOM_STATE or re.fullmatch(_LOG_LEVEL, name) or _last_word(name) == "seed":
        return True
    if _is(words, "size") or (value.lower() in _WORDS["switched"] and not _is(words, "tracker")):
        return False
    if is_label(name):
        return True
    if IS_NUMBER.fullmatch(value):
        is_rhythm = _is(words, "rhythm") and _is(words, "noise or switch", "noise")
        return is_rhythm or (_is(words, "always noise") and not _is(words, "how many"))
    # "--wandb" alone may be a switch.
    is_of_tracker = _is(words, "tracker") and not words <= _WORDS["tracker"]
    is_place = _is(words, "noise or switch") and ("/" in value or _is(words, "folder"))
    return is_of_tracker or _is(words, "noise") or is_place


def is_choice(name: str) -> bool:
    """Return whether a number of this name is one of several things, and no size."""
    return _is(_words(name), "choice")


def is_label(name: str) -> bool:
    """Return whether a run is called by the value under this name."""
    words = _words(name)
    called = words & {"name", "id", "tag", "tags"}
    return bool(called) and words <= _WORDS["run"] | called and (words != called or not words & {"name", "id"})


def is_always_noise(name: str) -> bool:
    """Return whether a value under this name tells runs apart and nothing else could make use of it."""
    return _is(_words(name), "always noise")


def is_inert(name: str) -> bool:
    """Return whether a number of this name changes nothing of a job's need of a GPU."""
    words, last = _words(name), {_last_word(name)}
    if _is(words, "not inert") or (_is(words, "edge", "grows") and not _is_rate(words)):
        return False
    if _is(last, "size", "edge", "grows", "counted"):
        return False
    is_length = _is(words, "run length") and _is(words, "whole run")
    is_rank = "rank" in words and _is(words, "rank")
    return is_length or is_rank or _is(words, "inert") or words >= _LEARNING_RATE


def is_rate(name: str) -> bool:
    """Return whether a number of this name, but for 0, changes neither a job's need of a GPU nor its run time."""
    words = _words(name)
    is_plain = _is(words, "rate") and not _is(words, "part")
    return is_inert(name) and (is_plain or words >= _LEARNING_RATE)


def grows(name: str) -> bool:
    """Return whether more of a number of this name never needs less memory."""
    words = _words(name)
    return _is(words, "edge", "grows") and not (_is(words, "shrinks") or _is_rate(words))


def is_in_proportion(name: str) -> bool:
    """Return whether twice this number needs at most about twice the memory: not so of an edge or a width."""
    return not _is(_words(name), "edge")


def _is(words: Collection[str], *kinds: str) -> bool:
    return any(not _WORDS[kind].isdisjoint(words) for kind in kinds)


def _is_rate(words: frozenset[str]) -> bool:
    return _is(words, "no size") or words >= _LEARNING_RATE


def _words(name: str) -> frozenset[str]:
    return frozenset(map(str.lower, _WORDS_OF_NAME.findall(name)))


def _last_word(name: str) -> str:
    words = [word for word in _WORDS_OF_NAME.findall(name) if not word.isdecimal()]
    return words[-1].lower() if words else ""
