# SPDX-License-Identifier: Apache-2.0
"""The planner's page in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.common.by import By

from slurm_colloc.config import Pool
from slurm_colloc.plan.answer import answer
from slurm_colloc.plan.change import Asked
from slurm_colloc.plan.page import page_values
from slurm_colloc.plan.past import Allocated, Use, past_of
from slurm_colloc.plan.site import rules_of, site_of
from slurm_colloc.report.page import render_page
from tests.unit.made import H100, site
from tests.unit.test_page import DARK, browser, pytestmark, run, show

__all__ = ["browser", "pytestmark"]
POOL = Pool("<b>h", "n[1-2]", ("gpu",), "h100", H100, 1, 81559, 132, cpus_per_node=64, mem_per_node_mib=1_000_000)
TRES = "cpu=8,gres/gpu:h100=1,mem=8G,node=1"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page of two GPUs for which one job of ten hours comes each three hours, each with little to do."""
    rows = [
        Allocated(str(n), "ann", "lab", "gpu", "normal", n * 10800, n * 18000, n * 18000 + 36000, "n2", TRES, 720)
        for n in range(40)
    ]
    config = site(POOL, max_slowdown=2.0)
    rules = rules_of(None)
    uses = {row.job_id: Use(H100, 5000, 5.0) for row in rows}
    past = past_of(rows, uses, config, site_of(config, rules), (0, 6 * 86400))
    found = answer(past, config, rules, Asked(best_cuts=True), lambda *_: None)
    path = tmp_path_factory.mktemp("pages") / "plan.html"
    values = page_values(found, "<i>c", ("2026-11-01", "2026-11-07"))
    path.write_text(render_page("plan.html.j2", "", str, **values))
    return path


def lines(browser: webdriver.Chrome) -> dict[str, Any]:
    return {
        str(line.get_attribute("class")): line.size["height"]
        for line in browser.find_elements(By.CSS_SELECTOR, ".queue polyline")
    }


def test_the_queue_is_drawn_over_time(browser: webdriver.Chrome, page: Path) -> None:
    show(browser, page)
    assert browser.get_log("browser") == []
    heights = lines(browser)
    assert set(heights) == {"were", "today", "then"}
    assert heights["then"] < heights["today"]
    colours = run(
        browser, "return [...document.querySelectorAll('.queue polyline')].map(one => getComputedStyle(one).stroke)"
    )
    assert len(set(colours)) == 3
    assert [one.text for one in browser.find_elements(By.TAG_NAME, "h2")] == [
        "Jobs that wait, over time", "Waits", "Pool <b>h: what its GPUs may be cut into", "Notes",
    ]  # fmt: skip
    assert "recommendation: " in browser.find_element(By.TAG_NAME, "main").text


@pytest.mark.parametrize(("width", "features"), [(1280, ()), (360, ()), (1280, DARK)])
def test_accessible_and_never_wider_than_the_screen(
    browser: webdriver.Chrome, page: Path, width: int, features: Any
) -> None:
    show(browser, page, width, features=features)
    assert run(browser, "return document.documentElement.scrollWidth") <= width
    found = Axe().run(browser)["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
    assert len(browser.find_element(By.CSS_SELECTOR, ".queue").get_attribute("aria-label") or "") > 60
