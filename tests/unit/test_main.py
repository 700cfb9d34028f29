"""The one place where an error becomes a line and an exit code."""

from __future__ import annotations

import sys

import pytest

from garrison.cli.main import main


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_platforms_are_refused_in_a_line(platform: str, monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert main(["home"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"garrison: garrison runs on Linux, this is {platform}; use a Linux machine, container or VM\n"
