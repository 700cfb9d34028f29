"""Variables in the texts of a profile."""

from __future__ import annotations

import pytest

from garrison.agents.variables import expand
from garrison.errors import UsageError


@pytest.mark.parametrize(("text", "expected"), [
    ("no variable: $HOME {x} ${} $", "no variable: $HOME {x} ${} $"),
    ('{"url": "${BASE_URL}/x"}', '{"url": "http://127.0.0.1:61280/openai/v1/x"}'),
    ("${BASE_URL:-https://example.org}", "http://127.0.0.1:61280/openai/v1"),
    ("${OTHER:-https://example.org/v1}", "https://example.org/v1"), ("${EMPTY:-none} ${OTHER:-}", "none "),
    ("{env:BASE_URL} ${BASE_URL}${BASE_URL}", "{env:BASE_URL} " + 2 * "http://127.0.0.1:61280/openai/v1")])
def test_a_variable_is_replaced(text: str, expected: str) -> None:
    assert expand(text, {"BASE_URL": "http://127.0.0.1:61280/openai/v1", "EMPTY": ""}, "here") == expected


def test_what_a_value_contains_is_not_read_again() -> None:
    assert expand("${A}", {"A": "${B}", "B": "no"}, "here") == "${B}"


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(UsageError, match=r"^\[agents.x\]: set.Y names \$\{NONE\}, which is not set; name it in env"):
        expand("a ${NONE}", {}, "[agents.x]: set.Y")
