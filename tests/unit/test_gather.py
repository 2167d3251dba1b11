# SPDX-License-Identifier: Apache-2.0
"""'colloc site doctor' from its arguments to its exit status, over made-up commands of Slurm."""

import json
import os
from pathlib import Path

import pytest

from slurm_colloc.core import clock
from slurm_colloc.core.errors import ProcessError
from slurm_colloc.site.doctor.checks import CHECKS
from slurm_colloc.site.doctor.facts import Seen, Unread
from slurm_colloc.site.doctor.gather import gather, plugstack, scripts
from slurm_colloc.slurm.setup import parse_queue
from tests.unit.doctor_sites import ASSOCIATION_ROWS, QOS_ROWS
from tests.unit.golden import Printed
from tests.unit.made import RECORDED
from tests.unit.programs import colloc, program

FOLDER = RECORDED / "slurm-22.05/setup"
AT_S = parse_queue((FOLDER / "queue.txt").read_text()).at_s


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands that answer with what was recorded, from a copy of it."""
    said = tmp_path / "said"
    said.mkdir()
    for path in FOLDER.iterdir():
        (said / path.name).write_text(path.read_text().replace("/lab/etc", str(said)))
    for name in ("epilog.sh", "taskprolog.sh"):
        (said / name).write_text("#!/bin/sh\n")
    scontrol = (
        '[ "$TZ,$SLURM_TIME_FORMAT" = UTC,%s ] || exit 7\n'
        f'case "$*" in --version) echo "slurm-wlm 22.05.8";;'
        f' "show config") cat {said}/config.txt;; "-a show "*) cat {said}/$3.txt;; esac\n'
    )
    (said / "qos.txt").write_text(QOS_ROWS)
    (said / "association.txt").write_text(ASSOCIATION_ROWS)
    program(tmp_path, "scontrol", scontrol, monkeypatch)
    program(
        tmp_path,
        "sacctmgr",
        f'case "$5" in qos) cat {said}/qos.txt;; *) cat {said}/association.txt;; esac\n',
        monkeypatch,
    )
    program(tmp_path, "sdiag", f"cat {said}/queue.txt\n", monkeypatch)
    monkeypatch.setattr(clock, "now", lambda: AT_S + 0.5)
    monkeypatch.setenv("SLURMD_NODENAME", "login")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return said


def shown() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = json.loads(colloc.out)
    return found


def test_what_is_wrong_is_said_with_what_to_do(printed: Printed) -> None:
    assert colloc("site", "doctor") == 1
    said = colloc.out
    lines = said.splitlines()
    # Remedy and page are said once for all subjects of a code.
    (at,) = (number for number, line in enumerate(lines) if line.startswith("DOC050 error: QOS 'one': "))
    assert lines[at - 1].startswith("    see: ")
    assert said.count("    do: set gres/mps") == 1
    assert f" {len(CHECKS)} checks " in lines[0]
    printed("site-doctor", *lines[at - 3 : at + 1], *(line for line in lines if "DOC020" in line))


def test_json_says_the_same() -> None:
    assert colloc("site", "doctor", "--format", "json") == 1
    found = shown()
    about = {"schema", "cluster", "slurm_release", "seen_from"}
    assert set(found) == about | {"checks", "findings", "not_checked"}
    assert set(found["findings"][0]) == {"code", "severity", "subject", "evidence", "consequence", "mend", "source"}
    assert set(found["not_checked"][0]) == {"code", "subject", "why"}


def test_exit_statuses(slurm: Path, capsys: pytest.CaptureFixture[str], printed: Printed) -> None:
    assert colloc("site", "doctor", *(f"--skip={check.code}" for check in CHECKS)) == 0
    seen_elsewhere = [f"--skip={check.code}" for check in CHECKS if check.code != "DOC020"]
    assert colloc("site", "doctor", *seen_elsewhere) == 3
    printed("site-doctor", capsys.readouterr().out.splitlines()[1])
    assert colloc("site", "doctor", "--skip", "DOC9") == 2
    assert colloc("site", "doctor", "--format", "csv") == 2
    printed("site-doctor", capsys.readouterr().err.partition("; there are")[0])
    (slurm / "node.txt").write_text("NodeName=c1 Gres=(null) Partitions=all\n")
    assert colloc("site", "doctor") == 2
    printed("site-doctor", capsys.readouterr().err)
    (slurm / "config.txt").unlink()
    assert colloc("site", "doctor") == 2
    said = capsys.readouterr()
    assert ("'scontrol show config'" in said.err, said.out) == (True, "")


def test_what_does_not_answer_is_not_checked(tmp_path: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "sacctmgr", "echo 'sacctmgr: error: slurmdbd is down' >&2; exit 1\n", monkeypatch)
    program(tmp_path, "sdiag", "exit 1\n", monkeypatch)
    (slurm / "gres.conf").unlink()
    assert colloc("site", "doctor", "--format", "json") == 1
    gaps = {one["code"]: one["why"] for one in shown()["not_checked"]}
    of_gres_conf = {"DOC011", "DOC015", "DOC016", "DOC017"}
    assert set(gaps) == of_gres_conf | {"DOC013", "DOC020", "DOC050", "DOC051", "DOC052", "DOC070", "DOC071"}
    assert "slurmdbd is down" in gaps["DOC050"]
    assert f"'{slurm}/gres.conf'" in gaps["DOC011"]


@pytest.mark.parametrize(
    ("ahead_s", "said"), [(-40.0, "40 s behind"), (40.0, "40 s ahead of"), (5.25, ""), (-5.25, "")]
)
def test_the_clock_of_this_machine(ahead_s: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: AT_S + 0.5 + ahead_s)
    site = gather(10.0, "login", os.environ)
    assert site.clock_ahead_s == (ahead_s, 0.5)
    [check] = [check for check in CHECKS if check.code == "DOC070"]
    found = list(check.find(site))
    assert [isinstance(seen, Seen) and said in seen.evidence for seen in found] == ([True] if said else [])


def test_a_question_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "scontrol", "sleep 20\n", monkeypatch)
    with pytest.raises(ProcessError, match=r"did not answer within 0\.2 s"):
        gather(0.2, "login", os.environ)


def test_scripts_are_found_by_pattern_and_number_and_read_if_they_can_be(tmp_path: Path) -> None:
    folder = tmp_path / "prolog.d"
    folder.mkdir()
    (folder / "10-mps").write_text("#!/bin/sh\n")
    (folder / "20-binary").write_bytes(b"\x7fELF\0")
    os.mkfifo(folder / "30-pipe")
    (tmp_path / "link").symlink_to(folder / "10-mps")
    found = scripts(
        {
            "Prolog[0]": f"{folder}/*",
            "Prolog[1]": str(tmp_path / "absent"),
            "PrologFlags": "Alloc",
            "Epilog": str(tmp_path / "link"),
            "TaskProlog": "(null)",
        }
    )
    assert [(one.setting, Path(one.path).name) for one in found] == [
        *(("Prolog", name) for name in ("10-mps", "20-binary", "30-pipe", "absent")),
        ("Epilog", "link"),
    ]
    texts = [one.text.why if isinstance(one.text, Unread) else one.text for one in found]
    assert texts[0] == texts[4] == "#!/bin/sh\n"
    assert "20-binary' is no script" in texts[1]
    assert "is not a regular file" in texts[2]
    assert "No such file" in texts[3]


def test_a_script_may_be_named_from_where_slurm_conf_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder, text in ((tmp_path, "#!/bin/sh\n"), (elsewhere, "not this\n")):
        (folder / "prolog.sh").write_text(text)
    monkeypatch.chdir(elsewhere)
    (found,) = scripts({"SLURM_CONF": str(tmp_path / "slurm.conf"), "Prolog": "prolog.sh"})
    assert (found.path, found.text) == (str(tmp_path / "prolog.sh"), "#!/bin/sh\n")


def test_plugstack(tmp_path: Path) -> None:
    settings = {"SLURM_CONF": str(tmp_path / "slurm.conf"), "PlugStackConfig": "(null)"}
    assert plugstack(settings) == ()
    for name in ("plugstack.conf", "own.conf", "plugstack.conf.d/1.conf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert [one.path for one in plugstack(settings)] == [
        f"{tmp_path}/plugstack.conf{name}" for name in ("", ".d/1.conf")
    ]
    assert [one.path for one in plugstack({**settings, "PlugStackConfig": "own.conf"})] == [f"{tmp_path}/own.conf"]


def test_the_driver_is_asked_on_a_gpu_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    smi = (
        'echo "GPU-1, NVIDIA H100 80GB HBM3, Exclusive_Process, Disabled"\n'
        'echo "GPU-2, NVIDIA H100 80GB HBM3, [N/A], Disabled"\n'
    )
    program(tmp_path, "nvidia-smi", smi, monkeypatch)
    site = gather(10.0, "g1", os.environ)
    assert [tuple(one) for one in site.devices] == [
        ("GPU-1", "NVIDIA H100 80GB HBM3", "", "exclusive_process"),
        ("GPU-2", "NVIDIA H100 80GB HBM3", "", ""),
    ]
    program(tmp_path, "nvidia-smi", "exit 127\n", monkeypatch)
    assert isinstance(gather(10.0, "g1", os.environ).devices, Unread)
    elsewhere = gather(10.0, "login", os.environ).devices
    assert isinstance(elsewhere, Unread)
    printed("site-doctor", elsewhere.why)


def test_without_a_database_there_are_no_limits(slurm: Path) -> None:
    config = slurm / "config.txt"
    config.write_text(config.read_text().replace("accounting_storage/slurmdbd", "accounting_storage/none"))
    assert gather(10.0, "login", os.environ).limits == ()
