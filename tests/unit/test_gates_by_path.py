"""Gates by path: which gates a change has to pass, and which runs count as their verdict."""

from __future__ import annotations

import pytest

from garrison.errors import UsageError
from garrison.merge.config import QueueConfig
from garrison.merge.gates_by_path import GateBook, GateRule, GateRules, landed_since_whole, parse_rules, read_rules
from garrison.merge.state import QueueState
from garrison.merge.verdicts import SetRun
from garrison.tables import Table
from garrison.testing.checker import gates as checker

FILE = """\
whole_gate_every = 5
[launch]
gate = "make test"
[[gates]]
name = "schema"
paths = ["schema"]
command = "make schema"
[[gates]]
name = "api"
paths = ["packages/api/**", "docs/*.md"]
command = "cd packages/api && npm test"
needs = ["schema"]
dependants = ["web"]
[[gates]]
name = "web"
paths = ["packages/web/**"]
command = "cd packages/web && npm test  # slow"
"""


def rules(text: str = FILE) -> GateRules:
    return read_rules(Table.parse("garrison.toml", text.encode()))


@pytest.mark.parametrize(("files", "selected"), [
    (["packages/web/a.js"], ("web",)),
    (["packages/api/deep/er/a.js"], ("api", "web")),
    (["schema/x.sql"], ("schema", "api", "web")),
    (["docs/a.md"], ("api", "web")),
    (["docs/more/a.md"], ()),
    (["packages/web/a.js", "README"], ()),
    (["packages/webs/a.js"], ()),
    (["packages/web/garrison.toml"], ()),
    (["garrison.toml"], ()),
    ([], ()),
])
def test_a_change_selects_the_gates_of_its_paths_and_their_dependants_or_the_whole_one(files, selected):
    assert rules().select(files) == selected


@pytest.mark.parametrize(("pattern", "file", "is_match"), [
    ("a", "a/b/c", True), ("a", "a", True), ("a", "ab/c", False), ("a/", "a/b", True), ("a/*", "a/b", True),
    ("a/*", "a/b/c", False), ("a/**", "a/b/c", True), ("**/x.py", "x.py", True), ("**/x.py", "a/b/x.py", True),
    ("**/x.py", "a/ax.py", False), ("a/**/z", "a/z", True), ("a/**/z", "a/b/c/z", True), ("a/**/z", "b/z", False),
    ("*.md", "a.md", True), ("*.md", "d/a.md", False), ("[ab]/x", "b/x", True), ("[!ab]/x", "b/x", False),
    ("**", "any/thing", True), ("a?c", "abc", True), ("a?c/**", "a/c/d", False), ("a/[z-a]", "a/b", False),
    ("näh/**", "näh/x", True), ("a/b*c", "a/b\nc", True)])
def test_the_queue_and_the_checker_match_the_same_files(pattern, file, is_match):
    assert GateRule("g", (pattern,), "true").matches(file) is is_match
    assert checker.is_match(pattern, file) is is_match


def test_no_pattern_takes_long_for_a_hostile_path():
    rule = GateRule("g", ("**/" * 20 + "*a*" * 20 + "b",), "true")
    assert not rule.matches("/".join(["a" * 200] * 18))


def test_several_gates_are_one_command_with_isolated_parts():
    assert rules().command(("web",)) == "cd packages/web && npm test  # slow"
    assert rules().command(("schema", "web")) == "(make schema) && (cd packages/web && npm test  # slow\n)"
    assert rules().command(("gone",)) is None


@pytest.mark.parametrize(("text", "said"), [
    ('[[gates]]\nname = "a"\npaths = ["a"]\n', "garrison.toml:1: [[gates]] a needs command"),
    ('[[gates]]\npaths = ["a"]\ncommand = "x"\n', "this gate needs name"),
    ('[[gates]]\nname = "a"\npaths = ["a"]\ncommand = "x"\n' * 2, "garrison.toml:5: [[gates]] name='a' is that of"),
    ('[[gates]]\nname = "a"\npaths = ["../x"]\ncommand = "x"\n', "should be a pattern of files from the top"),
    ('[[gates]]\nname = "api"\npaths = ["a"]\ncommand = "x"\nneeds = ["ap"]\n', "did you mean api?"),
    ('[[gates]]\nname = "a,b"\npaths = ["a"]\ncommand = "x"\n', "a name of letters, digits, dots and dashes"),
    ('[[gates]]\nname = "a"\npath = ["a"]\n', "path is not a setting; did you mean paths?"),
    ('[gates]\nname = "a"\n', "should be written as [[gates]]"),
    ("gates = [1]\n", "should be a table with"),
    ("whole_gate_every = 0\n", "whole_gate_every=0 should be a whole number"),
])
def test_a_wrong_rule_is_refused_at_its_line_and_on_a_target_leaves_the_whole_gate(text, said):
    with pytest.raises(UsageError) as error:
        rules(text)
    assert said in str(error.value)
    unread = parse_rules(text.encode())
    assert unread.select(["a/x"]) == () and said in unread.problem


def book(state: QueueState, text: str = FILE) -> GateBook:
    return GateBook(QueueConfig("make test"), parse_rules(text.encode()), {"PATH": "/bin"})


def test_gates_by_path_never_count_for_the_whole_gate_which_counts_for_all():
    state = QueueState()
    found = book(state)
    web, both = found.of(("web",)), found.of(("api", "web"))
    assert web is not None and both is not None and len({web.key, both.key, found.whole.key}) == 3
    state.verdicts.green["tree", both.key] = None
    state.verdicts.record_run(SetRun(("e",), "tree", both.key, "base", "green", 1, gates=both.names))
    assert found.find_passed(state, "tree", found.whole) is None
    assert found.find_passed(state, "tree", found.of(("schema", "api", "web"))) is None
    assert found.find_passed(state, "tree", web) == both, "it was tested with more"
    assert found.find_passed(state, "other", web) is None
    state.verdicts.green["other", found.whole.key] = None
    assert found.find_passed(state, "other", web) == found.whole
    same = book(state, FILE.replace('"make schema"', '"make test"'))
    assert same.of(("schema",)) == same.whole and same.find_passed(state, "other", same.whole) == same.whole
    changed = book(state, FILE.replace("cd packages/web", "cd packages/web2"))
    assert changed.find_passed(state, "tree", changed.of(("web",))) is None, "the rule has another command now"


def test_the_whole_gate_is_due_for_one_of_n_entries_and_restarts_the_count():
    state = QueueState(partial_landings=(("t1", ("a", "b")), ("t2", ("c",))))
    found, files = book(state), ["packages/web/a.js"]
    assert landed_since_whole(state, found.whole.key) == ("a", "b", "c")
    assert found.choose(state, ["d"], files).names == ("web",)
    assert found.choose(state, ["d", "e"], files).is_whole
    state.verdicts.green["t1", found.whole.key] = None
    assert landed_since_whole(state, found.whole.key) == ("c",)
    assert found.choose(state, ["d", "e"], files).names == ("web",)
    assert book(state, FILE.replace("= 5", "= 1")).choose(state, ["d"], files).is_whole
