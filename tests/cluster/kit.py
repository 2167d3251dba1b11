# SPDX-License-Identifier: Apache-2.0
"""All that Slurm can load of us in one lab, put there by the commands of ORDER.md, and taken away again."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from slurm_colloc.estimate.policy_table import PLACE
from slurm_colloc.site.render import LIBEXEC, LOG_FOLDER
from tests.cluster import spank
from tests.cluster.fixtures import CHECKOUT
from tests.cluster.lab import Lab
from tests.cluster.mps_nodes import MpsLab
from tests.cluster.site import write_site
from tests.fakes.mps_jobs import Node, new_root

_BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Kit(MpsLab):
    """The plugin, the policy and colloc-mps, which slurm.conf's scripts call."""

    def __init__(self, lab: Lab) -> None:
        """Write the files of a site into a lab that is up and has the project."""
        self.lab = lab
        self.node = Node(new_root())
        self.node.ask_slurm()
        self.etc, self.rendered = lab.root / "etc", lab.root / "out/rendered"
        self.libexec, self.cron = lab.root / "libexec", lab.root / "cron.d"
        # What belongs to the machine lies in the lab instead.
        self.places = {
            LIBEXEC: str(self.libexec),
            "/etc/cron.d": str(self.cron),
            "/etc/logrotate.d": str(lab.root / "logrotate.d"),
            LOG_FOLDER: str(lab.root / "logs"),
            PLACE: f"{lab.root}/table/policy.table",
            "colloc policy table": f"colloc policy table -o {lab.root}/table/policy.table",
        }
        self.own_conf = lab.slurm_conf.read_text()
        for name in ("cron.d", "logrotate.d"):
            (lab.root / name).mkdir()
        write_site(lab, agent=False, extra={"sharing.mps_daemon": '"prolog"'})
        # Each user's own daemon, as the assertions on its folder have it.
        text = lab.site_file.read_text().replace('mps_users = "all"', 'mps_users = "each"')
        lab.site_file.write_text(re.sub(r'(\[\[partition\]\]\nname = "all".*\n)', r'\1job_submit = "default"\n', text))
        self._render()

    def placed(self, text: str, own: Mapping[str, str] | None = None) -> str:
        """Return a text that names the lab's folders, and what is ``own`` to it, in the place of the machine's."""
        for there, here in {**self.places, **(own or {})}.items():
            text = text.replace(there, here)
        return text

    def _render(self) -> None:
        where = ["--prefix", f"{self.lab.root}/opt", "--slurm-conf", str(self.lab.slurm_conf)]
        self.lab.run(["colloc", "site", "render", "-o", str(self.rendered), *where], check=True)
        for path in self.rendered.iterdir():
            path.write_text(self.placed(path.read_text()))
        # The node's GPUs and their control program are made up.
        call = shlex.join(self.node.argv("")[:-1])
        (self.rendered / "colloc-mps").write_text(f'#!/bin/sh\n[ "$SLURMD_NODENAME" != g1 ] || exec {call} "$@"\n')

    # --- put there ----------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Run each command of ORDER.md, then those of plugins.md; what is in words there, after them."""
        for block in _BLOCK.findall((self.rendered / "ORDER.md").read_text()):
            for line in filter(None, block.splitlines()):
                self._command(line)
        page = (CHECKOUT / "docs/how-to/plugins.md").read_text().partition("On every host of Slurm")[2]
        own = {"/etc/slurm": str(self.etc), "colloc site check": f"COLLOC_CONF={self.lab.site_file} colloc site check"}
        for line in self.placed(_BLOCK.findall(page)[0], own).splitlines():
            self._command(line)
        for name in ("job_submit.lua", "cli_filter.lua"):
            (self.etc / name).write_text((self.rendered / f"{name}.example").read_text())
        self._merge_calls()
        self.reconfigure()

    def _command(self, line: str) -> None:
        if line.startswith("install") and "colloc_spank.so" in line:
            # The compiler is the machine's, whatever the lab's release is.
            done = spank.build(self.lab)
            assert done.returncode == 0, done.stderr
            (self.lab.root / "colloc_spank.so").rename(self.rendered / "colloc_spank.so")
        if "policy table" in line:
            self.lab.run(["colloc", "ingest"], check=True)
        # The lines name the site file themselves, where it is not the system's.
        done = self.lab.run(["sh", "-c", line], cwd=self.rendered, timeout=120, env={"COLLOC_CONF": ""})
        expected = 1 if "site check" in line else 0
        assert done.returncode == expected, (line, done.stdout, done.stderr)
        if expected:
            assert "sbatch_options" in done.stdout, done.stdout

    def _merge_calls(self) -> None:
        wanted = dict(
            line.split("=", 1)
            for line in (self.rendered / "slurm.conf.calls").read_text().splitlines()
            if line and not line.startswith("#")
        )
        text = self.own_conf
        for key, script in (("Prolog", "prolog"), ("Epilog", "epilog")):
            if key in wanted:
                folder = Path(wanted[key]).parent
                (folder / "10-site").write_bytes((self.etc / f"{script}.sh").read_bytes())
                (folder / "10-site").chmod(0o755)
                text = re.sub(rf"^{key}=.*", f"{key}={wanted[key]}", text, flags=re.MULTILINE)
        if "TaskProlog" in wanted:
            caller = self.etc / "taskprolog.sh"
            self.own_task_prolog = caller.read_text()
            caller.write_text(f"{self.own_task_prolog}{wanted['TaskProlog']}\n")
        plugins = "".join(f"{key}={wanted[key]}\n" for key in ("JobSubmitPlugins", "CliFilterPlugins"))
        self.lab.slurm_conf.write_text(text + plugins)

    def reconfigure(self) -> None:
        """Have all daemons read slurm.conf."""
        self.lab.run(["scontrol", "reconfigure"], check=True)
        time.sleep(3.0)  # later releases start their daemons anew

    # --- taken away ---------------------------------------------------------------------------------------------------

    def edit(self, path: Path, lacking: str) -> None:
        """Take the lines with this word out of a file of the site's."""
        lines = path.read_text().splitlines(keepends=True)
        left = [line for line in lines if lacking not in line]
        assert left != lines, path
        path.write_text("".join(left))

    def states(self) -> set[str]:
        """Return what sinfo says of the nodes."""
        return set(self.lab.run(["sinfo", "-h", "-N", "-p", "all", "-o", "%T"], check=True).stdout.split())
