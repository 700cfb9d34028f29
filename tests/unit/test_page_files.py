"""Files of the page: vendored files match VENDOR.md, no script turns data into markup."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from garrison.web import responses

OWN = sorted(path for path in responses.FOLDER.glob("*.js"))
INTO_MARKUP = re.compile(r"\b(innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|srcdoc|"
                         r"eval|new Function|setHTMLUnsafe|execCommand)\b|javascript:")
VENDORED = re.compile(r"^\| `(?P<file>[^`]+)` \|.*\| (?P<sum>[0-9a-f]{64}) \|$", re.MULTILINE)


def test_vendored_files_match_their_checksums() -> None:
    folder = responses.FOLDER / "vendor"
    named = {found["file"]: found["sum"] for found in VENDORED.finditer((folder / "VENDOR.md").read_text())}
    assert named == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.js")}
    assert (folder / "LICENSE.viz.txt").is_file()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_nothing_turns_a_string_into_markup_or_code(path: Path) -> None:
    assert not INTO_MARKUP.findall(path.read_text())


def test_the_patterns_find_markup() -> None:
    assert INTO_MARKUP.search("row.innerHTML = name") and INTO_MARKUP.search('link.href = "javascript:" + x')


def test_the_page_has_no_inline_script_or_style_and_no_foreign_address() -> None:
    page = (responses.FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\bstyle=|\son\w+=|<script(?![^>]*\bsrc=)", page)
    assert re.findall(r'(?:src|href)="(?!/|#|data:,)[^"]*"', page) == []
    for path in [*OWN, responses.FOLDER / "app.css"]:
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text()), path.name


def test_every_module_is_small_and_begins_with_a_comment() -> None:
    for path in OWN:
        lines = path.read_text().splitlines()
        assert len(lines) < 350, path.name
        assert lines[0].startswith("// "), path.name


def test_all_files_of_the_page_can_be_served() -> None:
    files = [path for path in responses.FOLDER.rglob("*") if path.is_file() and path.suffix != ".md"]
    assert {path.suffix for path in files} <= set(responses.TYPES)
