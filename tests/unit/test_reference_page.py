"""docs/reference.md, docs/configuration.md and the list of signals match the code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from garrison import config
from garrison.agents.registry import kind_of_profile
from garrison.cli.output import INTERRUPTED
from garrison.cli.pipeline_run import EXIT_CODES
from garrison.cli.wait import TIMED_OUT
from garrison.config import Timing
from garrison.merge.entry import GREEN_SIGNAL, STATUS_SIGNALS, MergeEntry, make_outcome
from garrison.pipeline.lint.known_attributes import KNOWN, Level
from garrison.processes.loop import FENCED_EXIT
from garrison.records import signals
from garrison.sandbox.rights import ROLE_TABLES
from garrison.tables import readers_of
from garrison.values import field_names
from markdown_blocks import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGE = "".join((ROOT / name).read_text(encoding="utf-8") for name in ("docs/reference.md", "docs/generated/states.md"))
_WORD = re.compile(r"`([^`\n]+)`")


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one of its level or above."""
    level = re.match("#+", heading)[0]
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the cells of the tables in a text, without their headings."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    following = [*lines[1:], ""]
    return [[cell.strip() for cell in line.split("|")[1:-1]]
            for line, below in zip(lines, following, strict=True) if "|---" not in (line[:4], below[:4])]


@pytest.mark.parametrize(("heading", "level"), [
    ("### Of the graph", Level.GRAPH), ("### Of a node", Level.NODE), ("### Of an edge", Level.EDGE)])
def test_the_tables_have_all_attributes(heading: str, level: Level) -> None:
    named = [word for cells in rows(section(heading)) for word in _WORD.findall(cells[0])]
    assert sorted(named) == sorted(KNOWN[level])


def test_the_table_has_all_variables_of_the_code() -> None:
    sources = [path for path in (ROOT / "src/garrison").rglob("*") if path.suffix in (".py", ".sh", ".js", ".md")]
    used = {name for path in sources for name in re.findall(r"\b_?GARRISON_[A-Z]+(?:_[A-Z]+)*\b(?!_?\{|[*<])",
                                                           path.read_text(encoding="utf-8"))}
    used |= {f"GARRISON_{name.upper()}" for name in field_names(Timing)}
    used |= {"GARRISON_CONTEXT_FILE", "GARRISON_RESULT_FILE"}  # handlers/installed.py composes these
    assert set(re.findall(r"`(_?GARRISON_[A-Z_]+)`", section("## Environment"))) == used


def test_all_timing_variables_are_explained() -> None:
    text = (ROOT / "docs/supervision.md").read_text().partition("## Settings")[2].partition("\n## ")[0]
    named = set()
    for cells in rows(text):
        first, *rest = _WORD.findall(cells[0])
        shared = "" if not rest else "GARRISON_STOP" if "STOP" in first else "GARRISON"
        named |= {first, *(shared + each for each in rest)}
    assert named == {f"GARRISON_{name.upper()}" for name in field_names(Timing)}


def test_the_tables_have_all_signals_with_their_payloads() -> None:
    payloads: dict[str, set[str]] = {type_: set() for type_ in signals.TYPES}
    actions: dict[str, set[str]] = {}
    for each in signals.Payload.__subclasses__():
        keys = {signals.KEYS.get(name, name) for name in field_names(each)}
        if each.action:
            actions[each.action] = keys
        elif each.type in payloads:  # an imported part of garrison may add X-… types
            payloads[each.type] |= keys
    payloads["GUIDANCE"] = {"action"}
    of_entry = {GREEN_SIGNAL, *(name for names in STATUS_SIGNALS.values() for name in names)}
    text = section("## Signals")
    named = {}
    of_entries, *guidance = [cells for cells in rows(text) if len(cells) == 2]
    for cells in (cells for cells in rows(text) if len(cells) != 2):
        assert len(cells) == 4 and " → " in cells[1] and cells[3], cells
        for type_ in _WORD.findall(cells[0]):
            named[type_] = set() if type_ in of_entry else set(_WORD.findall(cells[2]))
    assert named == payloads
    required = {each.name: "" for each in msgspec.structs.fields(MergeEntry) if each.required}
    sample = MergeEntry(**{**required, "attempt": 1})
    assert set(_WORD.findall(of_entries[1])) == set(make_outcome(sample, "MERGE_FAILED", 1, "").payload)
    assert {action.strip("`"): set(_WORD.findall(keys)) for action, keys in guidance} == actions


def test_the_complete_configuration_has_every_table_and_key() -> None:
    shown = [block.text for block in blocks(ROOT / "docs/configuration.md") if block.language == "toml"]
    tables = tomllib.loads("".join(shown))
    kinds = {each.get("kind", "command"): set(each) for each in tables["agents"].values() if isinstance(each, dict)}
    common = {*config.PROFILE_KEYS, *config.PROFILE_RIGHTS}
    assert {kind: keys - common for kind, keys in kinds.items()} == {
        kind: set(kind_of_profile(kind).setting_names()) for kind in config.AGENT_KINDS}
    assert set.union(*kinds.values()) >= common
    assert set(tables) == set(config.TABLES)
    assert {key for key, value in tables["agents"].items() if not isinstance(value, dict)} == set(config.AGENTS_KEYS)
    assert set(tables["sandbox"]) == {*config.SANDBOX_KEYS, *ROLE_TABLES}
    for name, record in config.RECORDS.items():
        if name not in ("agents", "sandbox"):
            assert set(tables[name]) == set(readers_of(record)), name


def test_the_table_has_all_exit_codes() -> None:
    codes = {int(code) for cells in rows(section("## Exit codes")) for code in re.findall(r"\d+", cells[0])}
    assert codes == {0, 1, 2, *EXIT_CODES.values(), FENCED_EXIT, TIMED_OUT, 126, 127, INTERRUPTED}
