# SPDX-License-Identifier: Apache-2.0
"""csub --trace: which program a script runs, what the tracer says of it, and what follows for the estimate."""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import InputError
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.trace import from_trace
from slurm_colloc.history.snapshot import FamilyUse
from slurm_colloc.history.traces import Traced, keep_trace, parse_trace, read_traces, trace_path
from slurm_colloc.model import Footprint
from slurm_colloc.submit.tracing import Program, find_program
from tests.unit.made import H100, evidence, near

TRACER = Path(__file__).resolve().parents[2] / "slurm_colloc/runtime/for_tasks/csub_trace.py"
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}
OWN, OTHER = "fam.64~p~f", "fam.32~p~f"
TRACED = Traced(10.0, 10.0, 20.0, 60.0, 100.0, "2 optimizer steps", "2.15.0")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH with the programs that scripts start."""
    for name in ("python", "python3"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("text", "argv", "environ"),
    [
        (
            "#!/bin/bash\n#SBATCH -t 1\nset -e\necho $HOSTNAME 2>/dev/null\npython train.py --lr 0.1\n",
            "train.py --lr 0.1",
            {},
        ),
        ("BS=32\nexport X=1\npython -u a.py -b $BS ${X} > log 2>&1", "a.py -b 32 1", {"BS": "32", "X": "1"}),
        ("Y=2 python3 a.py | tee log", "a.py", {"Y": "2"}),
        ("srun -n1 --gres=gpu:1 python a.py \\\n  --x 'a b'", "a.py --x|a b", {}),
        ("torchrun --standalone --nproc_per_node=1 a.py --x", "a.py --x", RANK),
        ("accelerate launch --num_processes 1 a.py --x", "a.py --x", RANK),
        ("python -m pkg.train --x 1", "-m pkg.train --x 1", {}),
        ('python a.py "$@"', "a.py --from here", {}),
        ("python a.py $1", "a.py --from", {}),
        ("D=$(date)\nmkdir -p out && python a.py", "a.py", {}),
    ],
)
def test_the_program_of_a_script_is_found(text: str, argv: str, environ: dict[str, str], path: str) -> None:
    found = find_program(text, ("--from", "here"), {"PATH": path, "HOSTNAME": "n1"})
    assert isinstance(found, Program), found
    words = argv.replace("|", " ", 1).split(" ", argv.count(" ")) if "|" not in argv else ["a.py", "--x", "a b"]
    assert (list(found.argv), dict(found.environ)) == (words, environ)
    assert found.python.startswith(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("source env/bin/activate\npython a.py", "chooses an environment"),
        ("conda activate e && python a.py", "chooses an environment"),
        ("module load torch\npython a.py", "--trace-python=PATH"),
        ("apptainer exec x.sif python a.py", "container"),
        ("srun --container-image=x python a.py", "container"),
        ("for i in 1 2; do\npython a.py\ndone", "'for'"),
        ("if true; then python a.py; fi", "'if'"),
        ("cd sub\npython a.py", "'cd'"),
        ("(python a.py)", "groups commands"),
        ("python a.py $(cat x)", "output of a command"),
        ("python - <<E\nE", "a text of its own"),
        ("python a.py; python b.py", "2 Python programs"),
        ("sleep 5", "no Python program"),
        ("python a.py $SLURM_ARRAY_TASK_ID", "'$SLURM_ARRAY_TASK_ID'"),
        ("python a.py ${X:-1}", "not known before the job runs"),
        ("torchrun --nproc_per_node 4 a.py", "starts 4 processes"),
        ("python -c 'print(1)'", "runs is no file"),
        ("python 'a.py", "cannot be read"),
        ("mpirun python a.py", "'mpirun' is not known"),
    ],
)
def test_what_is_not_certain_is_not_traced(text: str, why: str, path: str) -> None:
    assert why in str(find_program(text, (), {"PATH": path}))


def test_a_python_that_is_named_stands_for_the_environment_of_the_script(path: str) -> None:
    found = find_program("module load torch\nconda activate e\npython a.py", (), {"PATH": "/none"}, f"{path}/python3")
    assert found == Program(f"{path}/python3", ("a.py",), {})
    assert find_program("python a.py", (), {"PATH": "/none"}) == "there is no 'python'"


def question(*traces: tuple[str, float], **fields: Any) -> Question:
    return Question(signature=OWN, numbers=("batch-size",), traces=traces)._replace(**fields)


def test_a_trace_alone_has_the_wide_margin_and_says_nothing_of_sms() -> None:
    small = estimate(question((OWN, 1000.0)))
    assert small.gpu_mem_peak_mib
    assert (small.rung, small.sm_active_pct, small.gpu_model) == ("trace", None, "")
    assert small.gpu_mem_peak_mib.q50 == near(1.12 * 1000 + 850)
    assert small.gpu_mem_peak_mib.q99 == near(1.73 * (1.12 * 1000 + 850))
    families = tuple(FamilyUse(H100, 1000.0, float(number), None) for number in range(49))
    assert estimate(question((OWN, 1000.0), families=families)).sm_active_pct is not None


def test_what_one_measured_run_of_a_relative_held_beside_its_context_grows_with_the_tensors() -> None:
    run = evidence("7", 2700, signature=OTHER)
    found = from_trace(question((OWN, 3000.0), (OTHER, 1500.0), relatives=(run,)))
    assert isinstance(found, Footprint)
    assert found.gpu_mem_peak_mib
    assert (found.rung, found.gpu_model, found.evidence_count, found.margin) == ("trace", H100, 1, "trace-one")
    assert found.gpu_mem_peak_mib.q50 == 700 + 2 * 2000
    assert found.gpu_mem_peak_mib.q99 == near(4700 * 1.24)
    assert found.sm_active_pct
    assert found.sm_active_pct.q95 == 60.0, "twice the tensors, at most twice as busy"
    failed = evidence("8", 6000, signature=OWN, state="FAILED")
    bounded = from_trace(question((OWN, 3000.0), (OTHER, 1500.0), relatives=(run,), runs=(failed,)))
    assert isinstance(bounded, Footprint)
    assert bounded.gpu_mem_peak_mib
    assert bounded.gpu_mem_peak_mib.q99 == 6000


def test_a_smaller_job_has_room_for_as_much_beside_its_tensors_but_for_no_more_than_the_larger_one_held() -> None:
    def asked(traced: float, peak: int) -> Footprint:
        found = from_trace(question((OWN, traced), (OTHER, 4000.0), relatives=(evidence("7", peak, signature=OTHER),)))
        assert isinstance(found, Footprint), found
        return found

    workspace = asked(1000.0, 8000)
    assert workspace.gpu_mem_peak_mib
    assert workspace.gpu_mem_peak_mib.q50 == 700 + 7300 / 4
    assert workspace.gpu_mem_peak_mib.q99 == 1000 + 4000, "a workspace may not shrink with the batch"
    assert workspace.margin == "trace-one-below"
    alike = asked(3990.0, 8000)
    assert alike.gpu_mem_peak_mib
    assert alike.gpu_mem_peak_mib.q99 == near(8000 * 1.05)
    too_much = asked(2000.0, 2700)
    assert too_much.gpu_mem_peak_mib
    assert too_much.gpu_mem_peak_mib.q50 == 1700, "half of it, not 1300 MiB less than its tensors"


def test_what_held_little_beside_its_tensors_had_no_large_context() -> None:
    """A job of 16 times the tensors was to need no more than the small one had held."""
    for peak, expected in ((500, 50 + 450 * 16), (400, 400 * 16)):
        run = evidence("7", peak, signature=OTHER)
        found = from_trace(question((OWN, 7200.0), (OTHER, 450.0), relatives=(run,)))
        assert isinstance(found, Footprint)
        assert found.gpu_mem_peak_mib
        assert found.gpu_mem_peak_mib.q50 == expected


def test_a_run_of_quite_another_size_is_no_measure() -> None:
    run = evidence("7", 2700, signature=OTHER)
    found = from_trace(question((OWN, 17000.0), (OTHER, 1000.0), relatives=(run,)))
    assert isinstance(found, Footprint)
    assert found.margin == "trace-alone"


def test_of_relatives_commands_and_a_trace_the_lowest_answers_and_own_runs_come_before_all() -> None:
    two = (evidence("1", 2000, signature=OTHER), evidence("2", 2500, signature="fam.48~p~f"))
    assert estimate(question((OWN, 4000.0), (OTHER, 2000.0), relatives=two)).rung == "near"
    assert estimate(question((OWN, 4000.0), (OTHER, 3500.0), relatives=two)).rung == "trace"
    command = (evidence("4", 2200, signature="other.1~p~f"),)
    assert estimate(question(relatives=two, by_command=command)).rung == "command"
    # Today's script held more with less to do: it was another when its command ran.
    lower = (command[0]._replace(gpu_mem_peak_mib=1500),)
    assert estimate(question(relatives=two, by_command=lower)).rung == "near"
    only = estimate(question(relatives=(two[1]._replace(state="GPU_OOM"),), by_command=lower))
    assert only.gpu_mem_peak_mib
    assert (only.rung, only.gpu_mem_peak_mib.q99) == ("command", 2500), "where nothing else answers it is raised"
    assert estimate(question(relatives=two, by_command=(command[0]._replace(gpu_mem_peak_mib=9000),))).rung == "near"
    own = evidence("3", 3000, signature=OWN)
    assert estimate(question((OWN, 4000.0), runs=(own,))).rung == "exact"
    assert from_trace(question((OTHER, 2000.0))) == "it was not traced"
    assert estimate(question()).provenance == "no earlier run of this job is known"


def test_traces_are_kept_by_signature_and_a_broken_file_is_none(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    assert read_traces(folder, [OWN]) == ()
    keep_trace(folder, OWN, TRACED)
    assert read_traces(folder, [OTHER, OWN, OWN]) == ((OWN, 100.0),)
    for content in (
        "{",
        "[]",
        "null",
        '{"peak_mib": 1}',
        json.dumps({**TRACED._asdict(), "peak_mib": float("nan")}),
        json.dumps({**TRACED._asdict(), "peak_mib": 10**400}),
    ):
        Path(trace_path(folder, OWN)).write_text(content)
        assert read_traces(folder, [OWN]) == ()
    for number in range(120):
        keep_trace(folder, f"fam.{number}~p~f", TRACED)
    assert len(list((tmp_path / "data/traces/fam").iterdir())) == 100


def test_the_reason_of_the_tracer_is_said_on_one_line() -> None:
    with pytest.raises(InputError, match=r"^no\?more$"):
        parse_trace(json.dumps({"why_not": "no\nmore"}).encode())
    for content in (b"", b"[" * 100000, b'{"peak_mib": -1}'):
        with pytest.raises(InputError, match="expected form"):
            parse_trace(content)


# --- with torch ---

CNN = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                    nn.Flatten(), nn.Linear(64, 10)).to(device)
best = torch.optim.Adam(net.parameters())
scaler = torch.cuda.amp.GradScaler()
data = TensorDataset(torch.randn(64, 3, 64, 64), torch.randint(0, 10, (64,)))
for x, y in DataLoader(data, batch_size=int(sys.argv[1]), shuffle=True, num_workers=2, pin_memory=True):
    x, y = x.to(device, non_blocking=True), y.cuda()
    assert x.is_cuda and x.device.type == "cuda"
    loss = nn.functional.cross_entropy(net(x), y)
    best.zero_grad(); scaler.scale(loss).backward(); scaler.step(best); scaler.update()
    print(f"{loss:.3f}", loss.item(), (net(x).argmax(1) == y).sum().item() / len(y))
open("ran-on", "w")
"""
ENCODER = """
import torch
from torch import nn
layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
net = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 2), nn.Linear(256, 1000)).cuda()
best = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(9):
    x = torch.randint(0, 1000, (8, 64), device="cuda")
    nn.functional.cross_entropy(net(x).view(-1, 1000), x.view(-1)).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    best.step(); best.zero_grad()
"""
INFER = """
import torch
net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).half().cuda().eval()
with torch.no_grad():
    while True:
        print(net(torch.randn(16, 1024).half().to("cuda:0")).cpu().numpy().mean())
"""


@functools.cache
def torch_python() -> str:
    """Return a Python that has torch: this one's, or Debian's (python3-torch)."""
    for python in (sys.executable, "/usr/bin/python3"):
        if Path(python).exists() and not subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
            return python
    return ""


def trace(folder: Path, program: str, *words: str, seconds: int = 60) -> dict[str, object]:
    if not torch_python():
        pytest.skip("no Python here has torch; Debian's python3-torch is enough")
    (folder / "program.py").write_text(program)
    out = folder / "out.json"
    limits = ["--seconds", str(seconds), "--memory-mib", "16384", "--folder", str(folder)]
    argv = [torch_python(), "-W", "ignore", str(TRACER), "--out", str(out), *limits, "--", "program.py", *words]
    subprocess.run(argv, check=False, capture_output=True, timeout=120)
    found: dict[str, object] = json.loads(out.read_text()) if out.exists() else {}
    return found


def test_a_training_is_traced_to_its_second_step(tmp_path: Path) -> None:
    small, large = (parse_trace(json.dumps(trace(tmp_path, CNN, size)).encode()) for size in ("8", "16"))
    assert small.what == "2 optimizer steps"
    # 64 x (3 x 9 + 1) + 4 x 64 + 650 weights of four bytes, of which 128 are statistics that no optimizer has.
    assert (small.parameters_mib, small.gradients_mib, small.optimizer_mib) == (0.01, 0.01, 0.02)
    # What BatchNorm reads and what ReLU returns: 64 x 64 x 64 numbers of each image, three times.
    assert 24 <= small.peak_mib <= 48
    assert large.activations_mib == pytest.approx(2 * small.activations_mib, rel=0.02)
    assert not (tmp_path / "ran-on").exists()


def test_a_transformer_is_traced_with_what_its_optimizer_keeps(tmp_path: Path) -> None:
    found = parse_trace(json.dumps(trace(tmp_path, ENCODER)).encode())
    assert found.parameters_mib == found.gradients_mib == pytest.approx(7.98, rel=0.02)
    assert (found.optimizer_mib, found.what) == (0.0, "2 optimizer steps")
    assert found.peak_mib > 20


def test_an_inference_is_traced_to_its_second_pass(tmp_path: Path) -> None:
    found = parse_trace(json.dumps(trace(tmp_path, INFER)).encode())
    assert (found.gradients_mib, found.optimizer_mib, found.what) == (0.0, 0.0, "2 forward passes")
    assert found.peak_mib == pytest.approx(8 * (1024 + 1) * 1024 * 2 / 2**20, rel=0.01)


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import torch, nowhere_to_be_found", "a module is missing"),
        ("import torch; torch.ones(3)", "put nothing on a GPU"),
        ("import torch; torch.ones(3).cuda()", "ended before it had trained"),
        ("import sys, torch; torch.ones(3).cuda(); sys.exit('bad')", "ended with 'bad'"),
        ("raise ValueError('a\\nb')", "ValueError: a"),
    ],
)
def test_what_cannot_be_traced_is_said(tmp_path: Path, program: str, why: str) -> None:
    assert why in str(trace(tmp_path, program)["why_not"])


def test_a_program_without_end_is_ended(tmp_path: Path) -> None:
    assert trace(tmp_path, "while True: pass", seconds=4) == {}
