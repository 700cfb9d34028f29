"""Names: which are refused, and full names there and back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.errors import UsageError
from garrison.records import names
from garrison.records.names import ROLES, Key, to_name, to_run_stem

RUNS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,31}", fullmatch=True)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", fullmatch=True).filter(lambda name: ".." not in name)
KEYS = st.builds(Key, st.sampled_from(ROLES), NAMES, st.one_of(st.just(""), RUNS))

NEVER = ["", " ", ".", "..", "../x", "a/b", "/", "a\\b", "é", "🦀", "a🦀", "a b", "a\n", "\n", "a\x00", "x" * 300,
         "$(id)", "a:b", "a@b", "*", "-", "~"]


@pytest.mark.parametrize(("check", "what", "good", "bad"), [
    (names.check_run, "not a run id", ["a", "0", "a-", "r1", "a" * 32, "0-9"],
     ["A", "Run", "a_b", "a.b", "-a", "a" * 33]),
    (names.check_node, "not a node name", ["a", "_", "A-b_9", "Z" * 48], ["1a", "a.b", "-a", "a" * 49]),
    (names.check_name, "not a name", ["a", "a.b", "a.", "_x-1.2", "N" * 64], ["9", ".a", "a..b", "a" * 65])])
def test_names_of_runs_nodes_and_processes_are_checked(check: Callable[[str], str], what: str, good: list[str],
                                                       bad: list[str]) -> None:
    assert [check(text) for text in good] == good
    for text in (*NEVER, *bad):
        with pytest.raises(UsageError, match=what):
            check(text)


@pytest.mark.parametrize("role", ["", "Runner", "agent", "launcher", "runner "])
def test_an_unknown_role_is_refused_and_a_key_checks_all_three_parts(role: str) -> None:
    with pytest.raises(UsageError, match="roles are launch, guardian, runner, orchestrator, processor"):
        names.check_role(role)
    for key in ((role, "a", "r"), ("runner", "a/b", "r"), ("runner", "a", "R")):
        with pytest.raises(UsageError):
            Key(*key)


@given(KEYS)
def test_full_names_there_and_back(key: Key) -> None:
    assert Key.parse(key.full) == key
    assert str(key) == key.full


def test_full_names_have_one_form_differ_by_case_and_sort() -> None:
    assert Key("runner", "a-b", "r-1").full == "runner-a-b@r-1"
    assert Key("orchestrator", "a").full == "orchestrator-a"
    assert names.launcher_key("r1").full == "launch@r1"
    assert Key.parse("launch@r1") == Key("launch", "launch", "r1")
    assert Key("launch", "other", "r1").full == "launch-other@r1"
    assert names.branch_name("r1", "Node") == "garrison/r1/Node"
    assert Key("runner", "A", "r") != Key("runner", "a", "r")
    assert sorted([Key("runner", "b", "r"), Key("guardian", "z", "r"), Key("runner", "a", "r")])[0].role == "guardian"


@pytest.mark.parametrize("text", [
    "", "runner", "runner-", "runner-@r", "runner-a@", "runner-a@R", "other-a@r", "runner-a..b@r",
    "runner-a@r\n", "runner-a@r@r", "guardian@r1", "launch-launch@r1", "Runner-a@r", "runner-a/b", ".runner-a@r",
    "runner-" + "a" * 300])
def test_an_invalid_full_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"not a full name|not a name"):
        Key.parse(text)


@given(st.text(max_size=80))
def test_names_that_parse_have_one_spelling(text: str) -> None:
    try:
        key = Key.parse(text)
    except UsageError:
        return
    assert key.full == text


@given(st.text(max_size=300))
def test_any_text_becomes_a_valid_name(text: str) -> None:
    assert names.check_name(to_name(text)) == names.check_node(to_name(text))
    assert names.check_run(to_run_stem(text)) and len(to_run_stem(text)) <= 20


def test_a_name_made_of_a_text_keeps_its_valid_parts() -> None:
    assert to_name("my pipe.v2") == "my_pipe_v2"
    assert to_name("9lives") == "_9lives"
    assert to_name("🦀") == "_"
    assert to_run_stem("My Pipe_v2!") == "my-pipe-v2"
    assert to_run_stem("🦀") == "run"
