"""The real CLI as agent and as validator in a container, run by
`python -m garrison.testing.isolation --by root -- pytest tests/claude/test_containers.py`. Skipped without Podman."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from claude_scripts import TOOL, again, report, steps
from container_support import IMAGE, missing
from garrison.testing.turn import say, use
from support import git, wait_for


@pytest.mark.skipif(os.environ.get("GARRISON_ISOLATION") != "root", reason="needs `--by root` of the isolation")
def test_an_agent_and_its_validator_work_in_containers(scene, place):
    if reason := missing():
        pytest.skip(reason)
    place.use_mode("container")
    config = place.home / "config.toml"
    config.write_text(config.read_text().replace("[sandbox]\n", f'[sandbox]\nimage = "{IMAGE}"\n', 1))
    verdict = {"verdict": "pass", "reason": "it is there",
               "criteria": [{"criterion": "seen", "met": True, "evidence": "seen"}]}
    look = "{ pwd; cat /etc/debian_version; ls /sys/class/net; hostname; } > seen && git add seen && git commit -qm See"
    scene.players = {"a": again(say(use("Bash", command="touch first; sleep 100")),
                                after=(say(use("Bash", command=look)), report(), "Done.")),
                     "a-validator": steps(say(use("Bash", command="cat seen; hostname; touch mine 2>&1")),
                                          say(use(f"{TOOL}report_verdict", **verdict)), "Done.")}
    child = scene.launch(scene.graph(a="validator=claude"))
    wait_for("its work", lambda: list(place.trees.glob("*/*/a/first")))
    pid = scene.cli("a")
    assert pid is not None and b"claude" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    os.kill(pid, signal.SIGKILL)
    assert place.finish(child) == 0, place.logs()
    assert "SessionStore" not in (scene.folder("a").parent / "output.log").read_text(), "the CLI has its own folder"
    assert scene.endings("a")[-1] == "reported" and len(scene.endings("a")) == 2
    assert "sleep 100" in str(scene.calls("a")[-1].body), "it continues its conversation"
    folder, _, network, host = git(place.repo, "show", "main:seen").splitlines()
    assert (folder, network, host) == (str(place.repo), "lo", "sandbox")
    [judged] = [one.asked.result for one in scene.server.messages
                if "You validate" in one.asked.system and one.asked.step == 1]
    assert "sandbox" in judged and "Read-only file system" in judged
