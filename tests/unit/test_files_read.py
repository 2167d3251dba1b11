# SPDX-License-Identifier: Apache-2.0
"""Which files are part of what a job is: what it may read, and not what runs leave behind."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_colloc.core.model import Reason, because
from slurm_colloc.estimate import files as files_module
from slurm_colloc.estimate.content import said
from slurm_colloc.estimate.signature import Signature, is_relative, is_same, parts_of, signature
from slurm_colloc.estimate.submitted import Submitted, compared, keep_submitted, path_of, read_submitted

NAMES = "output_dir: {0}\nlog_interval: {1}"
LEFT = {"logs/c.yaml": "b: 8", "slurm-1.out": "x", "ckpt/last.pt": "w", "ckpt/args.json": "{}"}
HYDRA = '@hydra.main(config_path="conf", config_name="config")'
LINES = 'P=tasks.txt\nA=$(sed -n "${SLURM_ARRAY_TASK_ID}p" $P)\npython train.py $A'


def lay(folder: Path, files: Mapping[str, str | None]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            (folder / name).unlink()
        else:
            (folder / name).write_text(text)


def known(folder: Path, text: str, *args: str, home: str = "/home/ann") -> Signature:
    return signature(f"#!/bin/bash\n{text}\n".encode(), args, 1, ("lab",), {"HOME": home}, str(folder))


def same(one: Signature, other: Signature) -> bool:
    first, second = parts_of(one.text), parts_of(other.text)
    assert first
    assert second
    assert is_relative(first, second) >= is_same(first, second)
    return is_same(first, second)


@pytest.mark.parametrize(
    ("says", "read"),
    [
        ('open("../shared/c.yaml")', "shared/c.yaml"),
        ('open("{}/shared/c.yaml")', "shared/c.yaml"),
        ('open(os.path.expanduser("~/c.yaml"))', "c.yaml"),
        ('sys.path.append("../shared/lib")\nimport net', "shared/lib/net.py"),
    ],
)
def test_what_a_program_names_elsewhere_counts(tmp_path: Path, says: str, read: str) -> None:
    lay(tmp_path, {"lab/train.py": says.format(tmp_path), read: "8", "shared/other.yaml": "a"})

    def at_submission() -> Signature:
        return known(tmp_path / "lab", "python train.py", home=str(tmp_path))

    before = at_submission()
    lay(tmp_path, {"shared/other.yaml": "b"})
    assert same(before, at_submission())
    lay(tmp_path, {read: "64"})
    assert not same(before, at_submission())


@pytest.mark.parametrize("says", ['open("../results/c.yaml", "w")', "a /b/c", "https://lab.org/c.yaml", "x = n/.5"])
def test_what_a_program_writes_elsewhere_does_not_count(tmp_path: Path, says: str) -> None:
    lay(tmp_path, {"lab/train.py": says})
    before = known(tmp_path / "lab", "python train.py")
    lay(tmp_path, {"results/c.yaml": "a"})
    assert same(before, known(tmp_path / "lab", "python train.py"))


@pytest.mark.parametrize("files", [{"train.py": 'sizes = {"small": 1, "large": 2}'}, {"models.py": "def large(): 2"}])
def test_a_runs_name_of_which_a_file_says_something_counts(tmp_path: Path, files: dict[str, str]) -> None:
    lay(tmp_path, {"train.py": "import models"} | files)
    large, a, b = (known(tmp_path, f"python train.py --run-name {name}") for name in ("large", "a", "b"))
    assert same(a, b)
    assert not same(a, large)


def asked_for(folder: Path, **variables: str) -> Signature:
    return signature(b"#!/bin/bash\npython train.py\n", (), 1, ("lab",), variables, str(folder))


def test_a_variable_that_only_the_program_asks_for_counts(tmp_path: Path) -> None:
    lay(tmp_path, {"train.py": 'import os\nnet = os.environ.get("MODEL", "small")\nsize = os.getenv("BATCH_SIZE")'})
    none, small, large = (asked_for(tmp_path, **given) for given in ({}, {"MODEL": "small"}, {"MODEL": "large"}))
    assert same(small, asked_for(tmp_path, MODEL="small", OTHER="x", SSH_CLIENT="10.0.0.1"))
    assert not same(small, large)
    assert not same(none, large)
    assert not any("large" in word for word in large.words), "it may be a secret"
    more = asked_for(tmp_path, BATCH_SIZE="64")
    assert more.names == ("BATCH_SIZE",)
    assert not same(asked_for(tmp_path, BATCH_SIZE="8"), more)


def test_an_arrays_index_that_only_the_program_asks_for_counts(tmp_path: Path) -> None:
    def of(array: str) -> Signature:
        return signature(b"#!/bin/bash\npython train.py\n", (), 1, ("lab",), {}, str(tmp_path), array=array)

    lay(tmp_path, {"train.py": 'size = int(os.environ["SLURM_ARRAY_TASK_ID"])'})
    assert same(of("1-3"), of("1-3"))
    assert not same(of("1-3"), of("4-9"))
    lay(tmp_path, {"train.py": "size = 3"})
    assert same(of("1-3"), of("4-9"))


def test_of_settings_too_long_to_be_read_the_size_counts_to_the_byte_and_how_they_begin(tmp_path: Path) -> None:
    lay(tmp_path, {"train.py": "a", "c.json": '{"b": 8,' + " " * 300_000})
    before = known(tmp_path, "python train.py c.json")
    lay(tmp_path, {"c.json": '{"b": 9,' + " " * 300_000})
    edited = known(tmp_path, "python train.py c.json")
    assert not same(before, edited)
    lay(tmp_path, {"c.json": '{"b": 9,' + " " * 300_001})
    assert not same(edited, known(tmp_path, "python train.py c.json"))


@pytest.mark.parametrize(
    ("text", "files", "edit"),
    [
        ("python train.py --config c.yaml", {"c.yaml": "batch: 8"}, {"c.yaml": "batch: 64"}),
        ("python train.py --config c", {"configs/c.yaml": "b: 8"}, {"configs/c.yaml": "b: 64"}),
        ("bash a.sh", {"a.sh": "bash b/c.sh", "b/c.sh": "python train.py"}, {"train.py": "b"}),
        (LINES, {"tasks.txt": "-b 8"}, {"tasks.txt": "-b 64"}),
        ("source env.sh\npython train.py", {"env.sh": "BS=8"}, {"env.sh": "BS=64"}),
        ("cd lib && python main.py", {"lib/main.py": "a"}, {"lib/main.py": "b"}),
        ("python -m lib.train", {"lib/train.py": "a"}, {"lib/train.py": "b"}),
        ("python train.py", {"train.py": "from models import net", "models/net.py": "a"}, {"models/net.py": "b"}),
        ("python train.py", {"train.py": HYDRA, "conf/config.yaml": "b: 8"}, {"conf/config.yaml": "b: 64"}),
        ("python train.py", {"train.py": HYDRA, "conf/config.yaml": "s", "conf/s.yaml": "1"}, {"conf/s.yaml": "2"}),
        ("python train.py c.py", {"c.py": "_base_ = ['b.py']", "b.py": "depth = 8"}, {"b.py": "depth = 64"}),
        ("srun vasp_std", {"POSCAR": "Si 8"}, {"POSCAR": "Si 216"}),
        ("lmp -in a.lmp", {"a.lmp": "read_data w.data", "w.data": "64 atoms"}, {"w.data": "6400 atoms"}),
        ("make train", {"Makefile": "train:\n\tpython train.py -b 8"}, {"Makefile": "train:\n\tpython train.py -b 64"}),
        ("make -j 8", {"Makefile": "all:", "src/setup.cpp": "grid(8)"}, {"src/setup.cpp": "grid(64)"}),
        ("python train.py --model m", {"m/model.safetensors": "1" * 10}, {"m/model.safetensors": "1" * 100}),
        ("python train.py --exp-name big", {"train.py": "big = 8"}, {"train.py": "big = 64"}),
        ("python train.py", {"train.py": 'open(".c.json")', ".c.json": "8"}, {".c.json": "64"}),
        ("python train.py", {"train.py": 'open(".cfg/c.yaml")', ".cfg/c.yaml": "8"}, {".cfg/c.yaml": "64"}),
    ],
)  # fmt: skip
def test_what_a_job_may_read_makes_it_another(
    tmp_path: Path, text: str, files: dict[str, str], edit: dict[str, str]
) -> None:
    lay(tmp_path, {"train.py": "a"} | files)
    before = known(tmp_path, text)
    assert same(before, known(tmp_path, text))
    lay(tmp_path, edit)
    assert not is_relative(*(parts_of(one.text) for one in (before, known(tmp_path, text))))  # type: ignore[arg-type]


NOTEBOOK = {"cells": [{"cell_type": "code", "source": ["b = 8"], "outputs": []}]}
EXECUTED = {"cells": [{"cell_type": "code", "source": ["b = 8"], "outputs": ["8"], "execution_count": 3}]}


@pytest.mark.parametrize(
    ("text", "files", "edit"),
    [
        ("python train.py c.yaml", {"c.yaml": "b: 8\nseed: 1"}, {"c.yaml": "# mine\nb:  8  # so\n\nseed: 2"}),
        ("python train.py c.yaml", {"c.yaml": NAMES.format("a", 5)}, {"c.yaml": NAMES.format("b", 9)}),
        ("python train.py", {}, {"train.py": '"""Says what it is."""\n# and why\na\nprint("so")'}),
        ("python train.py", {}, LEFT),
        ("python train.py", {"README.md": "a", "tests/test_x.py": "a"}, {"README.md": "b", "tests/test_x.py": "b"}),
        ("python train.py c/a.yaml", {"c/a.yaml": "1", "c/b.yaml": "1"}, {"c/b.yaml": "2"}),
        ("python train.py", {"plot.py": "a"}, {"plot.py": "b"}),
        ("python train.py --out r.json > l.conf", {}, {"r.json": "{}", "l.conf": "x"}),
        ("cat > c.yaml <<E\nb: 8\nE\npython train.py c.yaml", {"c.yaml": "b: 64"}, {"c.yaml": "b: 8"}),
        ("papermill n.ipynb", {"n.ipynb": json.dumps(NOTEBOOK)}, {"n.ipynb": json.dumps(EXECUTED)}),
        ("nvcc a.cu -o a", {"a.cu": "int n; /* so */\n"}, {"a.cu": "// so\nint n;\n"}),
    ],
)  # fmt: skip
def test_what_it_does_not_read_or_only_tells_runs_apart_does_not(
    tmp_path: Path, text: str, files: dict[str, str], edit: dict[str, str]
) -> None:
    lay(tmp_path, {"train.py": "a"} | files)
    before = known(tmp_path, text)
    lay(tmp_path, edit)
    assert same(before, known(tmp_path, text))


def test_a_job_is_the_same_wherever_its_files_lie(tmp_path: Path) -> None:
    for name, text in (("a", "import resnet\n"), ("b", "import resnet\n"), ("c", "import bert\n")):
        lay(tmp_path / name, {"train.py": text})
    jobs = {name: known(tmp_path / name, "python train.py") for name in "abc"}
    assert same(jobs["a"], jobs["b"])
    assert not same(jobs["a"], jobs["c"])


def test_what_does_not_fit_is_never_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, {f"{number}.json": "{}" for number in range(9)} | {"train.py": "a"})
    monkeypatch.setattr("slurm_colloc.estimate.chosen._MOST_FILES", 5)
    one, other = known(tmp_path, "python train.py"), known(tmp_path, "python train.py")
    parts = parts_of(one.text)
    assert one.text == other.text
    assert parts
    assert not parts.is_certain
    assert not is_same(parts, parts)
    assert is_relative(parts, parts)
    assert compared(one, None)[2] == because("too-many-files")


@pytest.mark.parametrize(
    "bound",
    ["files._MOST_FOLDERS", "files._MOST_ENTRIES", "chosen._MOST_BYTES", "files._MOST_S", "files.MOST_IN_FOLDER"],
)
def test_each_bound_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    lay(tmp_path, {"a/b.yaml": "{}", "train.py": "a", "c.py": "import train"})
    assert known(tmp_path, "python train.py").read.fits
    monkeypatch.setattr(f"slurm_colloc.estimate.{bound}", 0)
    assert not known(tmp_path, "python train.py").read.fits


def test_of_a_home_only_what_lies_in_it_and_what_is_named_counts(tmp_path: Path) -> None:
    lay(tmp_path, {"train.py": "a", "proj/net.py": "a", "other/net.py": "a", ".cache/x.py": "a"})
    read = known(tmp_path, "cd proj; python net.py", home=str(tmp_path)).read
    assert {os.path.relpath(path, tmp_path) for path in read.files} == {"proj/net.py"}
    assert known(tmp_path, "cd ~; python net.py", home=str(tmp_path)).read.fits


def test_of_a_home_a_module_that_was_not_looked_at_is_no_certainty(tmp_path: Path) -> None:
    lay(tmp_path, {"train.py": "import nets.big", "nets/big.py": "a"})
    assert not known(tmp_path, "python train.py", home=str(tmp_path)).read.fits


def test_data_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_MOST_ENTRIES", 1000)
    monkeypatch.setattr(files_module, "_MANY_DATA", 20)
    lay(tmp_path, {f"data/{kind}/{one}.jpg": "" for kind in range(100) for one in range(30)})
    lay(tmp_path, {f"data/few/{kind}/{one}.jpg": "" for kind in range(9) for one in range(30)} | {"train.py": "a"})
    read = known(tmp_path, "python train.py data data/few").read
    assert (read.fits, len(read.files)) == (True, 1)


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    lay(tmp_path, {"net.py": "a"})
    os.mkfifo(tmp_path / "train.py")
    os.symlink("/dev/zero", tmp_path / "zero.yaml")
    os.symlink("a.yaml", tmp_path / "b.yaml")
    os.symlink("b.yaml", tmp_path / "a.yaml")
    os.symlink(".", tmp_path / "loop")
    os.symlink("/nowhere", tmp_path / "gone.json")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.py")).write_text("x")
    found = known(tmp_path, "python train.py zero.yaml a.yaml net.py loop/net.py")
    assert found.text.isascii()
    assert {os.path.basename(path) for path in found.read.files} <= {"net.py"}
    assert compared(found, read_submitted("/nowhere"))[0] == found


def again(folder: Path, text: str) -> tuple[Signature, Reason | None]:
    """Submit, as csub does, and return what it is known by then and how it differs from the last time."""
    path = path_of(str(folder / "own"), "job.sh", str(folder))
    found, kept, differs = compared(known(folder / "job", text), read_submitted(path))
    keep_submitted([(path, kept.text)])
    return found, differs


def test_what_appears_beside_a_job_is_what_it_wrote(tmp_path: Path) -> None:
    lay(tmp_path, {"job/train.py": "open('r.json', 'w')"})
    first, differs = again(tmp_path, "python train.py -x w.bin")
    assert differs is None
    lay(tmp_path, {"job/r.json": "[1]", "job/w.bin": "w"})
    second, differs = again(tmp_path, "python train.py -x w.bin")
    assert (same(first, second), differs) == (True, None)
    lay(tmp_path, {"job/r.json": "[1, 2]"})
    assert same(first, again(tmp_path, "python train.py -x w.bin")[0])
    lay(tmp_path, {"job/w.bin": "w" * 1000})
    last, differs = again(tmp_path, "python train.py -x w.bin")
    assert (same(first, last), differs and differs.code) == (False, "file-edited")


def test_it_is_said_what_differs(tmp_path: Path) -> None:
    lay(tmp_path, {"job/train.py": "a", "job/b.yaml": "a"})
    again(tmp_path, "python train.py --model small")
    other = because("word-differs", word="train.py --model=large", before="train.py --model=small")
    assert again(tmp_path, "python train.py --model large")[1] == other
    assert again(tmp_path, "python train.py --model large 2.0")[1] == because("arguments-differ")
    again(tmp_path, "python train.py --model large")
    path = str(tmp_path / "job/train.py")[-80:]
    for content, code in (("b", "file-edited"), (None, "file-gone")):
        lay(tmp_path, {"job/train.py": content})
        assert again(tmp_path, "python train.py --model large")[1] == because(code, path=path)
    lay(tmp_path, {"job/train.py": "b", "job/c.yaml": "1"})
    again(tmp_path, "python train.py")
    lay(tmp_path, {"job/new.yaml": "b"})
    found = again(tmp_path, "python train.py new.yaml")[1]
    assert found == because("file-new", path=str(tmp_path / "job/new.yaml")[-80:])


@pytest.mark.parametrize("text", ["", "[]", '{"words": 1}', '{"words": [1], "files": {}, "program": ""}', "[" * 9999])
def test_a_damaged_note_of_the_last_submission_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    assert read_submitted(str(tmp_path / "x")) is None
    keep_submitted([(str(tmp_path / "y.json"), Submitted(("a\udcff",), {"\udcff": "1"}, "p").text)])
    assert read_submitted(str(tmp_path / "y.json")) == Submitted(("a\udcff",), {"\udcff": "1"}, "p")


@pytest.mark.parametrize("text", ["#define N 8", "#include <a>", "a = 8 # 'b'", '- # "b"', "print(net(8))"])
def test_what_could_matter_stays(text: str) -> None:
    assert said(text.encode(), "py") == text.encode()


def test_data_in_the_folder_above_does_not_count_for_being_named(tmp_path: Path) -> None:
    lay(tmp_path, {"lab/train.py": 'open("../metrics.dat", "w")', "metrics.dat": "a"})
    before = known(tmp_path / "lab", "python train.py")
    lay(tmp_path, {"metrics.dat": "b"})
    assert same(before, known(tmp_path / "lab", "python train.py"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "epochs: {}\nwidth: {}\n"),
        ("c.json", '{{"epochs": {}, "width": {}}}'),
        ("c.toml", "epochs = {}\nwidth = {}\n"),
        ("c.ini", "[net]\nepochs = {}\nwidth = {}\n"),
        ("train.py", "EPOCHS = {}\nWIDTH = {}\n"),
    ],
)
def test_other_epochs_in_a_file_make_a_related_job_whose_run_time_is_another(
    tmp_path: Path, name: str, text: str
) -> None:
    lay(tmp_path, {"train.py": "a"})

    def submitted(epochs: int, width: int, last: Submitted | None) -> tuple[Signature, Submitted]:
        lay(tmp_path, {name: text.format(epochs, width)})
        return compared(known(tmp_path, f"python train.py {name}"), last)[:2]

    first, kept = submitted(10, 64, None)
    longer, kept = submitted(20, 64, kept)
    again, kept = submitted(20, 64, kept)
    other, _ = submitted(20, 128, kept)
    assert again.text == longer.text
    assert not same(first, longer)
    short, long, wide = (parts_of(one.text) for one in (first, longer, other))
    assert short
    assert long
    assert wide
    assert is_relative(short, long)
    assert not is_relative(long, wide)
