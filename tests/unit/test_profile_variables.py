"""Variables in the texts of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.agents.registry import check_program, check_variables, variables_of
from garrison.agents.variables import expand
from garrison.errors import GarrisonError, UsageError


@pytest.mark.parametrize(("text", "expected"), [
    ("no variable: $HOME {x} ${} $", "no variable: $HOME {x} ${} $"),
    ('{"url": "${BASE_URL}/x"}', '{"url": "http://127.0.0.1:61280/openai/v1/x"}'),
    ("${BASE_URL:-https://example.org}", "http://127.0.0.1:61280/openai/v1"),
    ("${A}", "${B}"),  # what a value contains is not read again
    ("${OTHER:-https://example.org/v1}", "https://example.org/v1"), ("${EMPTY:-none} ${OTHER:-}", "none "),
    ("{env:BASE_URL} ${BASE_URL}${BASE_URL}", "{env:BASE_URL} " + 2 * "http://127.0.0.1:61280/openai/v1")])
def test_a_variable_is_replaced(text: str, expected: str) -> None:
    values = {"BASE_URL": "http://127.0.0.1:61280/openai/v1", "EMPTY": "", "A": "${B}", "B": "no"}
    assert expand(text, values, "here") == expected
    with pytest.raises(UsageError, match=r"^\[agents.x\]: set.Y names \$\{NONE\}, which is not set; name it in env"):
        expand(f"{text} ${{NONE}}", values, "[agents.x]: set.Y")


def write(home: Path, lines: str) -> Path:
    (home / "config.toml").write_text(f"[agents.x]\n{lines}\n")
    return home


PATH = {"PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(("lines", "where", "name"), [
    ('kind = "acp"\nargv = ["sh", "${URL}"]', "argv", r"\$\{URL\}"),
    ('kind = "acp"\nargv = ["sh"]\nset = {A = "x ${URL}"}', "set.A", r"\$\{URL\}"),
    ('kind = "acp"\nargv = ["sh"]\ntakeover = ["${URL}", "{session}"]', "argv", r"\$\{URL\}"),
    ('argv = ["sh"]\nset = {A = "${URL}"}', "set.A", r"\$\{URL\}"),
    ('argv = ["sh", "{env:URL}"]', "argv", r"\{env:URL\}")])
def test_a_variable_that_is_not_set_is_refused_before_a_run(
        tmp_path: Path, lines: str, where: str, name: str) -> None:
    home = write(tmp_path, lines)
    with pytest.raises(GarrisonError, match=rf"^agent x: {where} names {name}, which is not set; name it in env"):
        check_program("x", home, PATH)
    check_program("x", home, {**PATH, "URL": "http://x"})
    with pytest.raises(GarrisonError, match="which is not set; name it in env"):  # set, but not passed to the agent
        check_program("x", home, {**PATH, "URL": "http://x"}, passed=())
    check_program("x", home, {**PATH, "URL": "http://x"}, passed=("URL",))
    write(tmp_path, f'{lines}\nenv = ["URL"]')
    check_program("x", home, {**PATH, "URL": "http://x"}, passed=())


def test_variables_of_garrison_and_defaults_need_not_be_set(tmp_path: Path) -> None:
    home = write(tmp_path, 'kind = "acp"\nargv = ["sh", "${GARRISON_NODE}", "${HTTPS_PROXY}"]\n'
                 'env = ["OPENAI_API_KEY"]\nset = {A = "${URL:-none}", B = "${OPENAI_BASE_URL}"}')
    check_variables("x", home, {**PATH, "OPENAI_API_KEY": "sk-1"}, passed=())
    with pytest.raises(UsageError, match=r"set\.B names"):  # without a key, no proxy has it
        check_variables("x", home, PATH, passed=())


def test_a_base_url_is_expanded_before_the_network_is_chosen(tmp_path: Path) -> None:
    home = write(tmp_path, 'kind = "acp"\nargv = ["sh"]\n'
                 'set = {OPENAI_BASE_URL = "${GATEWAY}/v1", C = "${HTTP_PROXY}"}')
    assert variables_of("x", home, {"GATEWAY": "http://gate"}) == {
        "OPENAI_BASE_URL": "http://gate/v1", "C": "${HTTP_PROXY}"}
    with pytest.raises(UsageError, match=r"^agent x: set.OPENAI_BASE_URL names \$\{GATEWAY\}"):
        variables_of("x", home, {})
