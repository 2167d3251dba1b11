# SPDX-License-Identifier: Apache-2.0
"""Write every page that is made of the code: `make docs`."""

from tests.pages import DOCS, pages

for path, make in pages().items():
    (DOCS / path).write_text(make())
