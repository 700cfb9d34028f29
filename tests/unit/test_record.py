"""Records to and from JSON: every field's type is checked, and a refusal names its file."""

from __future__ import annotations

import json
import stat
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.errors import NewerSchema, RecordCorrupt
from garrison.records import atomic, hook, identity, record, signals
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.names import ROLES
from garrison.records.run import Launch, Result, RunnerState, Task
from garrison.records.signals import Signal
from garrison.system.clock import from_iso, iso
from garrison.values import field_names, fields_of, replace

AT = "2026-01-31T12:00:00.000000Z"
WHERE = "identities/runner-a@r.json"

TEXT = st.text(max_size=30)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(TEXT, inner, max_size=3), max_leaves=5)
OBJECT = st.dictionaries(TEXT, JSON, max_size=3)
TIMES = st.floats(0, 4e9).map(iso)


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


IDENTITIES = st.builds(
    Identity, agent_id=TEXT, role=st.sampled_from(ROLES), name=TEXT, run_id=TEXT, created_at=TIMES, session_id=TEXT,
    incarnation=st.integers(1), pid=maybe(st.integers()), start_ticks=maybe(st.integers()), pid_ns=TEXT, boot_id=TEXT,
    host=TEXT, parent=maybe(st.dictionaries(TEXT, TEXT, max_size=2)), worktree=maybe(TEXT), branch=maybe(TEXT),
    tmux=maybe(OBJECT), status=st.sampled_from(list(identity.STATUSES)), last_heartbeat=st.just("") | TIMES,
    spawn_deadline=maybe(TIMES), crashed_at=maybe(TEXT), terminated_at=maybe(TEXT),
    exit=st.none() | st.integers() | TEXT, predecessor_id=maybe(TEXT), respawns=st.integers(), metadata=OBJECT)
HOOKS = st.builds(
    Hook, hook_id=TEXT, role=TEXT, name=TEXT, run_id=TEXT, created_at=TEXT, updated_at=TEXT,
    phase=st.sampled_from(list(hook.PHASES)), incarnation=st.integers(), phase_history=st.lists(OBJECT, max_size=3),
    last_committed_node=maybe(TEXT), resumption_instructions=maybe(TEXT), predecessor_hook_id=maybe(TEXT),
    claude_session_id=maybe(TEXT), merged_at=maybe(TEXT))
SIGNALS = st.builds(
    Signal, id=TEXT, source=OBJECT, target=OBJECT, signal_type=st.sampled_from(sorted(signals.TYPES)), run_id=TEXT,
    timestamp=TEXT, node_id=maybe(TEXT), attempt=st.integers(), payload=OBJECT)


@given(st.one_of(IDENTITIES, HOOKS, SIGNALS))
def test_a_record_survives_encoding(value: Any) -> None:
    assert record.decode(type(value), record.encode(value), WHERE) == value


def test_a_record_is_readable_text() -> None:
    text = record.encode(Signal("1", {"role": "runner"}, {}, "GUIDANCE", "r", AT,
                                payload={"text": "größer 🦀"})).decode()
    assert text.startswith('{\n  "schema": 1,\n  "id": "1",') and text.endswith("}\n")
    assert "größer 🦀" in text


@given(OBJECT | st.lists(JSON, max_size=3) | st.floats() | st.lists(st.floats(), max_size=2)
       | st.dictionaries(st.integers() | st.booleans() | st.none(), OBJECT, max_size=2))
def test_a_record_is_json_with_an_indent(value: Any) -> None:
    raw = record.encode(replace(Hook("h", "runner", "a", "r", AT, AT), phase_history=value))
    body = {"schema": 1, **fields_of(Hook("h", "runner", "a", "r", AT, AT)), "phase_history": value}
    told = json.dumps({name: body[name] for name in ("schema", *Hook.__match_args__)}, indent=2, ensure_ascii=False)
    assert raw == (told + "\n").encode(errors="backslashreplace")


def test_undecodable_bytes_are_escaped() -> None:
    value = Hook("h", "runner", "a", "r", AT, AT, resumption_instructions="caf\udce9 \ud83d")
    raw = record.encode(value)
    assert raw.decode("utf-8", errors="strict")
    assert record.decode(Hook, raw, WHERE) == value


def wrong(kind: type[Any], name: str) -> list[Any]:
    """Return JSON values that do not fit a field's annotation."""
    samples: dict[str, Any] = {"str": "x", "int": 7, "float": 1.5, "bool": True, "dict": {}, "list": [], "None": None}
    options = {option.split("[")[0] for option in kind.__annotations__[name].split(" | ")}
    if "float" in options:
        options.add("int")
    return [value for of, value in samples.items() if of not in options]


KINDS = (Identity, Hook, Signal, Launch, Task, Result, RunnerState)


def required(kind: type[Any]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def smallest(kind: Any) -> dict[str, Any]:
    values = {"str": "x", "int": 1, "int | None": 1, "dict[str, Any]": {}, "dict[str, object]": {}, "str | None": "x"}
    body = {name: values[kind.__annotations__[name]] for name in required(kind)}
    fitting = {Signal: {"signal_type": "GUIDANCE"}, Result: {"status": "fail"}, Identity: {"created_at": AT}}
    return {**body, **fitting.get(kind, {})}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_its_type_checked_and_a_missing_one_is_named(kind: Any) -> None:
    found = record.from_dict(kind, smallest(kind), WHERE)
    assert record.from_dict(kind, {**smallest(kind), "colour": "blue"}, WHERE) == found, "an unknown field is dropped"
    for name in field_names(kind):
        for value in wrong(kind, name):
            with pytest.raises(RecordCorrupt, match=rf"{WHERE}: .*[$][.]{name}`"):
                record.from_dict(kind, {**smallest(kind), name: value}, WHERE)
    for name in required(kind):
        body = smallest(kind)
        del body[name]
        with pytest.raises(RecordCorrupt, match=f"missing required field `{name}`"):
            record.from_dict(kind, body, WHERE)


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b'"x"', b"7", b"\xff\xfe{}", b"\x00" * 40, b"{}",
                                  b"[" * 100_000, b'{"schema": "1"}', b'{"schema": null}'])
def test_a_foreign_file_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(RecordCorrupt) as caught:
        record.decode(Identity, data, WHERE)
    assert WHERE in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.path == WHERE


def test_a_newer_schema_is_refused_whatever_its_fields() -> None:
    with pytest.raises(NewerSchema, match="has schema 2, this garrison knows 1"):
        record.decode(Identity, b'{"schema": 2, "who": "knows"}', WHERE)


@pytest.mark.parametrize(("kind", "field", "value"), [
    (Identity, "status", "alive"), (Identity, "incarnation", 0), (Identity, "last_heartbeat", "yesterday"),
    (Identity, "created_at", ""), (Identity, "created_at", "then"),
    (Identity, "last_heartbeat", "2026-02-30T12:00:00.000000Z"), (Identity, "spawn_deadline", "soon"),
    (Hook, "phase", "done"), (Signal, "signal_type", "HELLO"), (Result, "status", "maybe")])
def test_a_value_outside_its_table_is_refused(kind: Any, field: str, value: Any) -> None:
    with pytest.raises(RecordCorrupt, match=rf"{WHERE}: .*(is none of|is neither|is below 1|not a time)"):
        record.from_dict(kind, {**smallest(kind), field: value}, WHERE)


def mangled(text: str, at: int, character: str) -> str:
    return text[:at] + character + text[at + 1:]


@given(st.one_of(TEXT, TIMES, st.builds(mangled, TIMES, st.integers(0, 26), st.sampled_from("0123456789-:TZ."))))
def test_timestamps_are_the_times_that_the_clock_can_read(text: str) -> None:
    assert record.is_timestamp(text) == readable(text)


@given(TIMES, st.integers(16, 27), st.sampled_from(["", *"0126789-:TZ.", "\u0663", "\x001", "12"]))
def test_a_cached_minute_is_still_validated(time: str, at: int, text: str) -> None:
    assert record.is_timestamp(time)
    assert record.is_timestamp(time)
    assert record.is_timestamp(mangled(time, at, text)) == readable(mangled(time, at, text))


def readable(text: str) -> bool:
    """Return whether the clock can read a time."""
    try:
        from_iso(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(("day", "good"), [("2024-02-29", True), ("2023-02-29", False), ("1900-02-29", False),
                                           ("2000-02-29", True),
                                           ("2026-04-31", False), ("2026-12-31", True), ("2026-00-01", False)])
def test_a_timestamp_has_a_day_of_the_calendar(day: str, good: bool) -> None:
    assert record.is_timestamp(f"{day}T23:59:59.999999Z") is good


def test_a_folder_and_its_new_parents_are_the_users_alone(tmp_path):
    folder = atomic.make_directory(tmp_path / "home/runs/r1")
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3
