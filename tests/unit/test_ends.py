"""How a command ended is read from its exit code once, as a value."""

from __future__ import annotations

import pytest

from garrison.records.ends import End, EndKind


@pytest.mark.parametrize(("code", "timed_out", "kind", "number"), [
    (0, False, EndKind.EXIT, 0), (3, False, EndKind.EXIT, 3), (128, False, EndKind.EXIT, 128),
    (-9, False, EndKind.SIGNAL, 9), (137, False, EndKind.SIGNAL, 9), (255, False, EndKind.EXIT, 255),
    (-15, True, EndKind.TIMEOUT, -15),
])
def test_an_exit_code_is_read_as_shells_give_it(code: int, timed_out: bool, kind: EndKind, number: int) -> None:
    assert End.of_exit(code, timed_out=timed_out) == End(kind, number)
