# SPDX-License-Identifier: Apache-2.0
"""What a job reads that does not lie with it, or that no file names: each edit makes it another job."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_colloc.estimate.places import by_path, import_roots
from slurm_colloc.estimate.signature import Signature, apart_by, is_same, parts_of, signature
from slurm_colloc.estimate.submitted import Submitted, compared, keep_submitted, path_of, read_submitted

SITE_PACKAGES = "venv/lib/python3.11/site-packages"
FINDER = f"{SITE_PACKAGES}/__editable___net_0_1_finder.py"
ACTIVATE = "source ~/venv/bin/activate\npython train.py"
ACCELERATE = ".cache/huggingface/accelerate/default_config.yaml"
SETTINGS = 'class S(BaseSettings):\n  model_config = D(env_prefix="app_")'
ELF = "\x7fELF" + "a" * 300_000
MORE = "x" * 4000
PRELOADED = 'import sys\nsys.path.insert(0, "{0}")\nimport net'
# Under the home; lab is the folder of the job. What is edited is all of the right, and nothing of the third.
Files = Mapping[str, str]


def lay(home: Path, files: Files) -> None:
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text.replace("HOME", str(home)))
        if text.startswith("#!"):
            (home / name).chmod(0o755)


def submitted(home: Path, text: str, **variables: str) -> Signature:
    """Return what csub knows a submission by that may come after others."""
    given = {"HOME": str(home), **{name: value.replace("HOME", str(home)) for name, value in variables.items()}}
    found = signature(f"#!/bin/bash\n{text}\n".encode(), (), 1, ("lab",), given, str(home / "lab"))
    path = path_of(str(home.with_suffix(".own")), "job.sh", "lab")
    found, kept, _ = compared(found, read_submitted(path))
    keep_submitted([(path, kept.text)])
    return found


def same(one: Signature, other: Signature) -> bool:
    first, second = parts_of(one.text), parts_of(other.text)
    assert first
    assert second
    return is_same(first, second)


READS: list[tuple[str, str, dict[str, str], Files, Files]] = [
    (
        "by PATH",
        "runnet train.py",
        {"PATH": "HOME/bin:/usr/bin"},
        {"bin/runnet": "#!/bin/sh\nt 1"},
        {"bin/runnet": "#!/bin/sh\nt 2"},
    ),
    (
        "by a PATH of the script",
        "export PATH=$HOME/x:$PATH\nrunnet",
        {},
        {"x/runnet": "#!/bin/sh\nt 1"},
        {"x/runnet": "#!/bin/sh\nt 2"},
    ),
    (
        "PYTHONPATH",
        "python train.py",
        {"PYTHONPATH": "HOME/src"},
        {"src/net/__init__.py": "a"},
        {"src/net/__init__.py": "b"},
    ),
    (
        "PYTHONPATH of two",
        "export PYTHONPATH=~/a:~/src\npython train.py",
        {},
        {"src/net.py": "a", "a/x": ""},
        {"src/net.py": "b"},
    ),
    (
        "editable",
        ACTIVATE,
        {},
        {f"{SITE_PACKAGES}/net.pth": "HOME/src", "src/net/__init__.py": "a"},
        {"src/net/__init__.py": "b"},
    ),
    (
        "an egg's link",
        ACTIVATE,
        {},
        {f"{SITE_PACKAGES}/net.egg-link": "HOME/src\n.", "src/net.py": "a"},
        {"src/net.py": "b"},
    ),
    (
        "editable by a finder",
        ACTIVATE,
        {},
        {
            FINDER: "MAPPING = {'net': 'HOME/src/net'}",
            "src/net/a.py": "b = 1",
            "src/net/__init__.py": "from .a import b",
        },
        {"src/net/a.py": "b = 2"},
    ),
    (
        "of an active environment",
        "python train.py",
        {"VIRTUAL_ENV": "HOME/venv"},
        {f"{SITE_PACKAGES}/net.pth": "HOME/src", "src/net.py": "a"},
        {"src/net.py": "b"},
    ),
    ("sys.path", "python p.py", {}, {"lab/p.py": PRELOADED.format("~/src"), "src/net.py": "a"}, {"src/net.py": "b"}),
    (
        "a package of R",
        "Rscript a.R",
        {},
        {"lab/a.R": 'load_all("~/src/r")', "src/r/DESCRIPTION": "", "src/r/R/fit.R": "1"},
        {"src/r/R/fit.R": "2"},
    ),
    ("accelerate's own", "accelerate launch train.py", {}, {ACCELERATE: "a: 1"}, {ACCELERATE: "a: 2"}),
    (
        "accelerate's own elsewhere",
        "accelerate launch train.py",
        {"HF_HOME": "HOME/hf"},
        {"hf/accelerate/default_config.yaml": "a: 1"},
        {"hf/accelerate/default_config.yaml": "a: 2"},
    ),
    ("a task of poe", "poe train", {}, {"lab/pyproject.toml": "a = 1"}, {"lab/pyproject.toml": "a = 2"}),
    ("a justfile", "just train", {}, {"lab/justfile": "train:\n t 1"}, {"lab/justfile": "train:\n t 2"}),
    ("Rust", "cargo run", {}, {"lab/src/net.rs": "N = 1"}, {"lab/src/net.rs": "N = 2"}),
    ("TypeScript", "npx tsx t.ts", {}, {"lab/t.ts": "n = 1"}, {"lab/t.ts": "n = 2"}),
    (
        "a report",
        "quarto render r.qmd",
        {},
        {"lab/r.qmd": "a\n```{python}\nn = 1\n```\n"},
        {"lab/r.qmd": "a\n```{python}\nn = 2\n```\n"},
    ),
    (
        "settings beside weights",
        "python train.py m",
        {},
        {
            "lab/m/a.safetensors": "w",
            "lab/m/tokenizer.json": "1",
            "lab/m/config.json": "1",
            "lab/train.py": "tokenizer",
        },
        {"lab/m/config.json": "2"},
    ),
    ("a larger file in a folder", "python train.py in/", {}, {"lab/in/a.fasta": "x"}, {"lab/in/b.fasta": MORE}),
    (
        "a larger file of a folder that the program names",
        "python p.py",
        {},
        {"lab/p.py": 'glob("tables")', "lab/tables/a.csv": "x"},
        {"lab/tables/b.csv": MORE},
    ),
    (
        "settings of a loop",
        "for c in conf/*.yaml; do python train.py $c; done",
        {},
        {"lab/conf/a.yaml": "w: 1"},
        {"lab/conf/b.yaml": "w: 2"},
    ),
    ("data rewritten", "python train.py --root tiles", {}, {"lab/tiles/a/1.png": "x"}, {"lab/tiles/a/1.png": MORE}),
    (
        "data of a binary",
        "../bin/solver",
        {},
        {"bin/solver": "s", "lab/mesh.dat": "x" * 300_000},
        {"lab/mesh.dat": "x" * 900_000},
    ),
    (
        "an extension built anew",
        "python train.py",
        {},
        {"lab/_net.cpython-311.so": "\x7fELF 1", "lab/train.py": "import _net"},
        {"lab/_net.cpython-311.so": "\x7fELF 2"},
    ),
    ("a large binary built anew", "./heat", {}, {"lab/heat": ELF + "1"}, {"lab/heat": ELF + "2"}),
    ("an .env that was not there", "python train.py", {}, {"lab/train.py": "load_dotenv()"}, {"lab/.env": "B=1"}),
    (
        "settings among others",
        "python train.py",
        {},
        {"lab/train.py": "conf config local", "lab/conf/config.yaml": "local"},
        {"lab/conf/local/config.yaml": "w: 2"},
    ),
]


@pytest.mark.parametrize(("text", "given", "files", "edit"), [row[1:] for row in READS], ids=[row[0] for row in READS])
def test_what_lies_elsewhere_counts(
    tmp_path: Path, text: str, given: dict[str, str], files: Files, edit: Files
) -> None:
    home = tmp_path / "ann"
    lay(home, ({"lab/train.py": "import net"} if "train.py" in text else {"lab/x": ""}) | dict(files))
    before = submitted(home, text, **given)
    assert same(before, submitted(home, text, **given))
    lay(home, edit)
    assert not same(before, submitted(home, text, **given))


DOES_NOT: list[tuple[str, str, dict[str, str], Files, Files]] = [
    (
        "another's command",
        "t",
        {"PATH": "HOME/bin"},
        {"bin/t": "#!/bin/sh\na", "bin/u": "#!/bin/sh\na"},
        {"bin/u": "#!/bin/sh\nb"},
    ),
    ("a comment of a command", "t", {"PATH": "HOME/bin"}, {"bin/t": "#!/bin/sh\na"}, {"bin/t": "#!/bin/sh\n# so\na"}),
    ("accelerate's own of no use", "python train.py", {}, {ACCELERATE: "a: 1"}, {ACCELERATE: "a: 2"}),
    (
        "what says nothing of a package",
        ACTIVATE,
        {},
        {f"{SITE_PACKAGES}/net.pth": "HOME/src", "src/net.py": "a", "src/b.py": "1"},
        {"src/b.py": "2"},
    ),
    ("a smaller file in a folder", "python train.py in/", {}, {"lab/in/a.fasta": MORE}, {"lab/in/b.fasta": "x"}),
    (
        "a report's prose",
        "quarto render r.qmd",
        {},
        {"lab/r.qmd": "a\n```{python}\nn = 1\n```\n"},
        {"lab/r.qmd": "b\n```{python}\nn = 1\n```\n"},
    ),
    (
        "a folder of code and its README",
        "export PYTHONPATH=~/src\npython train.py",
        {},
        {"src/net/a.py": "1", "src/README.md": "a"},
        {"src/README.md": MORE},
    ),
    ("results of a binary", "./heat", {}, {"lab/heat": "\x7fELF"}, {"lab/out.dat": "x" * 300_000}),
    (
        "what a run writes among its settings",
        "python train.py",
        {},
        {"lab/conf/c.yaml": "a"},
        {"lab/conf/r.json": "[]"},
    ),
]


@pytest.mark.parametrize(
    ("text", "given", "files", "edit"), [row[1:] for row in DOES_NOT], ids=[row[0] for row in DOES_NOT]
)
def test_what_is_beside_it_does_not(
    tmp_path: Path, text: str, given: dict[str, str], files: Files, edit: Files
) -> None:
    home = tmp_path / "ann"
    lay(home, ({"lab/train.py": "import net"} if "train.py" in text else {"lab/x": ""}) | dict(files))
    before = submitted(home, text, **given)
    lay(home, edit)
    assert same(before, submitted(home, text, **given))


@pytest.mark.parametrize(
    ("code", "name", "counts"),
    [
        ('os.getenv("batch")', "batch", True),
        (SETTINGS, "APP_MODEL__WIDTH", True),
        (SETTINGS, "OTHER_WIDTH", False),
        ('fit(auto_envvar_prefix="FIT")', "FIT_BATCH", True),
        ("LightningCLI(Net)", "PL_FIT__MODEL__DIM", True),
        ("class S: app", "APP_MODEL__WIDTH", False),
    ],
)
def test_variables_that_become_settings_count(tmp_path: Path, code: str, name: str, counts: bool) -> None:
    lay(tmp_path, {"lab/train.py": code})
    small, large = (submitted(tmp_path, "python train.py", **{name: value}) for value in ("8", "64"))
    assert same(small, large) is not counts


def test_places_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pth")
    (tmp_path / "loop").symlink_to("loop")
    packages = tmp_path / "venv/lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    os.mkfifo(packages / "a.pth")
    (packages / "b.pth").write_bytes(b"\xff\n/\x00x\n/nowhere")
    variables = {
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "PATH": f"{tmp_path}/loop:\0:~x:",
        "HOME": "",
        "PYTHONPATH": ":\0",
    }
    assert "/nowhere" in import_roots("x" * 100_000 + "/bin/", variables, "/lab")
    assert not list(by_path("t " * 1000, variables, str(tmp_path)))
    assert signature(b"python t.py", (), 1, (), variables, str(tmp_path)).text.isascii()


@pytest.mark.parametrize(
    "piece", ["a/", "*/", "/bin/", "=/", "activate ", "PATH=", "$1 ", ":", "> a", "cp ", "ln -s a  ", "[ -f "]
)
def test_no_text_takes_long(piece: str) -> None:
    began = time.process_time()
    signature(b"#!/bin/sh\n" + (piece * 30_000)[:48_000].encode(), ("a",), 1, (), {}, "/nowhere")
    assert time.process_time() - began < 1.0


HEAD = "module load cuda\nsource activate a\n"
ONE_ORDER = [
    ("python train.py --width 8 --lr 1", "python3 -u train.py --lr 1 --width 8"),
    ("python train.py --width 8", "srun python train.py --width 8 2>&1 | tee train.log"),
    ("python train.py --width 8 --lr 0.1", "time python train.py --width 8 --lr 0.2"),
    (f"{HEAD}t", "source activate a\nmodule load cuda\nt"),
]
OTHER_ORDER = [
    ("python train.py --width 8 --width 4", "python train.py --width 4 --width 8"),
    ("python train.py --width 8 --depth 4", "python train.py --depth 8 --width 4"),
    ("python train.py --width 8 --epochs 1", "python train.py --width 8 --epochs 9"),
    ("source a.env\nsource b.env\nt", "source b.env\nsource a.env\nt"),
    ("t --a x b --c y", "t --c y b --a x"),
    ("t 'a --b --c'", "t 'a --c --b'"),
    ("t; u", "t & u"),
    ("python t --sizes 8 --depths 2 16", "python t --depths 2 --sizes 8 16"),
    ("python t --a --b 8", "python t --b --a 8"),
    ("python t --amp=1 --no-amp=1", "python t --no-amp=1 --amp=1"),
    ("python t --config=a --width=8", "python t --width=8 --config=a"),
    ("python t -b 8 --batch 64", "python t --batch 64 -b 8"),
    ("python t --model=a --model.width=8", "python t --model.width=8 --model=a"),
    ("ffmpeg -r 30 -i a.mp4", "ffmpeg -i a.mp4 -r 30"),
    ("exec t\nu", "t\nu"),
    ("PYTHONUNBUFFERED=1;M=a t", "PYTHONUNBUFFERED=1;M=b t"),
    ("python3.8 t", "python3.11 t"),
    ("source activate a\nsource activate b\nt", "source activate b\nsource activate a\nt"),
    ("module load cuda/11\nmodule load cuda/12\nt", "module load cuda/12\nmodule load cuda/11\nt"),
    ("module load python\nsource activate b\nt", "source activate b\nmodule load python\nt"),
    ("t --momentum 0", "t --momentum 0.9"),
    ("t --patch-dropout 0.1", "t --patch-dropout 0.5"),
    ("t --conn-prob 0.1", "t --conn-prob 0.5"),
    ("python <<E\npython --a=x --b=y\nE", "python <<E\npython --b=y --a=x\nE"),
]


@pytest.mark.parametrize(
    ("one", "other", "is_same_job"), [(*row, True) for row in ONE_ORDER] + [(*row, False) for row in OTHER_ORDER]
)
def test_order_that_says_nothing_is_no_difference_to_the_last_submission(
    tmp_path: Path, one: str, other: str, is_same_job: bool
) -> None:
    home = tmp_path / "ann"
    lay(home, {"lab/train.py": "a"})
    first, second = submitted(home, one), submitted(home, other)
    assert same(first, second) is is_same_job
    assert same(second, submitted(home, other))


@pytest.mark.parametrize("start", ["srun", "srun -u", "srun --unbuffered"])
def test_srun_of_several_tasks_is_another_job_than_one_program(start: str) -> None:
    for tasks in (1, 4):
        found = [
            signature(text, (), 1, apart_by("lab", tasks), folder="/nowhere") for text in (b"t", f"{start} t".encode())
        ]
        last = Submitted(found[0].words, {}, "", found[0].text)
        assert same(found[0], compared(found[1], last)[0]) is (tasks == 1)


def test_an_argument_is_no_line_of_the_script() -> None:
    one, other = signature(b"t", ("u",), 1, folder="/nowhere"), signature(b"t\nu", (), 1, folder="/nowhere")
    assert not same(one, compared(other, Submitted(one.words, {}, "", one.text))[0])


def test_values_stay_with_their_names_in_another_order(tmp_path: Path) -> None:
    home = tmp_path / "ann"
    lay(home, {"lab/train.py": "a"})
    submitted(home, "python train.py --width 8 --depth 2")
    found = submitted(home, "python train.py --depth 2 --width 64")
    parts = parts_of(found.text)
    assert parts
    assert dict(zip(found.names, parts.values or (), strict=True)) == {"width": 64, "depth": 2}


def test_folders_of_the_kernel_are_not_looked_through_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "p").symlink_to("/proc/self")
    (tmp_path / "t.py").symlink_to("/proc/self/limits")
    assert signature(b"python t.py p", (), 1, (), {}, str(tmp_path)).read.files == {}


def test_more_than_can_be_looked_through_is_said(tmp_path: Path) -> None:
    many = {"PYTHONPATH": ":".join(f"/x{number}" for number in range(17))}
    assert not signature(b"t", (), 1, (), many, str(tmp_path)).read.fits
    lay(tmp_path, {f"v{n}/lib/python3.1{k}/site-packages/{n}.pth": "/x\n" * 20_000 for n in range(16) for k in "12"})
    began = time.process_time()
    text = "".join(f"{tmp_path}/v{number}/bin/activate\n" for number in range(16))
    assert not signature(text.encode(), (), 1, (), {}, str(tmp_path)).read.fits
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize(("name", "piece"), [("t.py", "glob "), ("t.sh", " #"), ("t.sh", "\n")])
def test_no_file_takes_long(tmp_path: Path, name: str, piece: str) -> None:
    lay(tmp_path, {name: (piece * 250_000)[:250_000]})
    began = time.process_time()
    signature(f"t {name}".encode(), (), 1, (), {}, str(tmp_path))
    assert time.process_time() - began < 0.3
