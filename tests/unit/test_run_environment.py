"""Environment of a run's processes: what the launch recorded holds, also where cron resumes the run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from garrison.processes.runtime import Runtime
from garrison.records.run import Launch

NEW = {"sandbox": "sandbox: bubblewrap"}


@pytest.mark.parametrize(("recorded", "environ", "mode"), [
    ({**NEW, "sandbox_mode": "none"}, {}, "none"),
    ({**NEW, "sandbox_mode": "none"}, {"GARRISON_SANDBOX": "bubblewrap"}, "bubblewrap"),
    (NEW, {}, None),
    ({}, {}, "none"),
    ({"adhoc": True}, {}, None),
], ids=["as launched", "stated at the resume", "as configured", "of an older edition", "by hand"])
def test_a_run_keeps_the_mode_of_its_sandbox(recorded: dict[str, Any], environ: dict[str, str],
                                             mode: str | None) -> None:
    launch = Launch("r1", "g", "/repo", "main", "0", "now", **recorded)
    runtime: Any = SimpleNamespace(environ=environ, home=Path("/home"))
    assert Runtime.environment(runtime, launch, {}).get("GARRISON_SANDBOX") == mode


@pytest.mark.parametrize(("recorded", "auto"), [
    ({"sandbox": "sandbox: landlock 4, which leaves gaps"}, "landlock"), (NEW, None), ({}, None)])
def test_what_auto_was_to_an_earlier_version_holds_for_its_runs(recorded: dict[str, Any], auto: str | None) -> None:
    launch = Launch("r1", "g", "/repo", "main", "0", "now", **recorded)
    runtime: Any = SimpleNamespace(environ={}, home=Path("/home"))
    assert Runtime.environment(runtime, launch, {}).get("GARRISON_SANDBOX_AUTO") == auto
