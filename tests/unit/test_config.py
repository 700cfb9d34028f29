"""Where state lives, and how patient the layers are."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison import directories
from garrison.config import Timing
from garrison.directories import find_home, homes_list, trees_root
from garrison.errors import UsageError
from garrison.values import field_names, fields_of


def test_defaults_and_overrides() -> None:
    assert Timing.read({}) == Timing()
    assert Timing.read({"GARRISON_RESCAN": "0.25", "RESCAN": "9", "GARRISON_GATE_TIMEOUT": "60"}) == Timing(
        rescan=0.25, gate_timeout=60.0)


def test_every_wait_can_be_set() -> None:
    names = list(field_names(Timing))
    read = Timing.read({f"GARRISON_{name.upper()}": str(number + 1) for number, name in enumerate(names)})
    assert tuple(fields_of(read).values()) == tuple(float(number + 1) for number in range(len(names)))


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "nan", "inf", "1e9", "5s"])
def test_no_number_of_seconds(text: str) -> None:
    with pytest.raises(UsageError, match=r"GARRISON_RESCAN='.*' should be a number of seconds above 0"):
        Timing.read({"GARRISON_RESCAN": text})


def test_a_process_stops_before_its_parents_deadline() -> None:
    timing = Timing()
    assert timing.stop_orchestrator < timing.stop_runner < timing.stop_guardian < timing.stop_launcher


def test_the_home_is_named_else_the_checkouts_else_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"GARRISON_HOME": "/b", "XDG_STATE_HOME": "/x"}
    assert find_home("/a", named) == Path("/a")
    assert find_home(None, named) == Path("/b")
    monkeypatch.setattr(directories, "checkout", lambda: Path("/src"))
    assert find_home(None, {"XDG_STATE_HOME": "/x"}) == Path("/src/state")
    monkeypatch.setattr(directories, "checkout", lambda: None)
    assert find_home(None, {"GARRISON_HOME": "", "XDG_STATE_HOME": "/x"}) == Path("/x/garrison")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert find_home(None, {}) == tmp_path / ".local/state/garrison"


def test_the_home_is_absolute_and_a_link_stays_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert find_home("link/../link", {}) == tmp_path / "link"
    assert find_home(None, {"GARRISON_HOME": "real"}) == tmp_path / "real"


def test_trees_and_the_list_of_homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trees_root({"GARRISON_TREES": "/t", "XDG_CACHE_HOME": "/c"}) == Path("/t")
    assert trees_root({"XDG_CACHE_HOME": "/c"}) == Path("/c/garrison")
    assert homes_list({"XDG_STATE_HOME": "/x"}) == Path("/x/garrison/homes")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert trees_root({}) == tmp_path / ".cache/garrison"


def test_the_checkout_is_this_one() -> None:
    found = directories.checkout()
    assert found is not None and (found / "tests/unit/test_config.py").is_file()
