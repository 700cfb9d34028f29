"""README, docs/ and the other pages: links and paths exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted({ROOT / "README.md", ROOT / "state/README.md", ROOT / "systemd/README.md", ROOT / "benchmarks/README.md",
                *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/README.md")})
IN_THE_HOME = ("runs/",)
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|dot|yaml|sh))`")
_LINK = re.compile(r"\]\((?P<path>[^)#:\s]*)(?:#(?P<anchor>[^)\s]+))?\)")


def find_dead_links(page: Path, text: str) -> list[str]:
    """Return the relative links of a page whose file or heading does not exist."""
    dead = []
    for match in _LINK.finditer(text):
        target = page.parent / match["path"] if match["path"] else page
        if not target.exists() or (match["anchor"] and match["anchor"] not in anchors(target)):
            dead.append(match[0])
    return dead


def find_missing_paths(page: Path, text: str) -> list[str]:
    """Return the paths that a page names and that are neither in the checkout, nor in src/garrison, nor beside it."""
    return [path for path in _PATH.findall(text) if not path.startswith(IN_THE_HOME)
            and not any((folder / path).exists() for folder in (ROOT, ROOT / "src/garrison", page.parent))]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_and_paths_are_those_of_today(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert find_dead_links(page, text) == []
    assert find_missing_paths(page, text) == []


def test_a_dead_link_is_found() -> None:
    page = ROOT / "docs/how-to.md"
    text = "[a](supervision.md#restarts) [b](no-such.md) [c](supervision.md#no-such) [d](#clean-up) [e](https://x.org/#y)"
    assert find_dead_links(page, text) == ["](no-such.md)", "](supervision.md#no-such)"]


def test_a_missing_path_is_found() -> None:
    page = ROOT / "docs/how-to.md"
    text = "`records/hook.py`, `records/no_such.py`, `scripts/cli.py`"
    assert find_missing_paths(page, text) == ["records/no_such.py"]
