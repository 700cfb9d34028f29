"""Files of the page: vendored files match VENDOR.md, no script turns data into markup."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from tests import page_types

from garrison.web import page_files

OWN = sorted(path for path in page_files.FOLDER.glob("*.js"))
INTO_MARKUP = re.compile(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|srcdoc|"
                         r"eval|new Function|setHTMLUnsafe|execCommand)\b|javascript:")
SET_MARKUP = "dangerouslySetInnerHTML"
"""The property with which preact would take a string for markup; view.js removes it from every element."""
VENDORED = re.compile(r"^\| `(?P<file>[^`]+)` \| (?P<package>`[^`]+` \| [\d.]+) \|.*\| (?P<sum>[0-9a-f]{64}) \|$",
                      re.MULTILINE)


def test_vendored_files_match_their_checksums() -> None:
    folder = page_files.FOLDER / "vendor"
    named = {found["file"]: found["sum"] for found in VENDORED.finditer((folder / "VENDOR.md").read_text())}
    files = [path for path in folder.rglob("*") if path.suffix in (".js", ".mjs", ".css")]
    assert named == {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    for licence in re.findall(r"see `([^`]+)`", (folder / "VENDOR.md").read_text()):
        assert (folder / licence).is_file(), licence
    notice = (folder.parents[4] / "NOTICE").read_text()
    packages = {found["package"] for found in VENDORED.finditer((folder / "VENDOR.md").read_text())}
    assert {package for package in packages if f", {package} |" not in notice} == set()


def test_the_only_edit_of_a_vendored_file_is_its_import() -> None:
    vendored = page_files.FOLDER / "vendor" / "preact-11.2.0" / "hooks.mjs"
    upstream = vendored.read_text().replace('from"./preact.mjs"', 'from"preact"')
    assert hashlib.sha256(upstream.encode()).hexdigest() in (page_files.FOLDER / "vendor" / "VENDOR.md").read_text()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_nothing_turns_a_string_into_markup_or_code(path: Path) -> None:
    assert not INTO_MARKUP.findall(path.read_text())


def test_only_the_rule_against_it_names_the_property_that_sets_markup() -> None:
    naming = {path.name: path.read_text().count(SET_MARKUP) for path in OWN if SET_MARKUP in path.read_text()}
    assert naming == {"view.js": 1}


def test_preact_is_used_through_the_rules_of_the_house() -> None:
    """A module with an import of its own could draw text before the rules are set, or draw without them."""
    assert [path.name for path in OWN if re.search(r"vendor/(preact|htm)-", path.read_text())] == ["view.js"]


def test_the_patterns_find_markup() -> None:
    assert INTO_MARKUP.search("row.innerHTML = name") and INTO_MARKUP.search('link.href = "javascript:" + x')


def test_the_page_has_no_inline_script_or_style_and_no_foreign_address() -> None:
    page = (page_files.FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\bstyle=|\son\w+=|<script(?![^>]*\bsrc=)", page)
    assert re.findall(r'(?:src|href)="(?!/|#|data:,)[^"]*"', page) == []
    for path in [*OWN, page_files.FOLDER / "app.css"]:
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text()), path.name


def test_every_module_is_small_and_begins_with_a_comment() -> None:
    for path in OWN:
        lines = path.read_text().splitlines()
        assert len(lines) < 350, path.name
        assert lines[0].startswith("// "), path.name
    for path in page_files.FOLDER.glob("*.css"):
        assert max(map(len, path.read_text().splitlines())) <= 140, path.name


def test_all_files_of_the_page_can_be_served() -> None:
    files = [path for path in page_files.FOLDER.rglob("*")
             if path.is_file() and not path.name.endswith((".md", ".d.ts", ".d.mts"))]
    assert {path.suffix for path in files} <= set(page_files.TYPES)


def test_the_types_of_the_pages_data_are_what_the_records_say() -> None:
    assert page_types.FILE.read_text() == page_types.write(), "python -m tests.page_types writes them anew"
