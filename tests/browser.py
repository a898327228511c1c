"""Chromium without a window, for tests that look at a page as a person's browser does."""

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


def dom(page: Path, script: str = "", width: int = 1400, seconds: int = 20) -> str:
    """The page's document as HTML after its scripts have run, and another one behind them.

    Args:
        page: file.
        script: JavaScript that is put behind those of the page.
        width: of the window, pixels.
        seconds: time that scripts have, as the page sees it.
    """
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        pytest.skip(f"needs a browser: {', '.join(NAMES)}")
    if script:
        copy = page.with_name(f".test-{page.name}")
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"<script>{script}</script></body>"))
        page = copy
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--run-all-compositor-stages-before-draw",
        f"--window-size={width},900",
        f"--virtual-time-budget={1000 * seconds}",
        "--dump-dom",
        page.resolve().as_uri(),
    ]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    finally:
        if script:
            page.unlink()
