"""The world of a hostile agent ends with the test that made it, even if that is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hostile import enclosure
from hostile.world import HERE
from support import processes, wait_for


def test_nothing_of_a_world_outlives_a_killed_test() -> None:
    if not enclosure.words():
        pytest.skip("this machine allows no namespaces")
    script = "mount -t tmpfs tmpfs $U/projects; env -i setsid -f sh -c \"sleep 31339; :\" $ROOT; echo $ROOT"
    with subprocess.Popen([sys.executable, "-m", "tests.hostile", "--in", "none", "--obey"], cwd=HERE.parents[1],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        print(json.dumps([script, 30]), file=child.stdin, flush=True)
        root = json.loads(child.stdout.readline()).strip()
        programs = " ".join(one.argv for one in processes(root))
        assert "services.py" in programs
        assert "sleep 31339" in programs, programs
        child.kill()
    wait_for("all of it has ended", lambda: not list(processes(root)), 20)
    assert root not in Path("/proc/self/mounts").read_text()
    assert not Path(root).exists()
