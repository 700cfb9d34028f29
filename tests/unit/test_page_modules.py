"""The page's modules: the browser is told of all of them at once, instead of finding them import by import."""

from __future__ import annotations

import re
from pathlib import Path

import garrison.web

STATIC = Path(garrison.web.__file__).parent / "static"
IMPORT = re.compile(r'^(?:import|export)\b[^;]*?from "(\.[^"]+)"', re.MULTILINE)


def imported(*names: str) -> set[str]:
    """Every module that these import, directly or not, and themselves."""
    found: set[Path] = set()
    left = [STATIC / name for name in names]
    while left:
        module = left.pop().resolve()
        if module not in found:
            found.add(module)
            left += [module.parent / name for name in IMPORT.findall(module.read_text())]
    return {str(module.relative_to(STATIC.resolve())) for module in found}


def test_every_module_of_a_runs_first_screen_is_preloaded() -> None:
    page = (STATIC / "index.html").read_text()
    preloaded = re.findall(r'<link rel="modulepreload" href="/static/([^"]+)">', page)
    assert len(preloaded) == len(set(preloaded))
    assert {*preloaded, "main.js"} == imported("main.js", "keys.js", "run_page.js")
