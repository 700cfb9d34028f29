"""docs/pipelines.md is correct: its graphs pass lint, its commands work, its tables match the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from garrison.cli.main import main
from garrison.pipeline import run
from garrison.pipeline.graph import HANDLERS, SHAPES
from garrison.pipeline.lint import RULES, lint
from garrison.pipeline.lint.context_keys import WRITTEN
from garrison.pipeline.parser import parse
from markdown_blocks import Block, blocks

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_commands_of_the_page_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    typed = 0
    for block in blocks(PAGE):
        if block.language == "dot":
            Path(block.file).write_text(block.text)
            assert lint(parse(block.text)) == [], block.file
        elif block.language == "python":
            exec(compile(block.text, f"{PAGE}:{block.line}", "exec"), {})
        elif block.language == "sh":
            typed += _typed(block, capfd)
    assert typed


def _typed(block: Block, capfd: pytest.CaptureFixture[str]) -> int:
    lines = block.text.strip().splitlines()
    for line in lines:
        words = shlex.split(line, comments=True)
        expected = 3 if "# exit 3" in line else 0
        assert words[0] == "garrison"
        assert main(words[1:]) == expected, (line, capfd.readouterr())
    return len(lines)


def test_the_tables_of_the_page_match_the_code() -> None:
    page = (PAGE.parent / "generated/lint.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| (error|warning) \| [A-Z]", page, re.MULTILINE))
    assert rows.pop("parse") == "error"
    assert rows == {name: severity for name, (severity, _) in RULES.items()}
    table = TEXT.partition("\n## Handlers\n")[2].partition("\n## ")[0]
    for shape, handler in SHAPES.items():
        assert re.search(rf"^\|[^|]*`{shape}`[^|]*\| `{re.escape(handler)}` \|", table, re.MULTILINE), shape
    assert {*re.findall(r"^\|[^|]*\| `([\w.]+)` \|", table, re.MULTILINE)} == set(HANDLERS)
    for writer, keys in WRITTEN.items():
        for key in keys if not writer.startswith("session.") else ():
            assert key.startswith("internal") or f"`{key}" in TEXT, (writer, key)


def test_a_run_writes_only_keys_of_the_table() -> None:
    result = run("""digraph { goal=g start [shape=Mdiamond] end [shape=Msquare]
        t [shape=parallelogram tool_command="echo hi"] p [shape=component] a [label=A] b [label=B]
        j [shape=tripleoctagon] h [shape=hexagon label=H] f [shape=parallelogram tool_command=false on_error=continue]
        start -> t -> p -> {a b} -> j -> h -> f [label=Go] f -> end }""",
        agent=lambda call: "done", answerer=lambda question: "Go")
    assert result.status == "success", result.reason
    known = {key for keys in WRITTEN.values() for key in keys}
    strange = {key for key in result.context
               if not any(key == one or (one.endswith(".") and key.startswith(one)) for one in known)}
    assert strange == set()
    branch = result.context["parallel.results"][0]["context"]
    assert branch.keys() <= known
