"""How a command ended is read from its exit code once, as a value."""

from __future__ import annotations

import pytest

from garrison.ends import End, EndKind


@pytest.mark.parametrize(("end", "kind", "number"), [
    (End(0), EndKind.EXIT, 0), (End(3), EndKind.EXIT, 0), (End(128), EndKind.EXIT, 0), (End(255), EndKind.EXIT, 0),
    (End(126), EndKind.NOT_RUN, 0), (End(127), EndKind.NOT_RUN, 0), (End(129 + 31), EndKind.EXIT, 0),
    (End(-9), EndKind.SIGNAL, 9), (End(137), EndKind.SIGNAL, 9), (End(130), EndKind.SIGNAL, 2),
    (End(-15, timed_out=True), EndKind.TIMEOUT, 0), (End(0, timed_out=True), EndKind.TIMEOUT, 0),
    (End(None), EndKind.LOST, 0),
], ids=str)
def test_an_exit_code_is_read_as_shells_give_it(end: End, kind: EndKind, number: int) -> None:
    assert (end.kind, end.signal) == (kind, number)
    assert end.ok is (end == End(0))
    assert end.killed is (number == 9)
