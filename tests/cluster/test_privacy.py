# SPDX-License-Identifier: Apache-2.0
"""Two real users on a site set up as the how-tos say: bob gets nothing of alice's, and plants nothing that is believed.

Every path that can be foretold stands in PATHS. The store's user is carol here, in place of `colloc`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.lab import Lab
from tests.cluster.site import write_site

pytestmark = pytest.mark.cluster

SCRIPT = "#!/bin/bash\n#SBATCH --gres=gpu:h100:1 -t 1\ntrue\n"
SIGNATURE = "f.64~p~d"


class Kept(NamedTuple):
    """A path that can be foretold, of whom, and what lies there."""

    path: str  # {site}, {spool}, {home}, {uid}, {tmp}
    owner: str
    what: str


PATHS = (
    Kept("{spool}/{uid}", "alice", "decisions"),
    Kept("{home}/.local/share/slurm_colloc", "alice", "the folder of all that csub keeps of a user"),
    Kept("{home}/.local/share/slurm_colloc/evidence/f/64~p~d/1.json", "alice", "evidence"),
    Kept("{home}/.local/share/slurm_colloc/evidence/f/64~p~d/forgotten", "alice", "what she forgot of a job"),
    Kept("{home}/.local/share/slurm_colloc/packs/lab/1.jsonl", "alice", "a ledger"),
    Kept("{home}/.local/share/slurm_colloc/packs/lab/1.sh", "alice", "a pack's script"),
    Kept("{home}/.local/share/slurm_colloc/recovered/lab/1.json", "alice", "what came of a job that ran out of memory"),
    Kept("{tmp}/mps/pipe", "alice", "the MPS daemon's sockets"),
    Kept("{tmp}/mps", "alice", "a pack's MPS folder"),
    Kept("{tmp}/script/job.sh", "alice", "a script on its way to sbatch"),
    Kept("{site}/history/{uid}.sqlite", "root", "her history"),
    Kept("{site}/store", "carol", "the store"),
    Kept("{site}/journal", "carol", "the journal"),
    Kept("{site}/journal/g1/20260101T00.journal", "carol", "an hour of a node"),
    Kept("{site}/site.toml", "root", "the site file"),
)
# Readable by everybody, for csub needs it.
OPEN = ("{site}/site.toml",)

MAKE = """
import os, sys
from slurm_colloc.core.config import user_data_folder as data
from slurm_colloc.estimate import records
from slurm_colloc.core.model import Decision, Evidence, Load, Room
from slurm_colloc.rebind import recover
from slurm_colloc.pack import ledger, mps_daemon, resume, spec
from slurm_colloc.submit.render import write_script
spool, tmp, signature = sys.argv[1:]
decision = Decision("777", "lab", 1.0, "alice", "secret", signature, "", "", "mig", "hint", None, None, ())
records.drop_decision(f"{spool}/{os.geteuid()}", decision)
records.forget(data(), signature, 1.0)
records.drop_evidence(data(), Evidence("1", signature, "COMPLETED", "mig", "H", 8, 1.0, 1.0, False, 9, 9.0, 1.0, 9.0))
load, room = Load(9, 1.0), Room(9, 1.0, 4)
pack = spec.Spec(spec.VERSION, "p", "0-3", (), (), 1, ("/bin/sh",), (), load, room, 1, None, "", "", "", False, 0, ())
with_ledger = ledger.LedgerWriter(ledger.ledger_path("lab", "1"), print)
with_ledger.header(pack, {})
resume.keep_script("lab", "1", b"#!/bin/sh")
recover.keep_rerun("lab", "1", recover.Rerun(1, 0, "gpu:1", {"Gres": "gpu:1"}, "it began again"))
os.symlink(mps_daemon.short_folder("1", {"TMPDIR": tmp}), f"{tmp}/mps")
os.symlink(os.path.dirname(write_script("job.sh", b"#!/bin/sh")), f"{tmp}/script")
"""

ATTACK = """
import json, os, sys
done = []
for path in sys.argv[1:]:
    folder = os.path.dirname(path)
    tries = {
        "read": lambda: open(path, "rb").read() if not os.path.isdir(path) else os.listdir(path),
        "write": lambda: os.open(path, os.O_WRONLY | os.O_APPEND),
        "truncate": lambda: os.truncate(path, 0),
        "plant": lambda: os.open(f"{path}/planted.json", os.O_WRONLY | os.O_CREAT, 0o666),
        "plant beside": lambda: os.mkfifo(f"{folder}/planted"),
        "rename": lambda: os.rename(path, f"{path}.gone"),
        "replace": lambda: os.rename(os.environ["HOME"] + "/mine", path),
        "link": lambda: os.link(path, os.environ["HOME"] + "/stolen"),
        "chmod": lambda: os.chmod(path, 0o777),
        "delete": lambda: os.rmdir(path) if os.path.isdir(path) else os.unlink(path),
    }
    for name, attempt in tries.items():
        open(os.environ["HOME"] + "/mine", "w").close()
        try:
            attempt()
        except OSError:
            continue
        done.append([name, path])
print(json.dumps(done))
"""


def python(lab: Lab, user: str | None, code: str, *words: object, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [str(lab.root / "opt/bin/python"), "-c", code, *map(str, words)]
    done = lab.run_as(user, argv, env=env) if user else lab.run(argv, env=env)
    assert done.returncode == 0, done.stderr
    return done


class Site(NamedTuple):
    folder: Path
    tmp: Path

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    @property
    def environment(self) -> dict[str, str]:
        return {"COLLOC_CONF": str(self.folder / "site.toml")}

    def path(self, lab: Lab, kept: Kept) -> str:
        alice = lab.users["alice"]
        return kept.path.format(site=self.folder, spool=self.spool, home=alice.home, uid=alice.uid, tmp=self.tmp)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Site:
    folder = write_site(lab, "private")
    carol = lab.users["carol"]
    made = Site(folder, lab.root / "out/private-tmp")
    made.tmp.mkdir()
    made.tmp.chmod(0o1777)
    for name in ("store", "journal", "journal/g1"):  # install -d -m 0700 -o colloc
        (folder / name).mkdir(mode=0o700, exist_ok=True)
        os.chown(folder / name, carol.uid, carol.gid)
    python(lab, "alice", MAKE, made.spool, made.tmp, SIGNATURE, TMPDIR=str(made.tmp))
    hour = folder / "journal/g1/20260101T00.journal"
    python(lab, "carol", "import sys; from slurm_colloc.core.files import *; write_atomic(sys.argv[1], b'')", hour)
    write = (
        "from slurm_colloc.estimate.snapshot import *; import sys; write_snapshot(sys.argv[1], [], int(sys.argv[2]))"
    )
    make = "import sys; from slurm_colloc.feedback.user_histories import *; make_history_folder(sys.argv[1])"
    python(lab, None, make, folder)
    uid = lab.users["alice"].uid
    python(lab, None, write, folder / f"history/{uid}.sqlite", uid)
    return made


def owner_and_mode(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_uid, found.st_mode & 0o777


@pytest.mark.parametrize("kept", PATHS, ids=lambda kept: kept.what)
def test_what_lies_there_is_its_owners_alone(lab: Lab, site: Site, kept: Kept) -> None:
    uid, mode = owner_and_mode(site.path(lab, kept))
    # The snapshot is written by root and given to her.
    owner = "alice" if kept.what == "her history" else kept.owner
    assert uid == (0 if owner == "root" else lab.users[owner].uid)
    assert mode & (0o022 if kept.path in OPEN else 0o077) == 0


def test_bob_can_do_nothing_with_any_of_it(lab: Lab, site: Site) -> None:
    paths = [site.path(lab, kept) for kept in PATHS]
    done = json.loads(python(lab, "bob", ATTACK, *paths).stdout)
    allowed = [["read", site.path(lab, kept)] for kept in PATHS if kept.path in OPEN]
    # In folders of mode 1777 anybody may make names of his own; what is planted at hers is tried below.
    beside = [
        ["plant beside", site.path(lab, kept)]
        for kept in PATHS
        if os.path.dirname(site.path(lab, kept)) in (str(site.spool), str(site.tmp))
    ]
    assert [one for one in done if one not in (*allowed, *beside)] == []
    # And she can: the attack itself works.
    own = json.loads(
        python(
            lab, "alice", "import os,sys,json; print(json.dumps([os.access(p, os.R_OK) for p in sys.argv[1:]]))", *paths
        ).stdout
    )
    assert [kept.what for kept, can in zip(PATHS, own, strict=True) if not can and kept.owner == "alice"] == []


KINDS = {
    "file": "open(path, 'w').write('planted')",
    "link to a file of hers": "os.symlink(target, path)",
    "link to a folder of his": "os.makedirs(mine, exist_ok=True); os.chmod(mine, 0o777); os.symlink(mine, path)",
    "FIFO": "os.mkfifo(path, 0o666)",
    "folder": "os.mkdir(path); os.chmod(path, 0o777)",
}
PLANT = """
import os, sys
path, target = sys.argv[1:]
mine = os.environ["HOME"] + "/trap"
os.chmod(os.environ["HOME"], 0o711)
"""
TAKE_IN = (
    "import sys; from slurm_colloc.feedback.user_histories import *; print(collect_decisions(sys.argv[1]).decisions)"
)


def planted(lab: Lab, kind: str, path: Path, target: Path) -> None:
    python(lab, "bob", PLANT + KINDS[kind], path, target)


def submit(lab: Lab, **env: str) -> subprocess.CompletedProcess[str]:
    """Submit as dave's neighbour alice: one job, soon, whatever lies in the way."""
    home = lab.users["alice"].home
    (home / "job.sh").write_text(SCRIPT)
    began_s = time.monotonic()
    done = lab.run_as("alice", ["csub", "--gpu-footprint=mem=5G", "job.sh"], env=env, timeout=60)
    assert time.monotonic() - began_s < 15
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Submitted batch job") == 1
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_bob_was_first_at_her_folder_of_decisions(lab: Lab, site: Site, kind: str) -> None:
    """Hers is kept at home, nothing is written into what he made, and root's ingest takes nothing of it for hers."""
    uid = lab.users["alice"].uid
    secret = lab.users["alice"].home / "secret"
    secret.write_text("hers")
    at = site.spool / str(uid)
    aside = site.folder / "aside"
    os.rename(at, aside)
    try:
        planted(lab, kind, at, secret)
        kept = lab.users["alice"].home / ".local/share/slurm_colloc/decisions"
        before = set(kept.glob("*.json"))
        done = submit(lab, **site.environment)
        assert secret.read_text() == "hers"
        assert len(set(kept.glob("*.json")) - before) == 1
        assert done.stderr.count(f"kept in '{kept}': '{at}' is not this user's own folder") == 1
        trap = lab.users["bob"].home / "trap"
        for folder in (at, trap):
            assert not folder.is_dir() or not any(folder.iterdir())
        forged = {"folder": at, "link to a folder of his": trap}.get(kind)
        if forged:
            (forged / "1.json").write_bytes(next(aside.glob("*.json")).read_bytes())
            os.chown(forged / "1.json", lab.users["bob"].uid, -1)
        assert python(lab, None, TAKE_IN, site.spool).stdout.strip() == "{}"
        if kind == "folder":
            said = lab.run(["colloc", "ingest"], env=site.environment, check=True).stderr
            assert f"decisions are not taken in: '{at}' " in said
    finally:
        lab.run(["rm", "-rf", str(at), str(lab.users["bob"].home / "trap")], check=True)
        os.rename(aside, at)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variable", ["XDG_DATA_HOME", "XDG_CONFIG_HOME"])
def test_bob_was_first_in_a_shared_parent(lab: Lab, site: Site, kind: str, variable: str) -> None:
    base = site.tmp / f"{variable}-{abs(hash(kind))}"
    base.mkdir()
    base.chmod(0o1777)
    secret = lab.users["alice"].home / "secret"
    secret.write_text("hers")
    planted(lab, kind, base / "slurm_colloc", secret)
    env = {variable: str(base)} | (site.environment if variable == "XDG_DATA_HOME" else {})
    submit(lab, **env)
    assert secret.read_text() == "hers"
    trap = lab.users["bob"].home / "trap"
    assert not trap.is_dir() or not any(trap.iterdir())
    lab.run(["rm", "-rf", str(trap)], check=True)


BELIEVE = """
import os, sys, json
base, signature = sys.argv[1:]
from slurm_colloc.core.config import user_data_folder as data
from slurm_colloc.core.config_file import load_site, user_config_file
from slurm_colloc.core.errors import CollocError
from slurm_colloc.estimate import records, snapshot
from slurm_colloc.rebind import recover
from slurm_colloc.pack import ledger
believed = []
def attempt(what, call, nothing):
    try:
        if call() != nothing:
            believed.append(what)
    except CollocError:
        pass
attempt("evidence", lambda: records.read_evidence(data(), signature).evidence, ())
attempt("forgotten", lambda: records.forgotten_s(data(), signature), 0.0)
attempt("decisions", lambda: records.read_decisions(f"{data()}/decisions")[0], [])
attempt("ledger", lambda: ledger.read_ledger(f"{data()}/packs/lab/1.jsonl"), None)
attempt("recovered", lambda: recover.told("lab", "1"), "")
path = snapshot.snapshot_path(data(), os.environ["UID_OF"])
attempt("history", lambda: snapshot.read_snapshot(path, signature).evidence, ())
attempt("site file", lambda: load_site(user_config_file()), None)
print(json.dumps(believed))
"""


def test_what_bob_wrote_is_not_believed_to_be_hers(lab: Lab, site: Site) -> None:
    """He copies his own folders, whole and sound, to where hers would be."""
    base = site.tmp / "forged"
    python(lab, "bob", "import os, sys; os.mkdir(sys.argv[1]); os.chmod(sys.argv[1], 0o777)", base)
    env = {"XDG_DATA_HOME": str(base), "XDG_CONFIG_HOME": str(base), "TMPDIR": str(base)}
    uid = str(lab.users["alice"].uid)
    python(lab, "bob", MAKE, base / "slurm_colloc", base, SIGNATURE, **env)
    more = """
import os, shutil, sys
from slurm_colloc.estimate.snapshot import write_snapshot
from slurm_colloc.estimate.records import parse_evidence
base, site, uid = sys.argv[1:]
mine = f"{base}/slurm_colloc"
os.rename(f"{mine}/{os.geteuid()}", f"{mine}/decisions")
os.makedirs(f"{mine}/history", exist_ok=True)
run = parse_evidence(open(f"{mine}/evidence/f/64~p~d/1.json", "rb").read())
write_snapshot(f"{mine}/history/{uid}.sqlite", [run])
shutil.copy(site, f"{mine}/site.toml")
for folder, _, names in os.walk(base):
    os.chmod(folder, 0o777)
    for name in names:
        os.chmod(f"{folder}/{name}", 0o666)
"""
    python(lab, "bob", more, base, site.folder / "site.toml", uid, **env)
    assert json.loads(python(lab, "bob", BELIEVE, base, SIGNATURE, UID_OF=uid, **env).stdout) == [
        *("evidence", "forgotten", "decisions", "ledger", "recovered", "history", "site file")
    ]
    assert json.loads(python(lab, "alice", BELIEVE, base, SIGNATURE, UID_OF=uid, **env).stdout) == []
    # Nor does root, who keeps the caller's variables, take a user's word for what to run.
    as_root = json.loads(python(lab, None, BELIEVE, base, SIGNATURE, UID_OF=uid, **env).stdout)
    assert [one for one in as_root if one != "ledger"] == []


SWAP = """
import os, sys, time
spool, hers, until_s = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
mine = f"{spool}/{os.geteuid()}"
os.makedirs(f"{mine}/real", exist_ok=True)
os.makedirs(f"{mine}.other", exist_ok=True)
count = 0
name = os.path.basename(hers)
while time.monotonic() < until_s:
    count += 1
    # His file becomes a link to hers, a FIFO, a folder and his own file again; so does his folder.
    for make in (
        lambda p: os.symlink(hers, p),
        lambda p: open(p, "w").write("{}"),
        lambda p: os.mkfifo(p),
        lambda p: os.mkdir(p),
    ):
        make(f"{mine}/swap")
        os.rename(f"{mine}/swap", f"{mine}/{name}")
        now = f"{mine}/{name}"
        (os.rmdir if os.path.isdir(now) and not os.path.islink(now) else os.unlink)(now)
    os.rename(mine, f"{mine}.away")
    os.symlink(os.path.dirname(hers), mine)
    time.sleep(0.0005)
    os.unlink(mine)
    os.rename(f"{mine}.away", mine)
print(count)
"""

COLLECT = """
import sys, time
from slurm_colloc.feedback.user_histories import collect_decisions
until_s, looks, found, slowest_s = time.monotonic() + float(sys.argv[2]), 0, set(), 0.0
while time.monotonic() < until_s:
    began_s = time.monotonic()
    found |= set(collect_decisions(sys.argv[1]).decisions)
    slowest_s, looks = max(slowest_s, time.monotonic() - began_s), looks + 1
print(looks, round(slowest_s, 3), sorted(found))
"""


def test_a_file_that_changes_hands_while_root_reads(lab: Lab, site: Site) -> None:
    """For some seconds bob swaps links, FIFOs and folders under root's eyes: nothing of alice's becomes his."""
    hers = next((site.spool / str(lab.users["alice"].uid)).glob("*.json"))
    swap = lab.command([lab.root / "opt/bin/python", "-c", SWAP, site.spool, hers, "4"], "bob")
    with subprocess.Popen(swap, env=lab.environment("bob"), stdout=subprocess.PIPE, text=True) as swapping:
        looked = python(lab, None, COLLECT, site.spool, 3).stdout
        swaps = int(swapping.communicate(timeout=30)[0])
    looks, slowest_s, found = looked.split(" ", 2)
    assert swaps > 200
    assert int(looks) > 50
    assert float(slowest_s) < 1.0
    assert "('alice', '777')" in found
    assert "bob" not in found


def test_root_ingests_with_all_that_in_its_way(lab: Lab, site: Site) -> None:
    clutter = """
import os, sys
mine = f"{sys.argv[1]}/{os.geteuid()}"
os.makedirs(mine, exist_ok=True)
os.mkfifo(f"{mine}/1.json"); os.symlink("/dev/zero", f"{mine}/2.json"); os.symlink(sys.argv[2], f"{mine}/3.json")
os.mkdir(f"{mine}/4.json"); open(f"{mine}/5.json", "w").write("[" * 200000)
open(f"{mine}/6.json", "wb").truncate(10**9)
os.symlink("/etc", f"{sys.argv[1]}/1"); os.mkfifo(f"{sys.argv[1]}/2"); os.mkdir(f"{sys.argv[1]}/" + "9" * 200)
os.mkdir(f"{sys.argv[1]}/\\u0663")
"""
    hers = next((site.spool / str(lab.users["alice"].uid)).glob("*.json"))
    python(lab, "bob", clutter, site.spool, hers)
    done = lab.run(["colloc", "ingest", "--since", "1h"], env=site.environment, timeout=120)
    assert done.returncode == 0, done.stderr
    for name, mode in (("history", 0o711), ("store", 0o700), ("journal", 0o700)):
        assert owner_and_mode(str(site.folder / name))[1] == mode
    history = site.folder / "history"
    uids = {int(path.stem): path.stat() for path in history.glob("*.sqlite")}
    assert all(found.st_uid == uid and found.st_mode & 0o777 == 0o600 for uid, found in uids.items())
