# SPDX-License-Identifier: Apache-2.0
"""The policy in Lua, loaded as Slurm loads it, into each Lua that a Slurm may be built with."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

PLUGIN = Path(__file__).resolve().parents[2] / "slurm_colloc/plugin"
VERSIONS = ("lua51", "lua53", "lua54")
NO_VAL = 4294967294
HASH_OF_MODEL = "00c0ffee"
ONE = "gpu:h100_1g.10gb:1"
PIECE = {"gres": ONE, "mem_mib": 9984, "sm": 16, "whole_sm": 132, "model": HASH_OF_MODEL}
# What Slurm itself offers to its scripts, and a job_desc of which some fields cannot be read.
SLURM = """
slurm = { SUCCESS = 0, ERROR = -1 }
logged, said = {}, {}
function slurm.log_info(form, ...) logged[#logged + 1] = string.format(form, ...) end
function slurm.log_user(form, ...) said[#said + 1] = string.format(form, ...) end
function slurm.log_error(form, ...) said[#said + 1] = string.format(form, ...) end
function raising() return setmetatable({}, { __index = function() error("no such field") end }) end
function at(list) local found = {} for i, v in ipairs(list) do found[i - 1] = v end return found end
"""
SITE = {
    "default_partition": "gpu",
    "headroom_mib": 256,
    "max_slowdown": 2.1,
    "partitions": {},
}


class Loaded:
    """A Lua of one version with both modules in it."""

    def __init__(self, version: str = "lua54") -> None:
        self.lua: Any = importlib.import_module(f"lupa.{version}").LuaRuntime(encoding="latin-1")
        self.lua.execute(SLURM)
        self.policy = self.lua.execute(f'return dofile("{PLUGIN}/colloc_policy.lua")')
        self.table = self.lua.execute(f'return dofile("{PLUGIN}/colloc_table.lua")')

    def to_lua(self, value: Any) -> Any:
        """Return a dict or list as Lua's table, all the way down."""
        if isinstance(value, dict):
            return self.lua.table_from({key: self.to_lua(one) for key, one in value.items()})
        if isinstance(value, list | tuple):
            return self.lua.table_from([self.to_lua(one) for one in value])
        return value

    def new(self, table_path: str, **partition: Any) -> Any:
        """Return what the two hooks call, for a site of one partition ``gpu``."""
        known = {"policy": "default", "whole": ["h100"], "names": [], "pieces": [PIECE], **partition}
        site = {**SITE, "table_path": table_path, "partitions": {"gpu": known}}
        return self.policy.new(self.to_lua(site), self.table)

    def job(self, **fields: Any) -> Any:
        """Return a job_desc as sbatch --gres=gpu:1 makes it."""
        job = {
            "tres_per_node": "gres:gpu:1",
            "name": "train",
            "work_dir": "/home/ann",
            "user_id": 1000,
            "script": "#!/bin/sh\npython train.py\n",
            "argc": 0,
            "num_tasks": NO_VAL,
            "min_nodes": NO_VAL,
            "max_nodes": NO_VAL,
            "time_limit": NO_VAL,
            "het_job_offset": NO_VAL,
            "environment": {},
            **fields,
        }
        return self.to_lua({key: value for key, value in job.items() if value is not None})

    @property
    def said(self) -> list[str]:
        return list(self.lua.globals().said.values())

    @property
    def logged(self) -> list[str]:
        return list(self.lua.globals().logged.values())
