"""Incoming refs: each claim has one."""

from __future__ import annotations

import pytest

from garrison.errors import UsageError
from garrison.hosts.access import incoming_ref
from garrison.hosts.attempts import AttemptId, ClaimToken
from garrison.records.hosts import check_host

MINE = "refs/garrison/incoming/box2/r1/work/2-3"


def test_the_ref_names_the_claim() -> None:
    assert incoming_ref("box2", ClaimToken(AttemptId("r1", "work", 2), 3)) == MINE


@pytest.mark.parametrize("host", ["", "../x", "Box", "-x", "a.lock", "a/b", "x\n", "a" * 64])
def test_a_hosts_name_fits_into_a_ref(host: str) -> None:
    with pytest.raises(UsageError, match="not a host's name"):
        check_host(host)


@pytest.mark.parametrize("text", ["", "r1", "r1/work", "r1/work/x", "r1/work/0", "r1/work/1/2", "R/work/1", "r1/../1"])
def test_malformed_attempts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        AttemptId.parse(text)
    assert AttemptId.parse("r1/work/2") == AttemptId("r1", "work", 2)
