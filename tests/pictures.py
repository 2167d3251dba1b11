# SPDX-License-Identifier: Apache-2.0
"""The pictures of the page that README and docs show, of the demo's week: `make pictures` (with Debian's chromium).

    python -m tests.pictures

Beside them it keeps what the page said then, as a digest: a test calls them stale when the page says something else.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
DIGEST = IMAGES / "page.sha256"


def digest_of(html: str) -> str:
    """Return the digest of what a page says, without its time, and without scripts, whose libraries change."""
    bare = re.sub(r"<script.*?</script>|<style.*?</style>|<meta[^>]*>|runs until [^,]*", "", html, flags=re.DOTALL)
    return hashlib.sha256(bare.encode()).hexdigest()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        colloc = Path(sys.executable).with_name("colloc")
        subprocess.run([colloc, "demo", "-o", folder], check=True, stdout=subprocess.DEVNULL)
        page = Path(folder, "report.html")
        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={folder}/p"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            for scheme in ("light", "dark"):
                features = [{"name": "prefers-color-scheme", "value": scheme}]
                driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
                size = {"width": 1280, "height": 960, "deviceScaleFactor": 1, "mobile": False}
                driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                driver.get(page.as_uri())
                charts = len(driver.find_elements(By.CSS_SELECTOR, "[data-figure]"))
                WebDriverWait(driver, 60).until(
                    lambda one, charts=charts: len(one.find_elements(By.CSS_SELECTOR, "svg.marks")) >= charts
                )
                driver.save_screenshot(str(IMAGES / f"page-{scheme}.png"))
        finally:
            driver.quit()
        DIGEST.write_text(digest_of(page.read_text()) + "\n")


if __name__ == "__main__":
    main()
