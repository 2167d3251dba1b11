# SPDX-License-Identifier: Apache-2.0
"""What is installed against what was rendered: by meaning, by lines, and by who may change it."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from slurm_colloc.site.installed import compare, differences
from slurm_colloc.site.render import Kind, Needs, SiteFile, is_site

PART = "GresTypes=gpu,mps\nNodeName=n[1-3] Gres=gpu:h100:4,mps:400\nPartitionName=gpu MaxTime=60\n"


@pytest.mark.parametrize(
    ("installed", "lines"),
    [
        (
            "grestypes=gpu\nNodeName=n[1-2] CPUs=8 \\\n  Gres=mps:400,gpu:h100:4\n"
            "NodeName=n3 CPUs=8 Gres=gpu:h100:4 # no\n"
            "PartitionName=DEFAULT MaxTime=60\nPartitionName=gpu Nodes=ALL\n",
            ["GresTypes lacks mps", "NodeName=n3: Gres=gpu:h100:4,mps:400 is wanted, gpu:h100:4 is there"],
        ),
        (
            "GresTypes=mps,gpu,bandwidth\nNodeName=DEFAULT Gres=gpu:h100:4,mps:400\nNodeName=n[1-4]\n"
            "PartitionName=gpu MaxTime=90\n",
            ["PartitionName=gpu: MaxTime=60 is wanted, 90 is there"],
        ),
        (
            "Include gpus.conf\nGresTypes=gpu,mps\nPartitionName=gpu MaxTime=60\n",
            [
                "NodeName=n[1-3]: Gres=gpu:h100:4,mps:400 is wanted, nothing of it is there",
                "it includes other files, which are not looked into: what stands there counts as missing here",
            ],
        ),
    ],
)
def test_a_part_is_compared_by_meaning(installed: str, lines: list[str]) -> None:
    assert list(differences(PART, installed)) == lines


def test_a_second_line_of_shares_is_not_passed_over() -> None:
    part = "NodeName=n1 Name=mps Count=400\n"
    assert list(differences(part, part)) == []
    more = list(differences(part, f"NodeName=n1 Name=mps Count=200\n{part}"))
    assert more == ["NodeName=n1: mps=Count=400 is wanted, Count=200 and Count=400 is there"]


def test_device_files_may_be_written_in_any_way() -> None:
    part = "NodeName=n1 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia[0-1]\nNodeName=n1 Name=mps Count=200\n"
    one = "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia"
    assert list(differences(part, f"AutoDetect=off\n{one}0\n{one}1\nName=mps Count=200\n")) == []
    assert list(differences(part, f"AutoDetect=off\n{one}0\n")) == [
        "NodeName=n1: gpu:h100=File=/dev/nvidia[0-1] is wanted, File=/dev/nvidia0 is there",
        "NodeName=n1: mps=Count=200 is wanted, nothing of it is there",
    ]


@pytest.mark.parametrize(
    "ends", [(b"\n", b"\r\n"), (b"X\n", b"X"), (b"X\n", b"\x0cX\n")], ids=["CRLF", "none", "a page"]
)
def test_how_a_line_ends_is_a_difference(tmp_path: Path, ends: tuple[bytes, bytes]) -> None:
    """To cron a line that has no end is none, and a carriage return is part of a command."""
    text = "27 * * * * root X\n"
    (tmp_path / "cron").write_bytes(text.encode().replace(*ends))
    (found,) = compare([SiteFile("cron", "/cron", "", Needs.NOTHING, is_site, text=text)], str(tmp_path))
    assert found.state == "differs"
    (tmp_path / "cron").write_text(text)
    (found,) = compare([SiteFile("cron", "/cron", "", Needs.NOTHING, is_site, text=text)], str(tmp_path))
    assert found.state == "same"


def test_who_else_may_change_what_root_runs_is_said(tmp_path: Path) -> None:
    etc = tmp_path / "image/etc"
    etc.mkdir(parents=True)
    (etc / "cron").write_text("text\n")
    whole = SiteFile("cron", "/etc/cron", "", Needs.NOTHING, is_site, text="text\n")
    part = whole._replace(kind=Kind.PART, text="")

    def said(file: SiteFile, *owners: int) -> list[str]:
        (found,) = compare([file], str(tmp_path / "image"), owners or (os.geteuid(),))
        assert found.state == ("differs" if found.lines else "same")
        return list(found.lines)

    assert said(whole) == said(part) == []
    why = "so that others may change or replace it: chmod go-w"
    for mode in (0o664, 0o646, 0o1664):
        (etc / "cron").chmod(mode)
        for file in (whole, part):
            assert said(file) == [f"{etc}/cron has mode {mode:04o}, {why} {etc}/cron"]
    (etc / "cron").chmod(0o644)
    etc.chmod(0o775)
    assert said(whole) == [f"{etc} has mode 0775, {why} {etc}"]
    assert said(part) == [], "slurm.conf is often kept by slurm's own user"
    etc.chmod(0o1777)
    assert said(whole) == [], "nobody may replace another's file there"
    etc.chmod(0o755)
    foreign = said(whole, os.geteuid() + 1)
    assert foreign[:2] == [
        f"{place} belongs to uid {os.geteuid()}, not to root: chown root {place}" for place in (f"{etc}/cron", etc)
    ]
    assert said(part, os.geteuid() + 1) == []
    (etc / "real").mkdir()
    (etc / "cron").rename(etc / "real/cron")
    (etc / "cron").symlink_to("real/cron")
    (etc / "real").chmod(0o777)
    assert said(whole) == [f"{etc}/real has mode 0777, {why} {etc}/real"]
    (etc / "cron").unlink()
    (tmp_path / "outside").write_text("text\n")
    (etc / "cron").symlink_to(tmp_path / "outside")
    assert said(whole, 0, os.geteuid()) == [], "a link may lead out of the image"


def test_what_cannot_be_read_is_said_and_not_taken_for_missing(tmp_path: Path) -> None:
    files = [
        SiteFile(name, f"/etc/{name}", "", Needs.NOTHING, is_site, text="1\n2\n")
        for name in ("same", "old", "none", "dir")
    ]
    etc = tmp_path / "etc"
    etc.mkdir()
    (etc / "kept").write_text("1\n2\n")
    (etc / "same").symlink_to("kept")
    (etc / "old").write_text("1\n\x1b[2J\n")
    (etc / "dir").mkdir()
    same, old, none, unreadable = compare(files, str(tmp_path))
    assert (same.state, old.state, none.state, unreadable.state) == ("same", "differs", "missing", "not readable")
    assert old.lines[-2:] == ("-\x1b[2J", "+2")
    assert "cannot be read" in unreadable.lines[0] or "not a regular file" in unreadable.lines[0]


@pytest.mark.parametrize(
    ("part", "installed", "lines"),
    [
        # What a GPU costs is the center's: a price of its own, and of other things beside it, is one.
        ("GRES/gpu:h100=1,GRES/mps=0.01", "CPU=1,Mem=0.25G,GRES/gpu:h100=40,gres/mps=0.4", []),
        ("GRES/gpu:h100=1,GRES/mps=0.01", "CPU=1,GRES/gpu:h100=40,GRES/mps=0", ["lacks GRES/mps=0.01"]),
        ("GRES/gpu:h100=1", "GRES/gpu=1", ["lacks GRES/gpu:h100=1"]),
    ],
)
def test_what_a_piece_costs_is_the_centers(part: str, installed: str, lines: list[str]) -> None:
    word = "PartitionName=gpu TRESBillingWeights="
    found = list(differences(f"{word}{part}\n", f"{word}{installed}\n"))
    assert found == [f"PartitionName=gpu: TRESBillingWeights {line}" for line in lines]


WHOLE = "NodeName=n1 AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia[0-1]\n"
SLICED = "NodeName=n1 AutoDetect=nvml\n"


@pytest.mark.parametrize(
    ("part", "installed", "same"),
    [
        (WHOLE, "AutoDetect=nvml\n", True),
        (WHOLE, "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[2-3]\n", True),
        (WHOLE, "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-3]\n", False),
        (WHOLE, "NodeName=n1 Name=gpu File=/dev/nvidia[0-1]\n", False),
        (WHOLE, "", False),
        # A line for each slice, as gres.conf itself proposes where the driver has other names.
        (SLICED, "NodeName=n1 Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap3\n", True),
        (SLICED, "AutoDetect=off\nNodeName=n1 Name=mps Count=200\n", False),
    ],
)
def test_how_a_node_finds_its_gpus_is_the_centers(part: str, installed: str, same: bool) -> None:
    assert (list(differences(part, installed)) == []) is same


def test_what_calls_ours_stands_beside_what_a_site_has() -> None:
    part = "Prolog=/e/prolog.d/*\nTaskProlog=/ours\nPrologFlags=Alloc\nJobSubmitPlugins=lua\n"
    assert list(
        differences(part, "JobSubmitPlugins=lua,throttle\nPrologFlags=alloc,contain\nProlog=/e/prolog.d/*\n")
    ) == ["TaskProlog=/ours is wanted, nothing of it is there"]
    assert list(differences(part, "TaskProlog=/its/own\nProlog=/its/own\nPrologFlags=Alloc\n")) == [
        "Prolog=/e/prolog.d/* is wanted, /its/own is there",
        "JobSubmitPlugins lacks lua",
    ]


def test_lua_of_the_site_has_our_lines() -> None:
    """Where they stand among the site's own, and how deep, does not matter; that they do is looked at."""
    first, second = 'local _, colloc = pcall(dofile, "/etc/slurm/colloc/colloc.lua")', "if colloc.x() then return 1 end"
    text = f"-- for colloc\n{first}\nfunction slurm_job_submit()\n   {second}\n   return 0\nend\n"
    file = SiteFile("job_submit.lua.example", "/etc/slurm/job_submit.lua", "", Needs.NOTHING, is_site, Kind.PART, text)

    def said(installed: str, root: Path) -> list[str]:
        (root / "etc/slurm").mkdir(parents=True, exist_ok=True)
        (root / "etc/slurm/job_submit.lua").write_text(installed)
        return [line for found in compare([file], str(root)) for line in found.lines]

    with TemporaryDirectory() as folder:
        root = Path(folder)
        own = f"local x = 1\n  {first}\nfunction slurm_job_submit()\nif x then\n{second}\nend\nend\n"
        assert said(own, root) == []
        assert said(own.replace(second, "-- " + second), root) == [f"it lacks the line: {second}"]
