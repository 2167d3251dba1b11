# SPDX-License-Identifier: Apache-2.0
"""Which two submissions are the same job, which are relatives, and which have nothing to do with each other."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.estimate.seeds_and_sizes import grows, is_inert
from slurm_colloc.estimate.signature import is_relative, is_same, parts_of, signature

HEAD = "#!/bin/bash\n"


class Job:
    """One submission: its script's lines, its arguments, its variables and its folder."""

    def __init__(
        self, text: str, *args: str, gpus: int = 1, folder: str = "/home/ann/lab", array: str = "", **variables: str
    ) -> None:
        self.text, self.args, self.gpus, self.folder, self.array = text, args, gpus, folder, array
        self.variables: Mapping[str, str] = {"HOME": "/home/ann"} | variables

    def signature(self) -> str:
        script = (HEAD + self.text + "\n").encode()
        told_apart = ("lab", "0")
        return signature(script, self.args, self.gpus, told_apart, self.variables, self.folder, array=self.array).text


INDEX = "$SLURM_ARRAY_TASK_ID"
PLUS = "$((SLURM_ARRAY_TASK_ID + 42))"
ALIAS = f"TASK={INDEX}\n"
WRITES = "mkdir -p $OUT\ncp t.py $OUT\nt --out $OUT > $OUT/l\nt --log $OUT | tee $OUT/m"
LOGS = "t > $SLURM_JOB_NAME.log"
SEED_AND_OUT = 't --seed="${1}" --out runs/$1'
SEED_OR_END = '[ -z "$1" ] && exit\nt --seed $1'
ALL_SEEDS = 'for s in "$@"; do\n t --seed "$s"\ndone'
ONE_BY_ONE = "for s in {}; do\nt --seed $s\ndone"
SEEDS_AT_ONCE = "for s in $@; do\nt --seed $s &\ndone"
EXPORTS = 'for kv in "$@"; do export "$kv"; done\nt'
SAME = [
    ("a job's name of a log", Job(LOGS, SLURM_JOB_NAME="a"), Job(LOGS, SLURM_JOB_NAME="b")),
    ("directives", Job("#SBATCH -t 5\n#CSUB --gpu-footprint=mem=9G\npython train.py"), Job("python train.py")),
    ("comments and blank lines", Job("# mine\n\n  python train.py  "), Job("python train.py")),
    ("messages", Job("echo starting at $(hostname)X\npython t.py"), Job("echo starting at $(hostname)X\npython t.py")),
    ("a plain message", Job("echo run two\npython t.py"), Job("echo run one\npython t.py")),
    ("lines broken", Job("python t.py \\\n --fp16"), Job("python t.py  --fp16")),
    ("a seed", Job("python t.py --seed 1"), Job("python t.py --seed 2")),
    ("a seed by =", Job("python t.py --random-seed=1"), Job("python t.py --random-seed=2")),
    ("a seed in a variable", Job("SEED=1\npython t.py --seed $SEED"), Job("SEED=7\npython t.py --seed $SEED")),
    ("a seed by argument", Job("t --seed $1", "1"), Job("t --seed $1", "2")),
    ("a seed by argument, also elsewhere", Job(SEED_AND_OUT, "1"), Job(SEED_AND_OUT, "2")),
    ("a seed by argument or none", Job("SEED=${1:-0}\nt --seed $SEED", "1"), Job("SEED=${1:-0}\nt --seed $SEED", "2")),
    ("a seed by argument that must be", Job(SEED_OR_END, "1"), Job(SEED_OR_END, "2")),
    ("a seed by the tenth", Job("t --seed ${10}", *"abcdefghi1"), Job("t --seed ${10}", *"abcdefghi2")),
    ("an output folder", Job("python t.py --output_dir runs/a"), Job("python t.py --output_dir runs/b")),
    ("a log folder as a switch's value", Job("python t.py --log runs/a"), Job("python t.py --log runs/b")),
    ("a run's name", Job("python t.py --run-name a"), Job("python t.py --run-name b")),
    ("an experiment's name", Job("python t.py --exp-name a"), Job("python t.py --exp-name b")),
    ("seeds of a loop", Job("for seed in 1 2; do\nt\ndone"), Job("for seed in 7 8 9; do\nt\ndone")),
    ("a folder of results", Job("t work_dirs/a"), Job("t work_dirs/b")),
    ("a tracker's project", Job("t --wandb-project a"), Job("t --wandb-project b")),
    ("what it goes to", Job("cd /home/ann/lab\nt"), Job("cd /home/ann/lab\nt", folder="/home/ann")),
    ("a comment behind a command", Job("t  # mine"), Job("t")),
    ("what it says of its node", Job("echo on $(hostname)\nt"), Job("nvidia-smi -L\nt")),
    ("a port", Job("torchrun --master-port=1234 t.py"), Job("torchrun --master-port=4321 t.py")),
    ("a date in a path", Job("python t.py d/2026-11-02"), Job("python t.py d/2026-11-03")),
    ("a time stamp", Job("python t.py d_20261102_1312"), Job("python t.py d_20261103_0901")),
    ("the home's place", Job("python /home/ann/t.py"), Job("python /data/ann/t.py", HOME="/data/ann")),
    (
        "the folder's place",
        Job("python /home/ann/lab/t.py", folder="/home/ann/lab"),
        Job("python /home/ann/lab/t.py", folder="/home/ann/lab"),
    ),
    ("a number written otherwise", Job("python t.py --batch-size 64"), Job("python t.py --batch-size=64.0")),
    ("an array again", Job(f"t {INDEX}", array="1-3"), Job(f"t {INDEX}", array="1-3")),
    ("an array that asks no index", Job("t", array="1-3"), Job("t", array="4-9")),
    ("an array's seeds", Job(f"t --seed {INDEX}", array="1-3"), Job(f"t --seed {INDEX}", array="4-9")),
    ("seeds reckoned", Job(f"t --seed {PLUS}", array="1"), Job(f"t --seed {PLUS}", array="2")),
    ("seeds by another name", Job(f"{ALIAS}t --seed $TASK", array="1"), Job(f"{ALIAS}t --seed $TASK", array="2")),
    ("a log of each task", Job(f"t > log.{INDEX}", array="1-3"), Job(f"t > log.{INDEX}", array="4-9")),
    ("a run's name", Job(f"t --run-name r{INDEX}", array="1"), Job(f"t --run-name r{INDEX}", array="2")),
    ("a message of each task", Job(f"echo task {INDEX}\nt", array="1"), Job(f"echo task {INDEX}\nt", array="2")),
    (
        "an array's index in the environment",
        Job("python t.py $SLURM_ARRAY_TASK_ID", SLURM_ARRAY_TASK_ID="1"),
        Job("python t.py $SLURM_ARRAY_TASK_ID", SLURM_ARRAY_TASK_ID="2"),
    ),
    ("a variable nobody names", Job("python t.py", BS="1"), Job("python t.py", BS="2")),
    ("a variable that it sets itself", Job("BS=3\nt $BS", BS="1"), Job("BS=3\nt $BS", BS="2")),
    ("a script's argument that is a seed", Job("python t.py $@", "--seed", "1"), Job("python t.py $@", "--seed", "2")),
    ("a folder in a variable", Job(f"OUT=r/a\n{WRITES}"), Job(f"OUT=r/b\n{WRITES}")),
    ("seeds of all arguments", Job(ALL_SEEDS, "0", "1", "2"), Job(ALL_SEEDS, "3", "4", "5")),
    ("seeds of a loop by another name", Job(ONE_BY_ONE.format("1 2")), Job(ONE_BY_ONE.format("7"))),
    ("a run's name of two words", Job('export WANDB_NAME="$1"\nt', "a b"), Job('export WANDB_NAME="$1"\nt', "a, c")),
    ("a configuration of each seed", Job("t c/seed_0.yaml"), Job("t c/seed_1.yaml")),
    ("a log of each seed", Job("t > logs/s0.txt"), Job("t > logs/s1.txt")),
    ("what starts it", Job("srun --ntasks=1 -u t"), Job("nice -n 10 t")),
    ("what is not buffered", Job("PYTHONUNBUFFERED=1 t"), Job("t")),
    ("a random state", Job("t --random_state=1"), Job("t --random_state=2")),
    ("a level of logging", Job("t --log-level INFO"), Job("t --log-level DEBUG")),
    ("a shell's options", Job("set -euo pipefail\nset +x -o nounset\nulimit -c 0\numask 002\nt"), Job("t")),
    ("a longer search path", Job("export LIBS=/x:$LIBS\nt", LIBS="a"), Job("export LIBS=/x:$LIBS\nt", LIBS="b")),
    ("what it activates itself", Job("conda activate a\nt"), Job("conda activate a\nt", VIRTUAL_ENV="/v")),
]  # fmt: skip
RELATIVE = [
    ("a size by argument", Job("t --batch-size $1", "32"), Job("t --batch-size $1", "64")),
    ("a bare argument", Job("t $1", "1"), Job("t $1", "2")),
    ("a seed that is counted too", Job("t --seed $1\nt 2 $1", "1"), Job("t --seed $1\nt 2 $1", "2")),
    ("a function's own", Job("f() { t --seed $1; }\nf 3", "1"), Job("f() { t --seed $1; }\nf 3", "2")),
    ("another program's", Job("awk '{print $1}' x\nt --seed $1", "1"), Job("awk '{print $1}' x\nt --seed $1", "2")),
    ("what is shifted", Job("shift\nt --seed $1", "1", "5"), Job("shift\nt --seed $1", "2", "5")),
    ("how large results are", Job("t --output-resolution 512"), Job("t --output-resolution 4096")),
    ("how many results", Job("t --results-per-prompt 1"), Job("t --results-per-prompt 64")),
    ("a batch size", Job("python t.py --batch-size 64"), Job("python t.py --batch-size 128")),
    ("a short option", Job("python t.py -b 64"), Job("python t.py -b 128")),
    ("a learning rate", Job("python t.py --lr 1e-3"), Job("python t.py --lr 0.01")),
    ("a dotted setting", Job("python t.py data.batch=64"), Job("python t.py data.batch=32")),
    ("a variable it sets", Job("BS=64\npython t.py -b $BS"), Job("BS=32\npython t.py -b $BS")),
    ("a variable from outside", Job("t -b $BS", BS="64"), Job("t -b $BS", BS="32")),
    ("a script's argument", Job("t -b $1", "64"), Job("t -b $1", "32")),
    ("a script's named argument", Job("t $@", "--seq-len", "64"), Job("t $@", "--seq-len", "32")),
    ("a size with a noisy name", Job("t --output-size 10"), Job("t --output-size 1000")),
    ("a variable with a default", Job("BS=${BS:-8}\nt -b $BS", BS="8"), Job("BS=${BS:-8}\nt -b $BS", BS="64")),
    ("one set where it is empty", Job('[ "$BS" ] || BS=8\nt $BS', BS="8"), Job('[ "$BS" ] || BS=8\nt $BS', BS="64")),
    ("how many seeds", Job("t --num-seeds 1"), Job("t --num-seeds 16")),
    ("how many outputs", Job("t n_out=10"), Job("t n_out=100000")),
    ("what follows a message", Job("echo a; t --bs 8"), Job("echo a; t --bs 64")),
    (
        "sizes of all arguments",
        Job("for b in $@; do\nt -b 4 -c $b\ndone", "1"),
        Job("for b in $@; do\nt -b 8 -c $b\ndone", "1"),
    ),
    ("a level of a grid", Job("t --level 6"), Job("t --level 9")),
    ("a negative number", Job("t --shift -1"), Job("t --shift -2")),
]
NAMED = "t -m $SLURM_JOB_NAME"
NTH = 'CONFIG=$(sed -n "${SLURM_ARRAY_TASK_ID}p" list)\nt $CONFIG'
CHOICE = "sizes=(8 64)\nt --batch ${sizes[SLURM_ARRAY_TASK_ID]}"
STRANGERS = [
    ("other indices", Job(f"t {INDEX}", array="0-1"), Job(f"t {INDEX}", array="2-3")),
    ("one index", Job(f"t {INDEX}", array="1"), Job(f"t {INDEX}", array="2")),
    ("a line of a list", Job(NTH, array="0-1"), Job(NTH, array="2-3")),
    ("one of several sizes", Job(CHOICE, array="0"), Job(CHOICE, array="1")),
    ("a size by index", Job(f"t --batch-size {INDEX}", array="8"), Job(f"t --batch-size {INDEX}", array="64")),
    ("a file by index", Job(f"{ALIAS}t -c c/$TASK.yaml", array="1"), Job(f"{ALIAS}t -c c/$TASK.yaml", array="2")),
    (
        "a reckoned size",
        Job("t $((2 ** SLURM_ARRAY_TASK_ID))", array="1"),
        Job("t $((2 ** SLURM_ARRAY_TASK_ID))", array="9"),
    ),
    ("handed on", Job(f"export {ALIAS}t", array="1"), Job(f"export {ALIAS}t", array="2")),
    *(
        (f"{name}, without a dollar", Job(head + ALIAS + line, array="1"), Job(head + ALIAS + line, array="2"))
        for name, head, line in (
            ("one of a list", "", "C=${ALL[TASK]}\nt -c $C"),
            ("compared", "", "(( TASK == 1 )) && C=big\nt -c $C"),
            ("compared by a test", "", "[[ TASK -eq 1 ]] && C=big\nt -c $C"),
            ("reckoned", "", "N=$((TASK % 4))\nt --layers $N"),
            ("let", "", "let N=TASK%4\nt --layers $N"),
            ("by its name", "", "R=TASK\nt --layers ${!TASK}"),
            ("declared", "declare -x TASK\n", "t"),
        )
    ),
    ("a file by argument", Job("t --config $1", "a.yaml"), Job("t --config $1", "b.yaml")),
    ("a model by the second", Job("t --seed $1 --model $2", "1", "a"), Job("t --seed $1 --model $2", "2", "b")),
    ("one argument more", Job("t --seed $1", "1"), Job("t --seed $1", "1", "x")),
    (
        "a seed that names a file",
        Job("t --seed $1 --config c/$1.yaml", "1"),
        Job("t --seed $1 --config c/$1.yaml", "2"),
    ),
    ("a name", Job("python t.py --name a"), Job("python t.py --name b")),
    ("an experiment's path", Job("t --exp /s/a"), Job("t --exp /s/b")),
    ("an experiment that is named", Job("t --experiment vision/small"), Job("t --experiment vision/large")),
    ("more seeds at once", Job("for seed in 1; do\nt &\ndone\nwait"), Job("for seed in 1 2; do\nt &\ndone\nwait")),
    ("a job's name that is asked", Job(NAMED, SLURM_JOB_NAME="a"), Job(NAMED, SLURM_JOB_NAME="b")),
    ("another program", Job("python train.py"), Job("python eval.py")),
    ("another model", Job("python t.py --model resnet18"), Job("python t.py --model resnet50")),
    ("another model's name", Job("python t.py --model-name bert"), Job("python t.py --model-name gpt")),
    ("a switch", Job("python t.py"), Job("python t.py --fp16")),
    ("a switch before a word", Job("python t.py --wandb resnet50"), Job("python t.py --wandb vgg16")),
    ("another data set", Job("python t.py --data cifar"), Job("python t.py --data imagenet")),
    ("a word among the arguments", Job("t $1", "resnet18"), Job("t $1", "resnet50")),
    ("arguments joined", Job("t", "ab"), Job("t", "a", "b")),
    ("arguments the other way round", Job("t", "a", "b"), Job("t", "b", "a")),
    ("the number of GPUs", Job("t"), Job("t", gpus=2)),
    (
        "sizes that a loop takes",
        Job("for b in $@; do\nt -b $b\ndone", "8"),
        Job("for b in $@; do\nt -b $b\ndone", "64"),
    ),
    ("more seeds of all arguments at once", Job(SEEDS_AT_ONCE, "0"), Job(SEEDS_AT_ONCE, "0", "1")),
    ("variables of all arguments", Job(EXPORTS, "B=x"), Job(EXPORTS, "B=y")),
    ("seeds that are counted", Job("for s in 1; do\nt $((s*2))\ndone"), Job("for s in 9; do\nt $((s*2))\ndone")),
    ("words in place of the arguments", Job("set -- a\nt $@", "b"), Job("t $@", "b")),
    ("a word from outside", Job("t $MODEL", MODEL="a"), Job("t $MODEL", MODEL="b")),
    ("an environment", Job("t", CONDA_DEFAULT_ENV="a"), Job("t", CONDA_DEFAULT_ENV="b")),
    ("an image", Job("apptainer exec a.sif t"), Job("apptainer exec b.sif t")),
    ("a list of numbers", Job("t --layers 3,4,6,3"), Job("t --layers 3,4,23,3")),
    ("a job behind a message", Job("echo a && t --model s"), Job("echo a && t --model l")),
    ("hydra's experiment", Job("t experiment=vision/small"), Job("t experiment=vision/large")),
    ("hydra's added experiment", Job("t +experiment=vision/small"), Job("t +experiment=vision/large")),
    ("an experiment's file", Job("t --exp_file exps/s.py"), Job("t --exp_file exps/l.py")),
    ("a name that chooses the model", Job("NAME=r18\nt --model $NAME"), Job("NAME=r152\nt --model $NAME")),
    ("the same from outside", Job("t --model $NAME", NAME="r18"), Job("t --model $NAME", NAME="r152")),
    ("a number that chooses a file", Job("EXP=3\nt c/exp$EXP.yaml"), Job("EXP=4\nt c/exp$EXP.yaml")),
    ("a name within another", Job("N_ID=a\nOUT=c/$N_ID\nt --resume $OUT"), Job("N_ID=b\nOUT=c/$N_ID\nt --resume $OUT")),
    ("a size like a date", Job("t --crop 2048_1024"), Job("t --crop 2048_1536")),
    ("a macro", Job("cat >p.h <<E\n#define N 8\nE\nmake"), Job("cat >p.h <<E\n#define N 64\nE\nmake")),
    ("one number more", Job("t -b 64"), Job("t -b 64 -w 4")),
    ("no program to be read, elsewhere", Job("gmx mdrun"), Job("gmx mdrun", folder="/home/ann/other")),
]


def _parts(one: Job, other: Job) -> tuple[bool, bool]:
    first, second = parts_of(one.signature()), parts_of(other.signature())
    assert first
    assert second
    return is_same(first, second), is_relative(first, second)


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in SAME], ids=[row[0] for row in SAME])
def test_the_same_job(one: Job, other: Job) -> None:
    if one.folder == other.folder:
        assert one.signature() == other.signature()
    assert _parts(one, other)[0]


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in RELATIVE], ids=[row[0] for row in RELATIVE])
def test_relatives(one: Job, other: Job) -> None:
    assert _parts(one, other) == (False, True)


@pytest.mark.parametrize(("one", "other"), [row[1:] for row in STRANGERS], ids=[row[0] for row in STRANGERS])
def test_strangers(one: Job, other: Job) -> None:
    assert _parts(one, other) == (False, False)


KNOWN = {
    "python train.py --lr 0.1 --batch-size 64 --seed 7": "c54103dbc85e58dc3bf66f64a05bfb42.0.1_64~~827a20ad",
    "srun python -um lab.train --data $DATA --epochs ${EPOCHS:-90} --out runs/a": (
        "53f332c8734a7923f1a2abc3129dbe21.~~827a20ad"
    ),
    "BS=32\nfor lr in 0.1 0.01; do\n  python t.py --lr $lr -b $BS > logs/$lr.txt\ndone": (
        "1eb1c037b8ec5e52cf31e7c663694b8c.32~~827a20ad"
    ),
    "cp -r $HOME/data          $TMPDIR/\ngmx mdrun -s md.tpr -nsteps 50000": (
        "4c33815ea9cfd0d4392c339339e6b520.50000~~827a20ad"
    ),
    "apptainer exec --nv pytorch.sif torchrun --nproc-per-node=1 --master-port=29500 main.py": (
        "da44b2ec5a2402a1f6c31c3af853cb63.1~~827a20ad"
    ),
}


@pytest.mark.parametrize("text", KNOWN)
def test_jobs_stay_known_by_what_they_are_known_by(text: str) -> None:
    """Another signature, and nothing that a site has measured of such jobs is found again: change none unasked."""
    assert Job(text, DATA="/data/cifar").signature() == KNOWN[text]


def test_its_numbers_have_names() -> None:
    found = signature(b"BS=64\nt -b $BS --lr=1e-3 x.y=2 --seed 4\n", ["7", "--depth", "50"], 1)
    assert found.names == ("BS", "lr", "x.y", "argument 1", "depth")
    parts = parts_of(found.text)
    assert parts
    assert parts.values == (64, 0.001, 2, 7, 50)


def test_more_numbers_than_a_name_holds_leave_the_job_itself_only() -> None:
    many = " ".join(f"--a{number} {number}" for number in range(60))
    parts = parts_of(Job(f"t {many}").signature())
    assert parts
    assert parts.values is None
    assert not is_same(parts, parts_of(Job(f"t {many}0").signature()) or parts)


@pytest.mark.parametrize("text", ["", "abc", "abc.1_2", "abc.1_x~~", "abc.1~2~3~4", "abc.1_2~p~f"])
def test_what_is_no_signature_of_this_release(text: str) -> None:
    found = parts_of(text)
    assert found is None or found.folder == "f"


# Of each list, whether a number of that name is inert, and whether more of it never needs less.
NAMES = [
    # What may size a job, and does not tell whether more of it needs more.
    (["lora-rank", "rank", "mask_ratio", "mlp_ratio", "sample-rate", "num-steps", "clip_size", "p"], False, False),
    (["rollout-steps", "steps", "fold", "num-env-workers", "num_gpu_workers", "momentum-queue"], False, False),
    (["freq_bins", "smoothing-window", "argument 1", "x", "stride", "accumulate"], False, False),
    # More of what makes a size smaller does not grow.
    (["grid_spacing", "img-patch-size", "sequence-parallel-size", "crop_stride", "min-length"], False, False),
    (["img_downsample"], False, False),
    (["node_rank", "num_train_steps", "num-epochs", "epochs", "max_steps", "log-interval", "num-workers"], True, False),
    # A rate is no size whatever it is a rate of: a tenth of an embedding's was to need a quarter of the memory.
    (["lr", "optimizer.lr", "weight_decay", "lora_dropout", "hidden_dropout_prob", "embedding-lr"], True, False),
    (["embed_learning_rate", "batch_norm_momentum", "layers-decay", "crop_prob"], True, False),
    (["batch-size", "batch_size", "b", "seqLen", "hidden_dim", "num_layers"], False, True),
    (["warmup_batch", "steps_per_batch", "lr_dim"], False, None),
]


@pytest.mark.parametrize(("name", "inert", "growing"), [(name, *says) for names, *says in NAMES for name in names])
def test_what_numbers_mean(name: str, inert: bool, growing: bool | None) -> None:
    assert is_inert(name) is inert
    assert growing is None or grows(name) is growing


@given(st.binary(max_size=400), st.lists(st.text(max_size=20), max_size=4), st.dictionaries(st.text(), st.text()))
def test_any_text_has_one_that_is_a_file_name(script: bytes, args: list[str], variables: dict[str, str]) -> None:
    found = signature(script, args, 1, (), variables, "/x")
    assert found == signature(script, args, 1, (), variables, "/x")
    assert found.text.isascii()
    assert "/" not in found.text
    assert "\0" not in found.text
    assert len(found.text) < 250
    assert parts_of(found.text)


def _loop(words: str, body: str) -> Job:
    return Job(f"for s in {words}; do\n{body}\ndone | cat")


UNSAID = "SEED=$1\n{}"
AT_ONCE = ["t --seed $s --width 8&", 'echo "t --seed $s" >> l | parallel', "screen -dm t --seed $s"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *((_loop("1 2", body), _loop("1 2 3", body)) for body in AT_ONCE),
        *(
            (Job(UNSAID.format(rest), "8"), Job(UNSAID.format(rest), "64"))
            for rest in ("for b; do\nt -b $b\ndone", "source run.sh", ". ./run.sh", "eval B=\\$$i; t -b $B")
        ),
        (Job("t --seed $1", "1"), Job("t --seed $1", "1 --batch 64")),
        (Job('SEED="$1"\nt --seed $SEED', "1"), Job('SEED="$1"\nt --seed $SEED', "1 width=64")),
        (Job("t --seed $SEED", SEED="1"), Job("t --seed $SEED", SEED="1 --batch 64")),
    ],
)
def test_what_a_seed_brings_with_it_is_another_job(one: Job, other: Job) -> None:
    first, second = parts_of(one.signature()), parts_of(other.signature())
    assert first
    assert second
    assert not is_same(first, second)
