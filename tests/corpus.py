# SPDX-License-Identifier: Apache-2.0
"""What csub makes of generated submissions, before a change and after it.

    python -m tests.corpus record BEFORE.jsonl --count 500      # in the checkout as it was
    python -m tests.corpus record AFTER.jsonl --count 500       # as it is now
    python -m tests.corpus compare BEFORE.jsonl AFTER.jsonl

Each submission goes, at each example site, through csub to a sbatch that records what it is given, and once more
through ``--dry-run --format=json``. Compared are arguments, script, decision, and the words that people read; these
stand apart, for they may be reworded. A made-up past of the job and free GPUs come with it, from the same seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, user_data_folder
from slurm_colloc.core.config_file import load_site
from slurm_colloc.core.model import Evidence
from slurm_colloc.estimate import chosen, files
from slurm_colloc.estimate.records import drop_evidence
from slurm_colloc.slurm.free_gpus import Free
from slurm_colloc.submit.own_options import parse_arguments
from slurm_colloc.submit.request import build_request
from slurm_colloc.submit.slurm_answers import keep_free
from slurm_colloc.submit.submission import read_submission

_SITES = Path(__file__).resolve().parents[1] / "site-configs"
# Always the same folder: it is part of what a job is known by.
_WORK = Path("/var/tmp/colloc-corpus")
_SBATCH = """#!/bin/sh
script=-
for word in "$@"; do
    printf '%s\\n' "$word"
    case $word in --wrap*) script=/dev/null ;; *) [ -f "$word" ] && script=$word ;; esac
done > "$RECORDED/argv"
cat "$script" > "$RECORDED/script"
printf '%s\\n' "$SLURM_COLLOC" > "$RECORDED/told"
echo "Submitted batch job 4711"
"""
# Keys whose words people read; of some it counts whether they say anything.
_WORDS, _WHETHER = {"reasons", "reason", "provenance", "schema"}, {"untouchable", "no_share", "keep_whole", "differs"}
_COMMENTS = ("# asked:", "# why:", "# needs:", "# to switch this off:")
Case = dict[str, Any]


def _case(draw: random.Random) -> Case:
    """Return one submission: arguments, environment, script, and what is known of it."""

    def some(*values: str, part: float = 0.3) -> list[str]:
        return [draw.choice(values)] if draw.random() < part else []

    gpu = ("--gres=gpu:1", "--gpus=1", "-G1", "--gpus-per-node=1", "--gres=gpu:TYPE:1", "--gpus=TYPE:1")
    odd = ("--gres=gpu:2", "--gpus-per-task=1", "--gres=shard:1", "--gres=gpu:v100:1", "--gpus=1 : --gpus=1")
    asked = draw.choice(gpu if draw.random() < 0.9 else odd).split() if draw.random() < 0.95 else []
    words = [*asked, *some("-p gpu", "-p batch", "-p mig", "-p gpu,batch", "-p odd", part=0.2)]
    words += some(
        "-c 4", "-c 16", "--cpus-per-gpu=4", "--cpus-per-gpu=8", "--mincpus=3", "-n 2", "--ntasks=1", part=0.2
    )
    words += some("--mem=8G", "--mem=0", "--mem-per-cpu=2G", "--mem-per-gpu=16G", "--mem=900G", part=0.2)
    words += some("-t 30", "-t 5", "-t 2-0", "-t 600", part=0.5)
    words += some(
        "--array=1-4", "--exclusive", "-w n1", "-C a", "-x n2", "--reservation=r", "-N 2", "--requeue", part=0.2
    )
    words += some("--colloc=off", "--colloc=exclusive:benchmark", "--max-slowdown=1.05", "--max-slowdown=9", part=0.08)
    memory, active = (
        f"mem={draw.choice((1, 2, 3, 5, 8, 20, 90))}G",
        f",sm={draw.choice((1, 2, 2, 3, 3, 5, 9, 15, 30, 60, 99))}",
    )
    words += some(*[f"--gpu-footprint={memory}{active}"] * 2, f"--gpu-footprint={memory}", part=0.6)
    flags = draw.choice(("/bin/bash", "/bin/sh", "/bin/bash -x", "/usr/bin/env python3", "/bin/bash -l"))
    inner = some("srun --gres=gpu:1 ./x", "echo $0", "echo $SLURM_GPUS_ON_NODE", "srun --export=NONE ./x", part=0.08)
    inner += some("scontrol requeue $SLURM_JOB_ID", "python -m submitit.core._submit x", "mkdir out", part=0.08)
    return {
        "argv": [part for word in words for part in word.split(" ")],
        "wrap": draw.random() < 0.1,
        "stdin": draw.random() < 0.1,
        "head": flags,
        "lines": inner,
        "batch": draw.choice((8, 16, 32, 64, 128)),
        "runs": draw.choice((0, 0, 1, 3, 5)),
        "relatives": draw.choice((0, 0, 1, 2, 4)),
        "free": draw.random() < 0.5,
        "seed": draw.getrandbits(32),
    }


def _script(case: Case, batch: int) -> str:
    return "\n".join([f"#!{case['head']}", *case["lines"], f"python train.py --batch-size {batch} --lr 0.1", ""])


def _argv(case: Case, *more: str) -> list[str]:
    if case["wrap"]:
        return [*more, *case["argv"], f"--wrap=python train.py --batch-size {case['batch']}"]
    return [*more, *case["argv"], *([] if case["stdin"] else ["job.sh"])]


def _known_as(case: Case, batch: int, config: SiteConfig) -> str:
    argv = [word for word in _argv({**case, "batch": batch, "stdin": False}) if word != ":"]
    Path("job.sh").write_text(_script(case, batch))
    line = parse_arguments(argv, config)
    submission = read_submission(line, {}, None, config)
    return build_request(submission, (line.script, line.script_args), config, dict(os.environ)).signature


def _past(case: Case, config: SiteConfig) -> None:
    """Make up runs of the job and of its relatives, and what is free."""
    draw = random.Random(case["seed"])
    models = [pool.gpu_model for pool in config.pool] or ["NVIDIA A100"]
    model, mib = draw.choice(models), draw.choice((900, 2000, 6000, 15_000, 60_000))
    batches = [case["batch"]] * case["runs"] + [
        case["batch"] * draw.choice((0.5, 2, 4)) for _ in range(case["relatives"])
    ]
    for number, batch in enumerate(batches):
        state = draw.choice(("COMPLETED",) * 6 + ("TIMEOUT", "GPU_OOM", "FAILED"))
        mode = draw.choice(("exclusive",) * 5 + ("mps", "mig"))
        peak = int(mib * (batch / case["batch"]) ** 0.9 * draw.uniform(0.95, 1.05))
        active = draw.choice((None, *[draw.uniform(0.5, 6)] * 3, draw.uniform(1, 90)))
        sampled = draw.choice((1, 50, 500))
        values: list[Any] = [
            peak,
            active,
            active,
            draw.random() < 0.2,
            sampled,
            10.0 * sampled,
            now() - 9e5 + number * 1e3,
        ]
        more: list[Any] = [draw.uniform(60, 5e3), draw.uniform(1, 70), 81_000, 5.0 * sampled, 1, "", 2.5, 4000]
        run = Evidence(str(100 + number), _known_as(case, int(batch), config), state, mode, model, *values, *more)
        drop_evidence(user_data_folder(), run)
    if case["free"]:
        names = [*(item.name for item in config.partition), config.default_partition]
        types = [part.type for pool in config.pool for part in pool.slice] + [pool.gpu_type for pool in config.pool]
        kinds = ["mps", "shard", "gpu", *(f"gpu:{name}" for name in types)]
        keys = [(name, kind) for name in names for kind in kinds if draw.random() < 0.7]
        units = {key: draw.choice((0, 1, 4, 100)) for key in keys if draw.random() < 0.7}
        keep_free(config, Free(now(), units))


def _run(argv: list[str], stdin: str, said: Path, printed: Path) -> None:
    """Run csub in this process, which it ends."""
    from slurm_colloc.cli.csub import main

    for number, path in ((0, Path(stdin)), (1, printed), (2, said)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(descriptor, number)
    sys.argv = ["csub", *argv]
    main()


def _recorded(case: Case, config: SiteConfig, site: Path) -> dict[str, Any]:
    """Return what csub did with a submission: by its own sbatch, its decision, its JSON."""
    folder, data = site / "case", Path(user_data_folder())
    for old in (folder, data / "evidence", data / "decisions", data / "submitted", Path(config.paths.state, "history")):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir()
    os.chdir(folder)
    Path("train.py").write_text("import torch\n")
    _past(case, config)
    Path("job.sh").write_text(_script(case, case["batch"]))
    found: dict[str, Any] = {"site": site.name, "case": case}
    os.environ["RECORDED"] = str(site)
    for name in ("argv", "script", "told", "said-dry", "said-run", "printed-dry"):
        (site / name).unlink(missing_ok=True)
    for name, more in (("dry", ["--dry-run", "--format=json", "--explain"]), ("run", [])):
        if not (child := os.fork()):
            try:
                stdin = "job.sh" if case["stdin"] and not case["wrap"] else "/dev/null"
                _run(_argv(case, *more), stdin, site / f"said-{name}", site / f"printed-{name}")
            finally:
                os._exit(99)
        os.waitpid(child, 0)
    texts = {name: _read(site / name) for name in ("argv", "script", "told", "said-dry", "said-run")}
    lines = texts["script"].split("\n")
    found["argv"], found["told"] = texts["argv"], texts["told"]
    found["script"] = [line for line in lines if not line.startswith(_COMMENTS)]
    found["words of the script"] = [line for line in lines if line.startswith(_COMMENTS)]
    found["words of --explain"], found["words of csub"] = texts["said-dry"].split("\n"), texts["said-run"].split("\n")
    shown = _read(site / "printed-dry")
    found["json"] = _plain(json.loads(shown)) if shown else None
    if found["json"]:
        found["json"].pop("script")
    kept = [json.loads(path.read_text()) for path in sorted((data / "decisions").glob("*.json"))]
    found["decision"] = [_plain({**one, "at_s": 0}) for one in kept]
    return found


def _read(path: Path) -> str:
    text = path.read_text(errors="surrogateescape") if path.exists() else ""
    return re.sub(r"csub-[0-9a-f]{16}", "csub-TEMPORARY", text)


def _plain(value: object) -> Any:
    """Return a record without its words."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: bool(one) if name in _WHETHER else _plain(one)
        for name, one in value.items()
        if name not in _WORDS and not name.endswith(("_code", "_codes"))
    }


def record(path: Path, count: int, seed: int) -> None:
    """Write what csub does with ``count`` submissions at each example site."""
    chosen._MOST_S = files._MOST_S = 60.0  # a busy machine must make no difference
    shutil.rmtree(_WORK, ignore_errors=True)
    _WORK.mkdir(parents=True)
    (_WORK / "bin").mkdir()
    for name, text in (("sbatch", _SBATCH), ("sinfo", "#!/bin/sh\nexit 1\n"), ("sacctmgr", "#!/bin/sh\nexit 1\n")):
        (_WORK / "bin" / name).write_text(text)
        (_WORK / "bin" / name).chmod(0o755)
    with path.open("w") as stream:
        for source in sorted(_SITES.iterdir()):
            site = _WORK / source.name
            site.mkdir()
            # Most as sites that place jobs and ask nobody for limits; their folders are made up.
            text = re.sub(r"(?m)^(journal|decisions) = .*\n", "", (source / "site.toml").read_text())
            head, joint, rest = text.partition("[[")
            text = re.sub(r"(?m)^policy = .*", 'policy = "auto"', head) + joint + rest
            text = re.sub(r"(?m)^state = .*", f'state = "{site}/state"', text).replace(
                "enforced = true", "enforced = false"
            )
            text = text if "[paths]" in text else f'{text}\n[paths]\nstate = "{site}/state"\n'
            (site / "site.toml").write_text(text)
            environ = {"PATH": f"{_WORK}/bin:/usr/bin:/bin", "HOME": str(site), "USER": "alice", "TMPDIR": str(site)}
            os.environ.clear()
            os.environ.update(environ, COLLOC_CONF=str(site / "site.toml"), TZ="UTC")
            config = load_site(str(site / "site.toml"))
            draw = random.Random(seed)
            kind = next((pool.gpu_type for pool in config.pool if pool.gpu_type), "h100")
            for _ in range(count):
                case = _case(draw)
                case["argv"] = [word.replace("TYPE", kind) for word in case["argv"]]
                stream.write(json.dumps(_recorded(case, config, site)) + "\n")
            print(f"{source.name}: {count}", flush=True)


def compare(before: Path, after: Path) -> int:
    """Print how many submissions differ in what, and examples; return 1 where more than words differ."""
    counts: Counter[str] = Counter()
    examples: dict[str, dict[str, str]] = defaultdict(dict)
    for old, new in zip(_lines(before), _lines(after), strict=True):
        assert (old["site"], old["case"]) == (new["site"], new["case"]), "two corpora of other submissions"
        counts["submissions"] += 1
        counts["placed"] += any(one["given"] != "as asked" for one in old["decision"])
        for name in old:
            if old[name] != new[name]:
                counts[name] += 1
                examples[name].setdefault(_first(old[name]), f"{_first(new[name])}   [{old['site']} {old['case']}]")
    for name, count in counts.items():
        print(f"{count:6} {name}")
    for name, pairs in examples.items():
        for text, other in list(pairs.items())[: 3 if name.startswith("words") else 20]:
            print(f"{name}:\n  - {text}\n  + {other}"[:2000])
    return int(any(not name.startswith("words") for name in examples))


def _first(value: object) -> str:
    return (
        "\n    ".join(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else str(value)
    )


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open() as stream:
        yield from map(json.loads, stream)


def main() -> int:
    """Record or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    if chosen.what == "compare":
        return compare(*chosen.files)
    record(chosen.files[0].absolute(), chosen.count, chosen.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
