# SPDX-License-Identifier: Apache-2.0
import os
import re
import time
import tomllib
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

from slurm_colloc.core import config_file
from slurm_colloc.core.config import MigSlice, SiteConfig
from slurm_colloc.core.config_file import (
    SCHEMA,
    file_to_write,
    find_site_file,
    load_site,
    parse_site,
    passed_over,
    typed,
)
from slurm_colloc.core.config_schema import parse_url
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.toml_text import value_text
from slurm_colloc.submit.invocation import found_call
from tests.pages.site_keys import reference
from tests.unit.golden import Printed
from tests.unit.programs import program

LEAST = {"schema": 1, "cluster": "c", "slurm_release": "22.05"}


def leaves(schema: Any, prefix: str = "") -> list[str]:
    found = []
    for key, kind in schema.__annotations__.items():
        inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
        found += leaves(inner, f"{prefix}{key}.") if hasattr(inner, "_fields") else [f"{prefix}{key}"]
    return found


def test_every_key_is_documented_and_in_the_reference() -> None:
    keys = leaves(SiteConfig)
    assert len(keys) == len(set(keys))
    rows = {line.split("`")[1]: line.rpartition("| ")[2] for line in reference().splitlines() if line.startswith("| `")}
    assert [row for row in rows if not row.startswith("[")] == keys
    assert all(re.fullmatch(r"\S.* \|", meaning) for meaning in rows.values())
    assert len(rows) <= 102  # who sets a site up reads them all: a key that nobody would turn is a constant


def test_the_reference_speaks_of_toml_and_not_of_python() -> None:
    rows = {line.split("`")[1]: line for line in reference().splitlines() if line.startswith("| `")}
    assert rows["audit.rule.bounds"].startswith("| `audit.rule.bounds` | table of float | `{}` | ")
    assert "one [[audit.rule]] for each rule" in rows["[[audit.rule]]"]
    assert "mappingproxy" not in reference()


@pytest.mark.parametrize("text", ["AllowAccounts", "AllowAccounts=", "MaxCpusPerNode=4", "MaxNodes=many", "MinNodes="])
def test_a_restriction_is_one_of_slurms(text: str) -> None:
    with pytest.raises(ConfigError, match=r"partition\.restrictions"):
        parse_site({**LEAST, "partition": [{"name": "p", "restrictions": [text]}]}, "f")


def test_nothing_is_placed_slowed_or_followed_until_the_site_says_so() -> None:
    site = parse_site(LEAST, "f")
    assert (site.policy, site.sharing.late_binding, site.pool) == ("shadow", "off", ())
    assert (site.sharing.order, site.observe.period_s) == (("mig", "mps"), 10.0)
    assert site.sharing.mps_daemon == "none"
    assert site.sharing.max_slowdown == 1.25


def test_nested_tables() -> None:
    part = {"type": "t", "profile": "1g.10gb", "mem_mib": 9984, "sm_count": 16, "quantity": 7}
    pool = {"name": "p", "nodes": "n[1-2]", "partitions": ["a", "b"], "gpu_mem_mib": 81559, "slice": [part]}
    observe = {"period_s": 5, "keep_raw_days": 1, "keep_job_days": 1}
    site = parse_site({**LEAST, "pool": [pool], "observe": observe}, "f")
    assert site.pool[0].slice == (MigSlice("t", "1g.10gb", 9984, 16, 7),)
    assert (site.pool[0].partitions, site.pool[0].gpu_mem_mib, site.pool[0].sm_count) == (("a", "b"), 81559, None)
    assert (site.observe.period_s, site.observe.keep_job_days) == (5.0, 1.0)  # both may be kept equally long
    assert isinstance(site.observe.period_s, float)


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"clustr": "x"}, "unknown key 'clustr'; did you mean 'cluster'"),
        ({"sharing": {"headrom_mib": 1}}, "unknown key 'sharing.headrom_mib'; did you mean 'headroom_mib'"),
        ({"pool": [{"name": "a", "nodes": "b", "partitions": [], "gpu_typ": "x"}]}, "did you mean 'gpu_type'"),
        ({"paths": {"zzz": 1}}, "valid keys: state, journal, decisions"),
        ({"pool": [{"name": "a", "nodes": "b"}]}, "key 'pool.partitions' is missing (partitions that contain"),
        ({"pool": {"name": "a"}}, "'pool' must be a list"),
        ({"pool": ["x"]}, "'pool' must be a table"),
        ({"sharing": 3}, "'sharing' must be a table"),
        ({"cluster": 3}, "'cluster' must be a text"),
        ({"schema": "1"}, "'schema' must be a whole number"),
        ({"schema": True}, "'schema' must be a whole number"),
        ({"observe": {"period_s": True}}, "'observe.period_s' must be a number"),
        ({"observe": {"agent": 1}}, "'observe.agent' must be true or false"),
        ({"observe": {"agent": "yes"}}, "must be true or false"),
        ({"observe": {"period_s": 0}}, "from 0.05 up"),
        ({"observe": {"period_s": float("nan")}}, "from 0.05 up, not 'nan'"),
        ({"observe": {"period_s": float("inf")}}, "not 'inf'"),
        ({"sharing": {"headroom_mib": -1}}, "from 0 up, not '-1'"),
        ({"sharing": {"headroom_mib": 1.5}}, "must be a whole number"),
        ({"sharing": {"max_slowdown": 0.5}}, "from 1.0 up"),
        ({"sharing": {"order": ["mig", "mpi"]}}, "'sharing.order' must be one of mig, mps, shard, not 'mpi'"),
        ({"sharing": {"order": "mig"}}, "'sharing.order' must be a list"),
        ({"sharing": {"mps_daemon": "spank"}}, "one of none, site, prolog, not"),
        ({"policy": "on"}, "one of auto, shadow, pack, off"),
        ({"observe": {"dcgm": "localhost:9400"}}, "'observe.dcgm' must be 'http://host:port/path'"),
        ({"observe": {"dcgm": "http://host:65536/metrics"}}, "or 'dcgmi', not 'http://host:65536"),
        *[({"observe": {f"keep_{what}_days": 0.5}}, "from 1 up") for what in ("raw", "job")],
        ({"observe": {"keep_raw_days": 2000}}, "must be at most 'keep_job_days', but they are 2000 and 1825"),
        ({"observe": {"keep_job_days": 9}}, "must be at most 'keep_job_days', but they are 14 and 9"),
        ({"observe": {"prometheus": "9499"}}, "must be 'ADDRESS:PORT'"),
        ({"observe": {"gpu_reader": "simulated"}}, "'simulated:/FOLDER'"),
        ({"notices": {"quiet_days": "14"}}, "must be a number"),
        ({"notices": {"actions": {"COL001": 1}}}, "'notices.actions.COL001' must be a text"),
    ],
)
def test_refused(extra: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_site({**LEAST, **extra}, "site.toml")
    assert said in str(error.value)
    assert str(error.value).startswith("site.toml: ")


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://localhost:9400/metrics", (False, "localhost", 9400, "/metrics")),
        ("http://10.0.0.1", (False, "10.0.0.1", 80, "/metrics")),
        ("https://[::1]/m?a=b", (True, "::1", 443, "/m?a=b")),
        ("http://h:0/", None),
        ("http://user@h/", None),
        ("http://h/\n", None),
        ("http://h:" + "1" * 5000, None),
    ],
)
def test_urls(url: str, parts: object) -> None:
    assert parse_url(url, "/metrics") == parts


def test_missing_required(printed: Printed) -> None:
    with printed.raises("config", ConfigError, "'cluster'"):
        parse_site({"schema": 1, "slurm_release": "22.05"}, "f")


def test_files(tmp_path: Path, printed: Printed) -> None:
    path = tmp_path / "site.toml"
    path.write_text('schema = 1\ncluster = "c"\nslurm_release = "22.05"\n')
    assert load_site(str(path)).cluster == "c"
    with printed.raises("config", ConfigError, "No such file"):
        load_site(str(tmp_path / "none"))
    with printed.raises("config", ConfigError, "Is a directory"):
        load_site(str(tmp_path))


NOT_TOML = (b"schema = ", b"\xff\xfe", b"a = " + b"[" * 100_000, b"schema = " + b"9" * 5000, b"schema = 1\nschema = 1")


def refused(tmp_path: Path, text: str | bytes, said: str | None = None) -> None:
    path = tmp_path / "site.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError, match=said):
        load_site(str(path))


@pytest.mark.parametrize("text", NOT_TOML)
def test_not_toml(tmp_path: Path, text: bytes) -> None:
    refused(tmp_path, text, "not valid TOML")


OBSERVE = 'schema = 1\ncluster = "c"\nslurm_release = "22.05"\n[observe]\nperiod_s = {}'


@pytest.mark.parametrize("number", ["9" * 400, "9" * 4200, "0x" + "f" * 5000, "-" + "9" * 400], ids=len)
@pytest.mark.parametrize("text", [OBSERVE, "schema = {}", "cluster = {}", "pool = {{a = {}}}"])
def test_a_number_that_no_float_holds(tmp_path: Path, text: str, number: str) -> None:
    refused(tmp_path, text.format(number) + "\n")


@pytest.mark.parametrize("part", ["a.", "a . ", '"a".', "'a' .\t", "[a.", "a = {b."])
def test_a_key_of_thousands_of_parts(tmp_path: Path, part: str) -> None:
    """tomllib took four seconds and 300 MiB for one of 64 KiB: by the square of their number."""
    again = part.rpartition(" {")[2].lstrip("[")
    began_s = time.thread_time()
    refused(tmp_path, part + again * (60000 // len(again)) + "b = 1\n", "not valid TOML")
    assert time.thread_time() - began_s < 0.5


def test_newer_schema_comes_before_unknown_keys(tmp_path: Path) -> None:
    said = f"schema {SCHEMA + 1}, newer than this release's {SCHEMA}"
    refused(tmp_path, f"schema = {SCHEMA + 1}\nfuture = 1\n", said)


def test_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COLLOC_CONF", raising=False)
    own = tmp_path / "slurm_colloc" / "site.toml"
    own.parent.mkdir()
    own.touch()
    assert find_site_file() == str(own)
    monkeypatch.setenv("COLLOC_CONF", "elsewhere")
    assert find_site_file() == "elsewhere"


def test_init_writes_what_would_be_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    assert file_to_write(user=False) == "/etc/slurm_colloc/site.toml"
    monkeypatch.setenv("COLLOC_CONF", "/x/site.toml")
    assert file_to_write(user=False) == "/x/site.toml"
    assert file_to_write(user=True).endswith("/.config/slurm_colloc/site.toml")


def test_a_users_own_site_file_is_the_users_or_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """Else who was first in a shared XDG_CONFIG_HOME, or whose HOME sudo kept, says which programs run."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "slurm_colloc/site.toml"
    path.parent.mkdir()
    path.write_text('schema = 1\ncluster = "c"\nslurm_release = "22.05"\n')
    real = os.fstat

    def somebodys(descriptor: int) -> os.stat_result:
        found = list(real(descriptor))
        found[4] = os.geteuid() + 1
        return os.stat_result(found)

    assert load_site(str(path)).cluster == "c"
    monkeypatch.setattr(os, "fstat", somebodys)
    with pytest.raises(ConfigError, match=f"uid {os.geteuid() + 1},") as refused:
        load_site(str(path))
    printed("config", str(refused.value).replace(f"uid {os.geteuid() + 1},", "uid OTHER,"))
    # One that was named is taken at its word.
    (tmp_path / "named.toml").write_text(path.read_text())
    assert load_site(str(tmp_path / "named.toml")).cluster == "c"


def test_what_is_written_as_toml_is_read_as_it_was() -> None:
    value = [{"code": "COL001", "bounds": {"min_gpu_hours": 0.5}, "we ird": ['a"b\n', True, 7]}, {}]
    assert tomllib.loads(f"value = {value_text(value)}") == {"value": value}


@pytest.fixture
def center(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the system's site.toml, of a center that forbids users' own; its user has one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COLLOC_CONF", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    own = tmp_path / "slurm_colloc/site.toml"
    own.parent.mkdir()
    own.write_text('schema = 1\ncluster = "own"\nslurm_release = "22.05"\npolicy = "auto"\n')
    path = tmp_path / "center.toml"
    path.write_text('schema = 1\ncluster = "c"\nslurm_release = "22.05"\nuser_file = "forbidden"\n')
    monkeypatch.setattr(config_file, "SYSTEM_FILE", str(path))
    return path


def owned(monkeypatch: pytest.MonkeyPatch, uids: dict[str, int]) -> None:
    real = os.stat

    def of(path: str, **options: bool) -> os.stat_result:
        found = list(real(path, **options))
        found[4] = uids.get(str(path), 1000)
        return os.stat_result(found)

    monkeypatch.setattr(os, "stat", of)


def test_a_users_own_file_is_passed_over(center: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, named = str(tmp_path / "slurm_colloc/site.toml"), str(tmp_path / "named.toml")
    owned(monkeypatch, {str(center): 0})
    assert (find_site_file(), passed_over()) == (str(center), own)
    (tmp_path / "named.toml").touch()
    for path in (named, "/nowhere/site.toml"):
        monkeypatch.setenv("COLLOC_CONF", path)
        assert (find_site_file(), passed_over(), typed("csub")) == (str(center), path, "csub")


@pytest.mark.parametrize("uid", [0, 7])
def test_a_file_of_the_centers_may_be_named(
    uid: int, center: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = str(tmp_path / "named.toml")
    Path(named).touch()
    owned(monkeypatch, {str(center): 7, named: uid})
    for path in (named, str(center)):
        monkeypatch.setenv("COLLOC_CONF", path)
        assert (find_site_file(), passed_over()) == (path, "")


def test_root_is_forbidden_nothing(center: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert find_site_file() == str(tmp_path / "slurm_colloc/site.toml")


@pytest.mark.parametrize("text", ["", "schema = ", 'schema = 1\ncluster = "c"\nslurm_release = "22.05"\n', None])
def test_a_center_that_cannot_be_read_forbids_nothing(
    text: str | None, center: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if text is None:
        center.unlink()
    else:
        center.write_text(text)
    assert (find_site_file(), passed_over()) == (str(tmp_path / "slurm_colloc/site.toml"), "")


def test_csub_goes_by_the_center(
    center: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    owned(monkeypatch, {str(center): 0})
    program(tmp_path, "sbatch", "", monkeypatch)
    for argv, lines in ((("job.sh",), 0), (("--explain", "job.sh"), 1), (("-Q", "--explain", "job.sh"), 0)):
        call, _, found, problem = found_call(argv)
        assert (found and found.cluster, found and found.policy, problem) == ("c", "shadow", "")
        assert call.argv[-1] == "job.sh"
        said = capfd.readouterr().err.splitlines()
        assert len(said) == lines
        assert all("site.toml" in line and str(center) in line for line in said)
