"""The page's modules in one script: each is there once, and what cannot be put together is refused by name."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from garrison.web import page_files

MODULES = {
    "main.js": 'import { one, two as other } from "./one.js";\nexport const three = () => import("./later.js");\n',
    "one.js": 'import whole from "./vendor/w.mjs";\nexport function one() {}\nconst two = 2;\nexport { two };\n',
    "later.js": "export class Later {}\n",
    "vendor/w.mjs": 'var a=1;function b(){}export{a as first,b};\n//# sourceMappingURL=w.mjs.map\n',
}


def read(name: str) -> str:
    return (page_files.FOLDER / name).read_text()


def test_modules_come_after_what_they_import_and_export_under_their_names() -> None:
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
    with pytest.raises(ValueError, match=r"^main\.js: an import or export in another form"):
        page_files.parse_module("main.js", text)


def test_modules_that_import_each_other_are_refused() -> None:
    modules = {"main.js": 'import { b } from "./b.js";', "b.js": 'import { main } from "./main.js";'}
    with pytest.raises(ValueError, match=r"main\.js → b\.js → main\.js"):
        page_files.modules_of("main.js", modules.__getitem__)


def test_the_page_is_one_script_with_every_module_but_those_that_run_apart(tmp_path: Path) -> None:
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
