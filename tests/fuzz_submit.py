# SPDX-License-Identifier: Apache-2.0
"""The targets of the login node: a script, a command line, and what csub makes of them.

What sbatch reads must stay what it was, byte for byte, and no word of a user may become a line of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from slurm_colloc.core.errors import ConfigError, InputError, MisusedError, UnsureError
from slurm_colloc.core.model import Footprint, Gres, JobRequest, Placement, SharingMode, because
from tests.fuzz import Target
from tests.fuzz_texts import NOWHERE, TESTS, of_text, recorded, text_of

_RELEASES = ("22.05", "24.11", "26.05")
REQUEST = JobRequest("train", interpreter="/bin/bash", gres=(Gres("gpu", "", 1),), gpu_style="gres", signature="sig")


def submitting() -> Iterator[Target]:
    from slurm_colloc.core.units import demand_mib, percent, time_span_s
    from slurm_colloc.estimate.hint import parse_hint
    from slurm_colloc.slurm import gres
    from slurm_colloc.slurm.array import parse_array
    from slurm_colloc.slurm.submit_line import parse_submit_line
    from slurm_colloc.submit.own_options import without_own_options

    scripts = _scripts()
    arguments = _argument_seeds()
    yield Target("script", _script, scripts, (UnsureError, MisusedError))
    yield Target("script-without", _script_without, scripts, (UnsureError, MisusedError))
    yield Target("script-reasons", _reasons, scripts, ())
    yield Target("command-line", _command_line, arguments, (UnsureError, MisusedError))
    yield Target("command-line-unsure", lambda content: _nothing_lost(content, without_own_options), arguments, ())
    yield Target(
        "environment", _environment, (b"SBATCH_GRES=gpu:1\0SBATCH_OVERCOMMIT=0\0SBATCH_WAIT=",), (UnsureError,)
    )
    lines = (b"sbatch --gres=gpu:1 --comment=a b job.sh 1 2", b"csub -p gpu job.sh", b"sbatch --wrap=x", b"srun x")
    yield of_text("submit-line", lambda line: parse_submit_line(line, "job.sh", "22.05"), *lines)
    yield of_text("hint", parse_hint, b"mem=9G,sm=30,dram=20", b"mem=1.5T", b"mem=512M,sm=30%")
    yield of_text(
        "gres",
        _gres,
        b"gpu:a100:2(S:0),shard:8",
        b"gpu:h100_1g.10gb:2,mps:50",
        b"gres:gpu:1",
        b"bandwidth:lustre:no_consume:4G",
    )
    yield of_text("gpus", gres.parse_gpus, b"a100:2,h100:1", b"4")
    yield of_text("tres-gres", gres.parse_tres_gres, b"cpu=4,gres/gpu:a100=1,gres/gpu=3,mem=8G", b"gres/shard=4,node=1")
    yield of_text("array", parse_array, b"0-15:4,20", b"1,2,3", b"0-99999")
    yield of_text("size", demand_mib, b"9G", b"1.5TiB", b"512 M")
    yield of_text("percent", lambda text: percent(text, "sm"), b"30", b"30%", b"0.5%")
    yield of_text("time", time_span_s, b"1-02:03:04", b"90", b"UNLIMITED", b"02:03")
    yield Target("commands", _commands, (b"#SBATCH -t 5\npython a.py 1\npython a.py 2\n", *scripts[:3]), (InputError,))
    yield Target("signature", _signature, scripts, ())
    yield Target(
        "settings",
        _settings,
        (b"batch_size: 64\nout: runs/1\n# x\nexport A='b'\n", *recorded("recorded/demo/site.toml")),
        (),
    )
    yield of_text("block", _block, b"it fits\nrm -rf /", b"'; touch x; '", "\u2028\r".encode(), refusals=())
    yield of_text(
        "site-words", _site_words, b"/srv/colloc", b"g[1-4]", b"a b", b"$(x)", b"it's", refusals=(ConfigError,)
    )


def _scripts() -> tuple[bytes, ...]:
    odd = (
        b"#!/bin/sh\n#SBATCH --gres=gpu:1 -t 5 # x\n#SBATCH --comment='a b' --wait\n#CSUB --gpu-footprint=mem=9G\n"
        b"export BS=${BS:-64}\nsource env/bin/activate\nsrun -G 1 python -m a.b --batch-size 64 --lr=0.1 > out.txt\n"
    )
    het = b'#!/bin/bash\n#SBATCH -n1 --gpus=1\n#SBATCH hetjob\n#SBATCH --gres=gpu:h100:2 "-Ja\\ b"\n#PBS x\nls\n'
    slurm = (
        b"#!/bin/bash\nX=$(dirname $0)\nscontrol requeue $SLURM_JOB_ID\nfor i in 1 2; do read -r a < l.txt; done\n"
        b"torchrun --nproc-per-node=1 train.py +trainer.max_epochs=5 -b 64 out_dir=/scratch/$USER/20240101-1200\n"
        b"cp -r a b\n"
    )
    return (odd, het, slurm, *recorded("golden/*.sh"))


def _argument_seeds() -> tuple[bytes, ...]:
    lines = [
        b"-p gpu job.sh --time 5",
        b"--gres=gpu:1 --wrap=hostname",
        b"-N2 -n4 : --gpus 1 job.sh a : b",
        b"--gpu-footprint mem=9G --dry-run -Hn2 -- job.sh",
    ]
    for path in sorted(TESTS.glob("recorded/slurm-*/sbatch/arguments.txt")):
        lines += path.read_bytes().splitlines()[:200]
    return tuple(b"\0".join(line.split()) for line in lines if line.strip())


def _script(content: bytes) -> object:
    from slurm_colloc.slurm.directives import read_script
    from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS
    from slurm_colloc.submit.own_options import SCRIPT_OPTIONS
    from slurm_colloc.submit.render import render_script

    release = _RELEASES[len(content) % 3]
    table = SBATCH_OPTIONS[release]
    script = read_script(content, table, release, SCRIPT_OPTIONS)
    # csub's block changes nothing of what sbatch reads, and not a byte of the user's.
    block = b"# a\nb='c'\n"
    changed = render_script(content, script.insert_at, block)
    again = read_script(changed, table, release, SCRIPT_OPTIONS)
    assert again[:2] == (script.interpreter, script.options), "a block changed what sbatch reads"
    assert again.own_directives == script.own_directives, "a block changed what csub reads"
    head, found, tail = changed.partition(block)
    assert found, "the block is not in the script"
    assert content in (head + tail, head.removesuffix(b"\n") + tail), "a byte of the script was lost"
    return script


def _script_without(content: bytes) -> object:
    from slurm_colloc.slurm.directives import read_script, without_options
    from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS

    table = SBATCH_OPTIONS["24.11"]
    script = read_script(content, table, "24.11")
    changed = without_options(content, table, "24.11", ("gres", "gpus"))
    assert changed[script.insert_at - len(content) :] == content[script.insert_at :] or script.insert_at == len(content)
    return changed


def _reasons(content: bytes) -> object:
    from slurm_colloc.submit import reasons

    return (
        bool(reasons.reason_to_keep_text(content, "/bin/sh")),
        bool(reasons.reason_against_history(content)),
        reasons.step_gpus(content),
    )


def _words(content: bytes) -> list[str]:
    return [text_of(word) for word in content.split(b"\0")]


def _command_line(content: bytes) -> object:
    from slurm_colloc.submit.own_options import parse_arguments

    words = _words(content)
    found = parse_arguments(words, None)
    left = iter(words)
    assert all(word in left for word in found.sbatch_argv), "sbatch is given other words, or another order"
    return found


def _nothing_lost(content: bytes, split: Callable[[list[str]], tuple[tuple[str, ...], tuple[str, ...]]]) -> object:
    words = _words(content)
    rest, own = split(list(words))
    assert sorted((*rest, *own)) == sorted(words), "a word was lost or made up"
    left = iter(words)
    assert all(word in left for word in rest), "sbatch is given another order"
    return len(rest), len(own)


def _environment(content: bytes) -> object:
    from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS
    from slurm_colloc.slurm.options import read_environment

    pairs = (word.partition("=") for word in _words(content))
    return read_environment({name: value for name, _, value in pairs}, SBATCH_OPTIONS["26.05"], "26.05")


def _gres(text: str) -> object:
    from slurm_colloc.slurm.gres import parse_gres

    found = parse_gres(text)
    assert parse_gres(",".join(map(str, found))) == found, "gres do not come back from their own text"
    return found


def _commands(content: bytes) -> object:
    from slurm_colloc.pack.command_line import read_commands

    script, commands = read_commands(content)
    assert script.startswith(b"#!/bin/sh\n")
    assert all(commands)
    assert not any("\n" in command or "\0" in command for command in commands), "a task of two lines"
    return commands


def _signature(content: bytes) -> object:
    from slurm_colloc.estimate.signature import parts_of, signature

    found = signature(content, ("--epochs", "3"), 1, environ={"HOME": "/home/a", "BS": "64"}, folder=NOWHERE)
    assert "/" not in found.text, "no name for a file"
    assert found.text.isascii()
    assert found.text.isprintable()
    assert max(map(len, found.text.split("."))) < 256
    assert parts_of(found.text) is not None, "a signature that cannot be taken apart"
    return found.text.count("_"), found.names


def _settings(content: bytes) -> object:
    from slurm_colloc.estimate.content import said

    return [said(content, ending) for ending in ("py", "sh", "yaml", "json", "ipynb", "cu", "m", "in", "ini", "")]


def _block(text: str) -> object:
    """Nothing that a user can write leaves a comment or a quoted word of csub's block."""
    from slurm_colloc.submit.render import pack_block, quote

    placement = Placement(
        SharingMode.MPS,
        Gres("mps", "", 5),
        1,
        2,
        "",
        "",
        "",
        None,
        (because("history-error", error=text), because("no-gpu")),
        (),
    )
    footprint = Footprint(None, None, None, text, text, 0, (because("hint", hint=text), because(text, a=text)))
    block = pack_block(REQUEST, footprint, placement)
    lines = block.split(b"\n")
    assert lines.pop() == b""
    assert all(line.startswith(b"# ") for line in lines), "a line of the block is no comment"
    assert len(lines) == 6, "a word of a user made a line"
    word = quote(text)
    assert "\0" in text or shlex.split(f"a={word}") == [f"a={text}"], "a quoted word is not one word"
    return len(block)


def _site_words(text: str) -> object:
    from slurm_colloc.site.render import _plain, _remark

    remark = _remark(text)
    assert not set(remark) & set("\n\r\\\"'`$%#;|&<>{}!~*?^\t") - {"?"}, "a remark that is no plain text"
    assert not set(str(_plain(text))) & set(" \n\r\\\"'`$%#;|&<>{}!~*?^\t()"), "a word with a meaning of its own"
    return len(remark)
