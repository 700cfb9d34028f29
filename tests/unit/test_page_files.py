"""Files of the page: vendored files match VENDOR.md, no script turns data into markup, modules are bundled."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
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


    upstream = (folder / "preact-11.2.0/hooks.mjs").read_text().replace('from"./preact.mjs"', 'from"preact"')
    assert hashlib.sha256(upstream.encode()).hexdigest() in (folder / "VENDOR.md").read_text(), "its only edit"


def test_nothing_turns_a_string_into_markup_or_code() -> None:
    assert INTO_MARKUP.search("row.innerHTML = name") and INTO_MARKUP.search('link.href = "javascript:" + x')
    assert [path.name for path in OWN if INTO_MARKUP.search(path.read_text())] == []
    assert [(path.name, path.read_text().count(SET_MARKUP)) for path in OWN if SET_MARKUP in path.read_text()] == [
        ("view.js", 1)], "only the rule against it names the property that sets markup"


def test_only_one_module_imports_preact() -> None:
    """Another one could draw text before the rules of view.js are set, or draw without them."""
    assert [path.name for path in OWN if re.search(r"vendor/(preact|htm)-", path.read_text())] == ["view.js"]


def test_the_page_has_no_inline_script_or_style_and_no_foreign_address() -> None:
    page = (page_files.FOLDER / "index.html").read_text()
    assert not re.search(r"<style|\bstyle=|\son\w+=|<script(?![^>]*\bsrc=)", page)
    assert re.findall(r'(?:src|href)="(?!/|#|data:,)[^"]*"', page) == []
    for path in [*OWN, page_files.FOLDER / "app.css"]:
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", path.read_text()), path.name


def test_every_module_is_small_and_starts_with_a_comment() -> None:
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


def test_the_types_of_the_pages_data_match_the_records() -> None:
    assert page_types.FILE.read_text() == page_types.write(), "python -m tests.page_types writes them again"


# ---- the page's modules in one script: each is there once, and what cannot be bundled is refused by name


MODULES = {
    "main.js": 'import { one, two as other } from "./one.js";\nexport const three = () => import("./later.js");\n',
    "one.js": 'import whole from "./vendor/w.mjs";\nexport function one() {}\nconst two = 2;\nexport { two };\n',
    "later.js": "export class Later {}\n",
    "vendor/w.mjs": 'var a=1;function b(){}export{a as first,b};\n//# sourceMappingURL=w.mjs.map\n',
}


def read(name: str) -> str:
    return (page_files.FOLDER / name).read_text()


def test_modules_come_after_their_imports_and_export_under_their_names() -> None:
    modules = page_files.modules_of("main.js", MODULES.__getitem__)
    assert list(modules) == ["vendor/w.mjs", "one.js", "main.js", "later.js"]
    assert modules["one.js"].exports == ("one", "two")
    assert modules["vendor/w.mjs"].exports == ("first: a", "b")
    script = page_files.script_of("main.js", modules)
    assert 'const { one, two: other } = $need("one.js");' in script
    assert 'const { default: whole } = $need("vendor/w.mjs");' in script
    assert '$later("later.js")' in script
    assert "sourceMappingURL" not in script and "import" not in script
    assert script.endswith('$need("main.js");\n')


@pytest.mark.parametrize("text", ['import "./one.js";', 'import * as all from "./one.js";', 'export * from "./one.js";',
                                  "export let one = 1;", 'import { one } from "https://example.org/one.js";'])
def test_an_import_or_export_in_another_form_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match=r"^main\.js: unsupported form of import or export"):
        page_files.parse_module("main.js", text)


def test_modules_that_import_each_other_are_refused() -> None:
    modules = {"main.js": 'import { b } from "./b.js";', "b.js": 'import { main } from "./main.js";'}
    with pytest.raises(ValueError, match=r"main\.js → b\.js → main\.js"):
        page_files.modules_of("main.js", modules.__getitem__)


def test_the_page_is_one_script_with_every_module_except_workers(tmp_path: Path) -> None:
    modules = page_files.modules_of(page_files.ENTRY, read)
    assert not [name for name in modules if re.search(r"\$(?:need|later)\b", read(name))], "names of the script itself"
    together = {name for name in modules if "/" not in name}
    apart = {"graph_worker.js", "service_worker.js", page_files.WORKER}
    assert {path.name for path in page_files.FOLDER.glob("*.js")} == together | apart
    for entry in (page_files.ENTRY, page_files.WORKER):
        script = tmp_path / f"{entry}.mjs"
        script.write_text(page_files.script_of(entry, page_files.modules_of(entry, read)))
        if node := shutil.which("node"):
            subprocess.run([node, "--check", script], check=True)


def test_every_style_sheet_of_the_page_is_in_its_one_sheet() -> None:
    assert sorted(page_files.STYLES) == sorted(path.name for path in page_files.FOLDER.glob("*.css"))
    assert re.findall(r'(?:src|href)="/static/([^"]+)"', read("index.html")) == [
        "garrison.webmanifest", "page.css", "page.js"]
