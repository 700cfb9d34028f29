"""Record a home of ed856ddb, after version 0.1 and before records were values throughout.

    cd CHECKOUT
    sed -i 's/^SNAPSHOT_EVERY = .*/SNAPSHOT_EVERY = 8/' src/garrison/records/journal.py src/garrison/merge/processor.py
    .venv/bin/python .../tests/recorded_home/record_later.py ARCHIVE

Everything below is done with that checkout's own code and its tests' support module. Its journals begin with snapshots,
which are taken often there. What it leaves is packed into ARCHIVE as `recorded_home` unpacks it.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

CHECKOUT = Path.cwd()
sys.path[:0] = [str(CHECKOUT / "tests")]

from support import PYTHON, Node, Place, checkout_in, git, make_repository, wait_for  # noqa: E402

GATE = "test -f calc.py && test ! -e broken.txt"
PATH = "/usr/local/bin:/usr/bin:/bin"
RELEASED = 'while [ ! -e "$RELEASE" ]; do sleep 0.1; done'


class Recorder:
    """Makes what a home can hold of runs and queues, in one place."""

    def __init__(self, folder: Path) -> None:
        make_repository(checkout_in(folder))
        self.place = Place(folder, {"PATH": PATH, "RELEASE": str(folder / "open/release")})

    def garrison(self, *words: object, code: int = 0) -> str:
        """Run one command that must end with `code`; return its output."""
        done = self.place.command(*words)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def finished_run(self) -> None:
        """One node whose orchestrator was killed once, and one after it; both landed."""
        graph = self.place.graph(Node("plan", before="sleep 1"), Node("write", after=("plan",)), name="finished")
        launcher = self.place.launch(graph, "finished", gate=GATE)
        self.place.kill("orchestrator-plan", run="finished")
        assert self.place.finish(launcher, "finished") == 0, self.place.logs()

    def failed_run(self) -> None:
        """A node that leaves work and fails."""
        broken = Node("broken", before="echo half > half.txt; git add -A; git commit -qm Half; echo no; exit 3")
        launcher = self.place.launch(self.place.graph(broken, name="failed"), "failed", "--max-rework", "0", gate=GATE)
        assert self.place.finish(launcher, "failed") == 1, self.place.logs()

    def queue(self) -> None:
        """A queue worked by hand: an entry landed, one was rejected, one waits, one is held."""
        repo = self.place.repo
        git(repo, "branch", "release")
        for name in ("good", "broken", "later", "kept"):
            git(repo, "checkout", "-q", "-b", f"work/{name}", "main")
            (repo / f"{name}.txt").write_text(f"{name}\n")
            git(repo, "add", "-A")
            git(repo, "commit", "-qm", f"Add {name}")
        git(repo, "checkout", "-q", "main")
        words = ("--repo-root", repo, "--target", "release")
        for name in ("good", "broken"):
            self.garrison("merge-queue", "enqueue", name, f"work/{name}", *words)
        self.garrison("merge-queue", "process", "--drain", "--gate", GATE, *words, code=1)
        kept = ""
        for name in ("later", "kept"):
            kept = json.loads(self.garrison("merge-queue", "enqueue", name, f"work/{name}", *words))["entry"]["id"]
        self.garrison("merge-queue", "hold", kept, "--repo-root", repo)

    def killed_run(self) -> None:
        """A run that was cut off with all its processes: one node landed, one under test, one at work, a gate open."""
        gate = f"{GATE}; test ! -e tested-killed.txt || {{ touch {self.place.root}/tests; {RELEASED}; }}"
        waits = (f"test -e draft.txt || {{ echo draft > draft.txt; git add draft.txt; git commit -qm Draft; }}; "
                 f"echo uncommitted > rest.txt; {RELEASED}")
        graph = self.place.graph(Node("first"), Node("tested", after=("first",)), Node("works", before=waits),
                                 name="killed")
        text = graph.read_text().replace("  start -> works;", '  ship [shape=hexagon, label="Ship it?"]; start -> ship;'
                                         ' ship -> exit [label="[Y] Yes"];\n  start -> works;')
        graph.write_text(text)
        self.place.launch(graph, "killed", "--env", "RELEASE", gate=gate)
        wait_for("the entry is under test", (self.place.root / "tests").exists)
        wait_for("the last node is at work", lambda: list(self.place.trees.glob("*/killed/works/rest.txt")))
        wait_for("the gate asks", lambda: "Ship it?" in self.place.command("status", "killed").stdout)

    def record(self) -> None:
        """Make all of it; nothing may still run."""
        self.finished_run()
        self.failed_run()
        self.queue()
        self.killed_run()
        self.place.kill_all()
        assert self.place.status("killed") in ("running", "")


EXCLUDED = ("home/run", "home/private-files.json", "repo/.git/hooks", "out", "points", "tests")
"""What belongs to the machine or to git, and is made again when it is missing."""


def pack(place: Place, archive: Path) -> None:
    """Put everything but what is excluded into the archive, in order, with placeholders."""
    [key] = [path.name for path in (place.home / "merge-queue").iterdir()]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    host, namespace = platform.node(), os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    parts = {"repo": place.repo, "home": place.home, "trees": place.trees, "": place.root}
    replaced = [*((str(path).encode(), f"@ROOT@/{name}".rstrip("/").encode()) for name, path in parts.items()),
                (str(Path(PYTHON).parent).encode(), b"@BIN@"), (key.encode(), b"@KEY@"), (boot.encode(), b"@BOOT@"),
                (namespace.encode(), b"@PID_NS@"), (f'"host": "{host}"'.encode(), b'"host": "@HOST@"'),
                (f'"host":"{host}"'.encode(), b'"host":"@HOST@"'), (PATH.encode(), b"@PATH@")]
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for part, folder in parts.items():
            for path in sorted(folder.rglob("*")):
                name = f"{part}/{path.relative_to(folder)}".lstrip("/")
                if any(name == one or name.startswith(f"{one}/") for one in EXCLUDED):
                    continue
                member = tar.gettarinfo(path, name.replace(key, "@KEY@"))
                if member is None:  # a socket
                    continue
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                if not member.isfile():
                    tar.addfile(member)
                    continue
                data = path.read_bytes()
                for found, placeholder in replaced:
                    data = data.replace(found, placeholder)
                for machine in (str(CHECKOUT), str(Path.home()), str(place.folder), "/tmp/"):
                    if machine.encode() in data:
                        at = data.index(machine.encode())
                        raise AssertionError(f"{name} names {machine}: {data[max(0, at - 100):at + 100]!r}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


def main() -> None:
    """Record and pack."""
    folder = Path(tempfile.mkdtemp(prefix="recorded-", dir="/tmp"))
    recorder = Recorder(folder)
    try:
        recorder.record()
        pack(recorder.place, Path(sys.argv[1]))
    finally:
        recorder.place.kill_all()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
