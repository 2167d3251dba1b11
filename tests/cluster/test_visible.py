# SPDX-License-Identifier: Apache-2.0
"""Whose runs a real Slurm lets somebody see, and that reports of a store that others may read show no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.site import write_site

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def private() -> Iterator[Lab]:
    """A cluster with PrivateData; alice, bob and carol have each run a job, and anybody may read the store."""
    with running(new_lab("PrivateData=jobs,usage\n")) as lab:
        site = write_site(lab, "site", agent=False)
        jobs = []
        for user in ("alice", "bob", "carol"):
            argv = ["sbatch", "--parsable", "-p", "all", "--gres=gpu:h100:1", "-o", "/dev/null", "--wrap", "sleep 1"]
            jobs.append(lab.run_as(user, argv, check=True).stdout.strip())
        lab.wait_jobs(jobs)
        lab.wait_accounted(jobs)
        lab.run(["colloc", "ingest", "--since", "1d"], env={"COLLOC_CONF": str(site / "site.toml")}, check=True)
        lab.run(["chmod", "-R", "a+rX", site / "store"], check=True)
        yield lab


def shown(lab: Lab, user: str | None) -> tuple[set[str], str]:
    """Return the users in this user's report, and what it says of whose runs these are."""
    argv = ["colloc", "report", "--since", "1d", "--format", "json"]
    env = {"COLLOC_CONF": str(lab.root / "site/site.toml")}
    done = lab.run_as(user, argv, env=env) if user else lab.run(argv, env=env)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["total"]["jobs"] == len(report["groups"])
    return {group["name"] for group in report["groups"]}, report["visible"] + done.stderr


def test_slurm_says_whose_runs_are_shown(private: Lab) -> None:
    everybody = {"alice", "bob", "carol"}
    assert shown(private, None) == (everybody, "")
    names, said = shown(private, "alice")
    assert names == {"alice"}
    assert "alice (PrivateData=jobs,usage" in said
    assert shown(private, "dave")[0] == set()  # the accounting does not know dave

    private.run(["sacctmgr", "-i", "add", "coordinator", "account=ml", "names=carol"], check=True)
    private.run(["sacctmgr", "-i", "modify", "user", "bob", "set", "adminlevel=operator"], check=True)
    names, said = shown(private, "carol")
    assert names == everybody  # her own, and account ml
    assert "accounts ml" in said
    assert shown(private, "bob") == (everybody, "")
    assert shown(private, "alice")[0] == {"alice"}


def test_a_job_of_somebody_else_is_not_there(private: Lab) -> None:
    env = {"COLLOC_CONF": str(private.root / "site/site.toml")}
    done = private.run_as("alice", ["colloc", "job", "2", "--since", "2020-01-01"], env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert "runs of alice" in done.stderr
    # What there is not is told in the same words.
    none = private.run_as("alice", ["colloc", "job", "999999", "--since", "2020-01-01"], env=env)
    assert done.stderr.replace("job '2'", "") == none.stderr.replace("job '999999'", "")
    assert private.run_as("alice", ["colloc", "job", "1"], env=env).returncode == 0


def test_no_word_of_others_comes_by_any_other_way(private: Lab) -> None:
    """Alice calls all that reads the store."""
    env = {"COLLOC_CONF": str(private.root / "site/site.toml")}
    calls = [
        *(["report", "--since", "1d", "--by", by, "--format", form]
          for by, form in (("account", "table"), ("signature", "csv"), ("account", "json"), ("signature", "html"))),
        ["report", "--since", "1d", "--format", "json", "--charts"],
        ["report", "--since", "1d", "--shadow"],
        ["report", "--since", "1d", "--runs", "/dev/stdout"],
        ["audit", "run", "--since", "1d"],
        ["me"], ["history"],
    ]  # fmt: skip
    for words in calls:
        done = private.run_as("alice", ["colloc", *words], env=env)
        assert not re.search("bob|carol|phys", done.stdout + done.stderr), words
    shown = json.loads(
        private.run_as("alice", ["colloc", "report", "--since", "1d", "--format", "json"], env=env).stdout
    )
    assert (shown["rows_in"], shown["runs"]) == (None, 1)


def test_slurmdbds_own_private_data_counts_too(private: Lab) -> None:
    conf = private.root / "etc/slurm.conf"
    conf.write_text(conf.read_text().replace("PrivateData=jobs,usage\n", ""))
    private.run(["scontrol", "reconfigure"], check=True)
    private.run(["sacctmgr", "-i", "modify", "user", "bob", "set", "adminlevel=none"], check=True)
    assert shown(private, "alice") == ({"alice", "bob", "carol"}, "")
    dbd = private.root / "etc/slurmdbd.conf"
    dbd.write_text(dbd.read_text() + "PrivateData=jobs\n")
    private.run(["sacctmgr", "reconfigure"], check=True)
    names, said = shown(private, "alice")
    assert names == {"alice"}
    assert "PrivateData=jobs," in said


def test_each_user_reads_the_own_page_and_nobody_elses(private: Lab) -> None:
    site = private.root / "site"
    env = {"COLLOC_CONF": str(site / "site.toml")}
    done = private.run(["colloc", "pages", site / "pages", "--since", "1d"], env=env)
    assert "3 pages written" in done.stderr, done.stderr
    for user in ("alice", "bob"):
        for of in ("alice", "bob", "carol"):
            read = private.run_as(user, ["cat", site / "pages" / of / "index.html"])
            assert (f"GPU use of {of}" in read.stdout) is (user == of)
    assert private.run_as("alice", ["ls", site / "pages"]).returncode != 0

    home = private.root / "home/bob"
    mine = private.run_as("bob", ["colloc", "pages", home / "pages", "--since", "1d"], env=env)
    assert "1 page written" in mine.stderr, mine.stderr
    assert [path.name for path in (home / "pages").iterdir()] == ["bob"]
