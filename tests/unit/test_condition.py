"""The condition language, its errors with their offset, the keys of a condition; and outcomes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.errors import UsageError
from garrison.pipeline.condition import ConditionSyntax, clauses_of, holds, keys_of, parse_condition
from garrison.pipeline.outcome import (
    FAIL,
    PARTIAL,
    RETRY,
    SKIPPED,
    STATUSES,
    SUCCESS,
    Outcome,
    check_json,
    normalize_label,
    normalize_status,
)
from garrison.records.record import from_data
from garrison.values import asdict

CONTEXT: dict[str, Any] = {
    "x": "1", "n": 3, "f": 2.5, "flag": True, "off": False, "empty": "", "none": None, "name": "Ada Lovelace",
    "session.mode": "plan", "context.whole": "w", "list": ["a", "b", 3], "map": {"in": {"deep": 7}}, "word": "false",
    "text_number": "10", "a.b": {"c.d": "far"}, "outcome": "success",
}


def test(text: str, status: str = SUCCESS, label: str = "") -> bool:
    return holds(parse_condition(text), Outcome(status, label), CONTEXT)


test.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", [
    "", "   ", "true", "outcome=success", "outcome = success", "outcome==success", 'outcome="success"',
    "outcome='success'", "outcome=passed", "outcome=OK", "pass", "success", "succeeded", "outcome!=fail", "!fail",
    "!(outcome=fail)", "outcome=success && x=1", "outcome=fail || x=1", "outcome=fail || outcome=fail || x=1",
    "x=2 && x=1 || x=1", "(x=2 || x=1) && n=3", "!(x=2 && n=3)", "!!pass", "x=1", "context.x=1", "$x=1", "$context.x=1",
    "context.session.mode=plan", "session.mode=plan", "context.whole=w", "n=3", "n=3.0", "n!=4", "f=2.5", "flag=true",
    "flag=True", "flag", "off=false", "!off", "!empty", "!missing", "!word", "none=\"\"", 'missing=""', "missing!=x",
    "name=Ada Lovelace", 'name="Ada Lovelace"', "name contains Love", "list contains a", "list contains 3",
    "map contains in", "map.in.deep=7", "context.map.in.deep=7", "a.b.c.d=far", "n>2", "n>=3", "n<4", "n<=3", "f<3",
    "text_number>9", "n > 2 && n < 4", "context.outcome=ok", "name!=ada lovelace", "x",
])
def test_true_conditions(text: str) -> None:
    assert test(text)


@pytest.mark.parametrize("text", [
    "false", "outcome=fail", "fail", "partial", "outcome!=success", "outcome=Failed", "x=2", "n=33", "x!=1",
    "missing=x", "missing", "n>3", "n<3", "name>3", "missing<1", "flag>0", "n>abc", "name=ada lovelace", "word",
    "name contains love", "list contains z", "list contains ab", "map.in=7", "outcome=retry || x=2", "pass && x=2",
    "off", "none", "empty", "outcome=needs_review", "session=plan", "preferred_label=x",
])
def test_false_conditions(text: str) -> None:
    assert not test(text)


def test_and_binds_tighter_than_or_and_an_unknown_outcome_compares_the_label() -> None:
    assert test("pass || fail && fail")
    assert not test("(pass || fail) && fail")
    assert test("outcome=needs_review", label="needs_review")
    assert not test("outcome!=needs_review", label="Needs_Review")


def test_labels_are_compared_without_accelerator_and_case() -> None:
    for label in ("Yes", "yes", "[Y] Yes", "Y) Yes", "Y - Yes", "  [y]yes ", "Y: Yes"):
        assert normalize_label(label) == "yes"
        assert test("preferred_label=Yes", label=label)
        assert test('preferred_label="[Y] Yes"', label=label)
        assert not test("preferred_label=No", label=label)
    for label in ("A-B", "fix-it", "[Y]", "Y)", "Really - yes", "e2e", "", "Y"):
        assert normalize_label(label) == label.lower()


@pytest.mark.parametrize(("text", "offset"), [
    ("outcome=", 8), ("=x", 0), ("a b", 2), ("(a", 0), ("((a)", 0), ("a)", 1), ("a=1 or b=2", 8), ("a && ", 5),
    ("&& a", 0), ("a || || b", 5), ("!", 1), ("x='y", 2), ('x="y', 2), ("x ~ y", 2), ("a==b=c", 4), ("a=b!", 3),
    ("()", 1), ("1x=3", 0), ("a &  b", 2), ("outcome===success", 9), ("(a b)", 3), ("x contains", 10), ("( a", 0),
    ("(a) b", 4), ("!(a && (b=f(x)", 7), ("x='a' y", 6), ("a=x) && b", 3),
])
def test_a_syntax_error_has_its_offset(text: str, offset: int) -> None:
    with pytest.raises(ConditionSyntax) as error:
        parse_condition(text)
    assert error.value.offset == offset, error.value
    assert "\n" not in str(error.value)
    assert f"character {offset + 1}" in str(error.value)


@pytest.mark.parametrize(("text", "message"), [
    ("a &&", "a key is missing at the end; write outcome=success or context.KEY=VALUE"),
    ("=x", "expected a key here: outcome, preferred_label or context.KEY"),
    ("x='y", "this quote is never closed"),
    ("a!=", 'a value is missing after !=; write "" for an empty one'),
    ("(a contains )", 'a value is missing after contains; write "" for an empty one'),
    ("a=1 or b=2", "= in an unquoted value; write && or || between comparisons, or quote the value"),
    ("a && (b=f(x)", "this ( is never closed; add a )"),
    ("(a b)", "&&, || or ) is missing"),
    ("a=1)", "this ) closes nothing; remove it"),
    ("(a) b", "&& or || is missing before this; quote a value that has such characters"),
    ("!" * 51 + "a", "nested deeper than 50; simplify it"),
    ("(" * 51, "nested deeper than 50; simplify it"),
])
def test_an_error_names_the_problem_and_the_fix(text: str, message: str) -> None:
    with pytest.raises(ConditionSyntax) as error:
        parse_condition(text)
    assert error.value.message == message


def test_brackets_quotes_and_spaces_in_values() -> None:
    for text, value in (
            ("a=f(x", "f(x"), ("(a=f(x))", "f(x)"), ("a=(x (y) z) w ", "(x (y) z) w"), ("a=don't", "don't"),
            ("a=x & y | z", "x & y | z"), ("a=( x )&&b", "( x )"), (r'a="\""', '\"'), ("(a=go (again) && pass)",
                                                                                        "go (again)"),
            (r'a="a && b || \"c\" = (d)"', 'a && b || "c" = (d)'),
            ("a='a && b || \"c\" = (d)'", 'a && b || "c" = (d)')):
        assert clauses_of(parse_condition(text))[0].value == value
    for text in ("(a=f(x)", "a='it''s'"):
        with pytest.raises(ConditionSyntax):
            parse_condition(text)


def test_keys_and_clauses_in_their_order_and_what_is_always_true() -> None:
    condition = parse_condition("$a.b=1 && (context.x || !outcome=fail) && a.b>2 && pass")
    assert keys_of(condition) == ("a.b", "context.x", "outcome")
    assert [clause.op for clause in clauses_of(condition)] == ["=", "", "=", ">", "="]
    assert keys_of(parse_condition("")) == ()
    assert parse_condition(" ").is_always_true
    assert parse_condition("true").is_always_true
    assert not parse_condition("pass").is_always_true


def test_length_costs_linear_time_and_depth_is_bounded() -> None:
    def cost(clauses: int) -> float:
        text = " && ".join(f"context.key{number} = some value {number}" for number in range(clauses))
        began = time.process_time()
        parse_condition(text)
        return time.process_time() - began

    cost(100)
    assert cost(5_000) < 20 * 10 * max(cost(500), 0.001)
    for text in ("!" * 10_000 + "a", "(" * 10_000 + "a", "((((" * 100):
        with pytest.raises(ConditionSyntax, match="nested deeper"):
            parse_condition(text)


LEAVES = st.sampled_from([
    ("outcome=success", "status == 'success'"), ("fail", "status == 'fail'"), ("x=1", "True"), ("x!=1", "False"),
    ("n>2", "True"), ("missing", "False"), ("flag", "True"), ("n<2 ", "False"), ("true", "True"), ("false", "False"),
])


def joined(by: str, meaning: str) -> Any:
    return lambda parts: (f"({by.join(one for one, _ in parts)})", f"({meaning.join(two for _, two in parts)})")


@given(st.recursive(LEAVES, lambda inner: st.one_of(
    inner.map(lambda pair: (f"!({pair[0]})", f"(not {pair[1]})")),
    st.lists(inner, min_size=2, max_size=3).map(joined(" && ", " and ")),
    st.lists(inner, min_size=2, max_size=3).map(joined("||", " or "))), max_leaves=12),
    st.sampled_from([SUCCESS, FAIL, PARTIAL, SKIPPED]))
def test_it_evaluates_as_the_same_python_expression(pair: tuple[str, str], status: str) -> None:
    assert test(pair[0], status) is eval(pair[1], {"status": status})


@given(st.text(alphabet="ab=!<>&|()'\" .$contains\\1", max_size=25), st.sampled_from(STATUSES))
def test_any_text_parses_or_is_refused_and_evaluation_never_raises(text: str, status: str) -> None:
    try:
        condition = parse_condition(text)
    except ConditionSyntax as error:
        assert 0 <= error.offset <= len(text)
    else:
        assert holds(condition, Outcome(status), CONTEXT) in (True, False)
        assert parse_condition(condition.text).tree == condition.tree


# ---- outcomes: status words, their JSON, and status files of agents


@pytest.mark.parametrize(("word", "status"), [
    ("ok", SUCCESS), ("Passed", SUCCESS), ("succeeded", SUCCESS), (" done ", SUCCESS), ("completed", SUCCESS),
    ("failed", FAIL), ("ERROR", FAIL), ("partial", PARTIAL), ("Partial-Success", PARTIAL), ("partial success", PARTIAL),
    ("retry", RETRY), ("skip", SKIPPED), ("yes", None), ("", None), (None, None), (3, None),
])
def test_status_words_are_normalized(word: object, status: str | None) -> None:
    assert normalize_status(word) == status


def test_an_outcome_normalizes_its_status_and_suggestions() -> None:
    assert Outcome("Passed") == Outcome(SUCCESS)
    with pytest.raises(UsageError, match="'perhaps' is not a status; write success, partial_success, retry, fail"):
        Outcome("perhaps")
    assert Outcome("ok", suggested_next_ids=["a", "b"]).suggested_next_ids == ("a", "b")  # type: ignore[arg-type]
    assert Outcome("ok", suggested_next_ids="a").suggested_next_ids == ("a",)  # type: ignore[arg-type]
    assert [Outcome(word).good for word in STATUSES] == [True, True, False, False, True]
    assert [Outcome(word).failed for word in STATUSES] == [False, False, False, True, False]


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
                    max_leaves=5)


@given(st.builds(Outcome, st.sampled_from(STATUSES), st.text(max_size=5), st.lists(st.text(max_size=3)).map(tuple),
                 st.dictionaries(st.text(max_size=4), JSON, max_size=3), st.text(max_size=3), st.text(max_size=3),
                 st.text(max_size=3), st.text(max_size=3)))
def test_an_outcome_survives_json(outcome: Outcome) -> None:
    assert from_data(Outcome, json.loads(json.dumps(asdict(outcome)))) == outcome


@pytest.mark.parametrize("value", [{1, 2}, object(), b"x", float("nan"), {1: "x"}, (1, 2)])
def test_a_value_that_is_not_json_is_refused_with_its_key(value: object) -> None:
    with pytest.raises(UsageError, match=r"'result' .* cannot be stored as JSON"):
        check_json({"fine": {"a": [1, None, "x", 1.5]}, "result": value})
