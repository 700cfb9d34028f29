"""README, docs/ and the other pages: links and paths exist, and garrison accepts every configuration."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from garrison.agents import registry
from garrison.agents.config_check import check_config, check_tables
from garrison.config import PROJECT_TABLES, read_config
from garrison.delegation.specialists import FILE as CREW
from garrison.delegation.specialists import read_crew
from garrison.run.request import read_guard, read_project
from hostile.cases import CASES
from hostile.tables import PAGE, fill
from markdown_blocks import blocks

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
    """Return the paths on a page that are neither in the checkout, nor in src/garrison, nor next to the page."""
    return [path for path in _PATH.findall(text) if not path.startswith(IN_THE_HOME)
            and not any((folder / path).exists() for folder in (ROOT, ROOT / "src/garrison", page.parent))]


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_and_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert find_dead_links(page, text) == []
    assert find_missing_paths(page, text) == []


def test_a_dead_link_and_a_missing_path_are_found() -> None:
    page, paths = ROOT / "docs/how-to.md", "`records/hook.py`, `records/no_such.py`, `scripts/cli.py`"
    text = "[a](supervision.md#restarts) [b](no-such.md) [c](supervision.md#no-such) [d](#clean-up) [e](https://x.org/#y)"
    assert find_dead_links(page, text) == ["](no-such.md)", "](supervision.md#no-such)"]
    assert find_missing_paths(page, paths) == ["records/no_such.py"]


_INDENTED = re.compile(r"^ {4}\[(?:agents|sandbox|guard|launch|notify)[.\w]*\]$\n(?:^ {4}\S.*$\n|^\n(?= {4}\S))*",
                       re.MULTILINE)
"""A table of settings that a page shows without a fence."""


def configurations(page: Path) -> list[str]:
    """Return the configuration files that a page shows."""
    fenced = [block.text for block in blocks(page) if block.language == "toml"]
    return fenced + [re.sub("(?m)^ {4}", "", found[0]) for found in _INDENTED.finditer(page.read_text("utf-8"))]


SHOWN = [pytest.param(text, id=f"{page.name}-{number}") for page in PAGES
         for number, text in enumerate(configurations(page), 1)]


@pytest.mark.parametrize("text", SHOWN)
def test_every_configuration_of_a_page_is_accepted(text: str, tmp_path: Path) -> None:
    """It is read as the commands that need it do."""
    tables = tomllib.loads(text).keys()
    if "butler" in tables:
        for name in re.findall(r'^prompt = "(.+?)"', text, re.MULTILINE):
            (tmp_path / name).write_text("You know.")
        (tmp_path / CREW).write_text(text)
        read_crew(tmp_path)
        return
    (tmp_path / "config.toml").write_text(text)
    assert check_config(tmp_path) == []
    check_tables(read_config(tmp_path))
    registry.profiles(tmp_path)
    if tables <= set(PROJECT_TABLES):
        (tmp_path / "garrison.toml").write_text(text)
        read_project(tmp_path)
        read_guard(tmp_path, tmp_path)


def test_the_configurations_of_all_pages_are_found() -> None:
    assert {each.id.rpartition("-")[0] for each in SHOWN if each.id} == {
        "agents.md", "capacity.md", "claude.md", "committed-files.md", "configuration.md", "containers.md",
        "delegation.md", "first-agent.md", "how-to.md", "network.md", "notify.md", "scale-out.md", "security.md",
        "services.md", "supervision.md", "testing-without-a-key.md"}


TRANSLATED = re.compile(r"\b(?:is|are|be) told\b|, too\b|\bgo(?:es)? on\b|\bof (?:its|their) own\b|\bwhoever\b"
                        r"|\banew\b|^Of |[.:] Of (?:a|the|its|these|what)\b", re.MULTILINE)
"""Kinds of phrases that a native engineer would not write."""
GENERATED = re.compile(r"<!-- (?:table|figures): .+? -->.*?<!-- (?:end of table|/figures) -->", re.DOTALL)
_PROSE = re.compile(r'"""(.*?)"""|(?:^|  )# (.*?)$', re.DOTALL | re.MULTILINE)
ROWS_OF_FEATURES = 300
"""Words that features which came since that bound add to tables of settings and attributes."""
MOST_WORDS = 37_750 + ROWS_OF_FEATURES
"""Words of README and docs, without what is generated, the decisions and pages of new features; to be lowered only."""
FEATURES, OF_A_FEATURE = frozenset({
    "acp.md",
    "best-of-n.md",
    "containers.md",
    "lessons.md",
    "mcp.md",
    "monorepos.md",
    "plan.md",
    "preview.md",
    "schedules.md",
    "services.md",
    "stability.md",
}), 450
"""Pages of features that came since that bound, and the words that each may have."""


def test_the_pages_stay_short_and_they_and_the_source_read_as_a_native_engineer_writes() -> None:
    texts = {page.name: GENERATED.sub("", page.read_text(encoding="utf-8"))
             for page in (ROOT / "README.md", *ROOT.glob("docs/*.md"))}
    assert {name: found for name, text in texts.items() if (found := TRANSLATED.findall(text))} == {}
    words = {name: sum(bool(re.search(r"\w", word)) for word in text.split()) for name, text in texts.items()}
    assert {name: count for name in FEATURES if (count := words.pop(name)) > OF_A_FEATURE} == {}
    assert sum(words.values()) <= MOST_WORDS
    kinds = re.compile(r"\b(?:is|are|be|been|was|were) told\b|, too\b(?! \w)|\bgo(?:es)? on\b|\ba person\b|\banew\b"
                       r"|^Of |[.:] Of (?:a|an|the|its|these|what)\b")
    assert len([text for path in (ROOT / "src").rglob("*.py") for texts in _PROSE.findall(path.read_text("utf-8"))
                for text in texts if kinds.search(" ".join(text.split()))]) <= 7


def _without_docstring(tree: ast.AST) -> Iterator[str]:
    """Yield each public class, and each public function of more than three lines, that has no docstring."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("_"):
            continue
        is_short = not isinstance(node, ast.ClassDef) and (node.end_lineno or 0) - node.body[0].lineno < 3
        if not is_short and ast.get_docstring(node) is None:
            yield f"{node.name}, line {node.lineno}"
        if isinstance(node, ast.ClassDef):
            yield from _without_docstring(node)


def test_each_public_class_and_function_of_more_than_three_lines_has_a_docstring() -> None:
    assert not {f"{path.relative_to(ROOT)}: {name}" for top in ("src", "scripts") for path in (ROOT / top).rglob("*.py")
                for name in _without_docstring(ast.parse(path.read_text(encoding="utf-8")))}


# ---- docs/security.md says how many attacks succeed in each mode, as the data of the cases does


def test_the_tables_match_the_cases_each_of_which_has_a_unique_name() -> None:
    text = PAGE.read_text()
    assert text == fill(text), "run: .venv/bin/python -m tests.hostile --tables"
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) >= 60
