"""Print the page, or put it in its place with `--write`."""

from __future__ import annotations

import sys

from tests.celery.semantics.page import PAGE, page

if sys.argv[1:] == ["--write"]:
    PAGE.write_text(page(), encoding="utf-8")
else:
    sys.stdout.write(page())
