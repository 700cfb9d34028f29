"""Incoming refs: a worker may write one, and delete none."""

from __future__ import annotations

import pytest

from garrison.dispatch.incoming import find_refusal, incoming_ref, parse_updates
from garrison.dispatch.records import AttemptId, Token
from garrison.errors import UsageError
from garrison.records.hosts import check_host

MINE = "refs/garrison/incoming/box2/r1/work/2-3"
OLD, NEW, NONE = "1" * 40, "2" * 40, "0" * 40


def test_the_ref_names_the_claim() -> None:
    assert incoming_ref("box2", Token(AttemptId("r1", "work", 2), 3)) == MINE


@pytest.mark.parametrize("host", ["", "../x", "Box", "-x", "a.lock", "a/b", "x\n", "a" * 64])
def test_a_hosts_name_fits_into_a_ref(host: str) -> None:
    with pytest.raises(UsageError, match="not a host's name"):
        check_host(host)


@pytest.mark.parametrize(("updates", "refusal"), [
    ("", ""),
    (f"{NONE} {NEW} {MINE}\n", ""),
    (f"{OLD} {NEW} {MINE}\n", ""),
    (f"{OLD} {NEW} {MINE}-4\n", "not this worker's to write"),
    (f"{OLD} {NEW} {MINE}/x\n", "not this worker's to write"),
    (f"{OLD} {NEW} refs/garrison/incoming/box2/r1/work/2-4\n", "not this worker's to write"),
    (f"{OLD} {NEW} refs/garrison/incoming/box3/r1/work/2-3\n", "not this worker's to write"),
    (f"{OLD} {NEW} refs/heads/main\n", "not this worker's to write"),
    (f"{OLD} {NEW} {MINE}\n{OLD} {NEW} refs/heads/main\n", "refs/heads/main is not this worker's to write"),
    (f"{OLD} {NONE} {MINE}\n", "may not be deleted"),
])
def test_what_a_push_may_write(updates: str, refusal: str) -> None:
    found = find_refusal(parse_updates(updates), MINE)
    assert refusal in found and bool(refusal) == bool(found)


@pytest.mark.parametrize("line", ["x", f"{OLD} {NEW}", f"{OLD} {NEW} a b", f"{OLD} {NEW[:-1]} {MINE}"])
def test_malformed_updates_are_refused(line: str) -> None:
    with pytest.raises(UsageError, match="not an update of a ref"):
        parse_updates(line)


@pytest.mark.parametrize("text", ["", "r1", "r1/work", "r1/work/x", "r1/work/0", "r1/work/1/2", "R/work/1", "r1/../1"])
def test_malformed_attempts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        AttemptId.parse(text)
    assert AttemptId.parse("r1/work/2") == AttemptId("r1", "work", 2)
