# SPDX-License-Identifier: Apache-2.0
"""The page of a usage report in a real browser: what it draws, does, loads, and is without sight or mouse."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_core_python.selenium import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from slurm_colloc.core.chart_model import Todo
from slurm_colloc.core.sharing_model import HarmRate
from slurm_colloc.report.formats import as_html
from slurm_colloc.report.usage import UsageReport
from tests.unit.charts_made import made_report
from tests.unit.hostile import HOSTILE

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
CHARTS = ("over-time", "week-allocated", "week-used", "util-sm")
DARK = [{"name": "prefers-color-scheme", "value": "dark"}]

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and not os.environ.get("COLLOC_REQUIRE_CLUSTER"),
    reason="needs Debian's chromium and chromium-driver",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(300)  # where other tests keep all cores busy
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("pages"), made_report(5, 30))


def written(folder: Path, report: UsageReport) -> Path:
    path = folder / "report.html"
    path.write_text(as_html(report))
    return path


def show(browser: webdriver.Chrome, page: Path, width: int = 1280, media: str = "", features: Any = ()) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": list(features)})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(page.as_uri())
    drawn(browser, ".chart", len(browser.find_elements(By.CSS_SELECTOR, "[data-figure]")))


def drawn(browser: webdriver.Chrome, what: str, count: int) -> None:
    def all_drawn(driver: webdriver.Chrome) -> bool:
        return len(driver.find_elements(By.CSS_SELECTOR, f"{what} svg.marks")) == count

    WebDriverWait(browser, 60).until(all_drawn)


def run(browser: webdriver.Chrome, script: str, *values: Any) -> Any:
    return browser.execute_script(script, *values)


def names(browser: webdriver.Chrome) -> list[str]:
    found: list[str] = run(
        browser, "return [...document.querySelectorAll('#table tbody tr:not([hidden]) th')].map(h => h.textContent)"
    )
    return found  # fmt: skip


def test_it_draws_everything_without_network_or_complaint(browser: webdriver.Chrome, five: Path) -> None:
    show(browser, five)
    assert [one.get_attribute("data-figure") for one in browser.find_elements(By.CSS_SELECTOR, ".chart")] == list(
        CHARTS
    )
    assert browser.get_log("browser") == []
    asked = re.findall(r'"method":"Network.requestWillBeSent".*?"url":"([^"]*)"', str(
        [entry["message"] for entry in browser.get_log("performance")]))  # fmt: skip
    assert asked, "the browser reports what it loads"
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    # No other code than the page's own may run.
    added = (
        "const one = document.createElement('script'); one.textContent = 'window.ran = 1'; document.body.append(one)"
    )
    assert run(browser, f"{added}; return window.ran") is None
    assert "Content Security Policy" in browser.get_log("browser")[0]["message"]


def test_sorts_by_key_and_says_so(browser: webdriver.Chrome, five: Path) -> None:
    show(browser, five)
    header = browser.find_elements(By.CSS_SELECTOR, "#table thead th")[2]
    assert header.text == "RUNS"
    header.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    script = "return [...document.querySelectorAll('#table tbody tr')].map(row => Number(row.cells[2].textContent))"
    assert header.get_attribute("aria-sort") == "descending"
    falling = run(browser, script)
    assert falling == sorted(falling, reverse=True)
    header.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert (header.get_attribute("aria-sort"), run(browser, script)) == ("ascending", falling[::-1])
    assert browser.find_element(By.ID, "found").text == "sorted by RUNS, ascending"
    browser.find_element(By.CSS_SELECTOR, "#table thead button").send_keys(Keys.ENTER)
    assert names(browser) == ["ann", "bob", "carol", "dave", "erin"]
    assert len(browser.find_elements(By.CSS_SELECTOR, "[aria-sort]")) == 1


def test_a_table_wider_than_the_window_says_so(browser: webdriver.Chrome, five: Path) -> None:
    faded = "return getComputedStyle(document.querySelector('.scroll.tall')).maskImage !== 'none'"
    show(browser, five)
    hint = browser.find_element(By.ID, "sideways")
    WebDriverWait(browser, 20).until(lambda _: hint.is_displayed())
    assert run(browser, faded)
    run(browser, "document.querySelector('.scroll.tall').scrollLeft = 1e6")
    WebDriverWait(browser, 20).until(lambda _: not run(browser, faded))
    show(browser, five, 3000)
    run(browser, "document.querySelector('main').style.maxWidth = 'none'")
    hint = browser.find_element(By.ID, "sideways")
    WebDriverWait(browser, 20).until(lambda _: not hint.is_displayed())
    assert not run(browser, faded)


def test_a_rows_details_open_by_key_and_close_by_escape(browser: webdriver.Chrome, five: Path) -> None:
    show(browser, five)
    button = browser.find_element(By.CSS_SELECTOR, "#table tbody button")
    button.send_keys(Keys.ENTER)
    dialog = browser.find_element(By.ID, "detail")
    drawn(browser, "#detail", 1)
    assert browser.find_element(By.ID, "detail-name").text == button.text == "bob"
    for said in ("ALLOC GPU-h", "By kind of GPU", "a100_1g.10gb", "not measured", "train_0", "would have fitted"):
        assert said in dialog.text
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not dialog.is_displayed()
    assert browser.switch_to.active_element == button, "the focus goes back to where it was"


def tip(browser: webdriver.Chrome, element: WebElement, x: int, y: int) -> str:
    """Move the pointer there until something is said: the event of a scroll that comes late hides it again."""
    run(browser, "arguments[0].scrollIntoView({block: 'center'})", element)

    def said(_: webdriver.Chrome) -> str:
        move = webdriver.ActionChains(browser).move_to_element_with_offset(element, x, y)
        move.move_by_offset(2, 1).perform()
        return str(browser.find_element(By.ID, "tip").text)

    return str(WebDriverWait(browser, 20).until(said))


def test_what_is_under_the_pointer_has_denominator_and_method(browser: webdriver.Chrome, five: Path) -> None:
    show(browser, five)
    cell = browser.find_element(By.CSS_SELECTOR, "#table tbody td:nth-child(10)")
    assert re.search(
        r"SM % [\d.]+\n.*over the sampled time.*\nmeasured: \d.* GPU-h by SM.*\nmethod: measured",
        tip(browser, cell, 0, 0),
    )
    chart = browser.find_element(By.CSS_SELECTOR, "[data-figure=over-time] svg")
    assert re.search("GPU-h", tip(browser, chart, 0, 60))


@pytest.mark.parametrize(("width", "features"), [(1280, ()), (1280, DARK), (375, ()), (375, DARK)])
def test_accessible_and_never_wider_than_the_screen(
    browser: webdriver.Chrome, five: Path, width: int, features: Any
) -> None:
    show(browser, five, width, features=features)
    assert run(browser, "return document.documentElement.scrollWidth") <= width
    found = Axe().run(browser)["violations"]
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
    for chart in browser.find_elements(By.CSS_SELECTOR, ".chart"):
        assert len(chart.get_attribute("aria-label") or "") > 30
    browser.find_element(By.CSS_SELECTOR, "#table tbody button").send_keys(Keys.ENTER)
    drawn(browser, "#detail", 1)
    assert [one["id"] for one in Axe().run(browser)["violations"]] == []


def test_dark_differs_and_print_is_light_with_all_rows(browser: webdriver.Chrome, five: Path) -> None:
    def seen(what: str) -> str:
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        value: str = run(browser, script, *what.rsplit(" ", 1))
        return value

    show(browser, five)
    light = (seen("body backgroundColor"), seen("[data-figure=over-time] text fill"))
    show(browser, five, features=DARK)
    dark = (seen("body backgroundColor"), seen("[data-figure=over-time] text fill"))
    assert all(a != b for a, b in zip(light, dark, strict=True))
    show(browser, five, media="print", features=DARK)
    assert seen("body backgroundColor") == "rgb(255, 255, 255)"
    assert seen(".scroll.tall overflow") == "visible"
    assert seen("tbody tr breakInside") == "avoid"
    assert (seen("details display"), seen("figcaption display"), seen(".tools display")) == ("none", "block", "none")


@pytest.mark.parametrize("with_charts", [True, False])
def test_hostile_names_are_words(browser: webdriver.Chrome, tmp_path: Path, with_charts: bool) -> None:
    odd = (*HOSTILE, "</script><script>document.title='x'</script>", "<!--", "javascript:alert(1)")
    report = made_report(20, 30, odd)._replace(cluster=odd[0])
    report = report if with_charts else report._replace(charts=None)
    show(browser, written(tmp_path, report))
    assert browser.title.startswith("GPU use on <script>alert(1)</script>")
    assert browser.get_log("browser") == []
    shown = names(browser)
    assert {"<script>alert(1)</script>", "<!--", "abc?gpj.exe"} <= set(shown)
    assert all(character.isprintable() for name in shown for character in name)
    for button in browser.find_elements(By.CSS_SELECTOR, "#table tbody button"):
        run(browser, "arguments[0].click()", button)
        assert browser.find_element(By.ID, "detail-name").text == " ".join(button.text.split())
        run(browser, "document.getElementById('close').click()")
    assert browser.get_log("browser") == []


def test_on_a_phone_the_first_row_with_its_hours_is_on_the_first_screen(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    what = "ask for less: 45 % of a GPU (mps:45) is enough for each run, some need less"
    to_do = tuple(
        Todo(name, what, 65.6, 30, "#SBATCH --gres=mps:45", "colloc job 1036")
        for name in ("novak", "rossi", "diaz", "moreau", "sato")
    )
    harm = HarmRate("harmed in all", 11, 3100, 11 / 3100, 0.0018, 0.0064)
    path = written(tmp_path, made_report(5, 30)._replace(to_do=to_do, cluster="demo", harm=harm))
    opened = "return document.querySelectorAll('.do details[open]').length"
    show(browser, path)
    assert run(browser, opened) == 5
    show(browser, path, 390)
    assert run(browser, opened) == 0
    row = browser.find_element(By.CSS_SELECTOR, "#table tbody tr")
    hours = row.find_element(By.CSS_SELECTOR, "td:nth-of-type(3)")
    assert re.fullmatch(r"[\d,.]+", hours.text)
    assert hours.rect["y"] + hours.rect["height"] <= 844
    assert hours.rect["x"] + hours.rect["width"] <= 390


def test_two_thousand_users_and_a_year(browser: webdriver.Chrome, tmp_path: Path) -> None:
    page = written(tmp_path, made_report(2000, 365))
    assert page.stat().st_size <= 3_000_000
    show(browser, page)
    assert browser.get_log("browser") == []
    assert len(names(browser)) == 2000
    run(browser, "document.querySelectorAll('#table thead button')[3].click()")
    browser.find_element(By.ID, "search").send_keys("HEIDI0231")
    assert names(browser) == ["heidi0231"]
    assert browser.find_element(By.ID, "found").text == "1 of 2000 shown; the last row is of all"
    show(browser, page, 375)
    assert run(browser, "return document.documentElement.scrollWidth") <= 375
