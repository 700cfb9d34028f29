"""Record the home that version 0.1 leaves: run by a checkout of that version, in isolation, so that no model is asked.

    cd CHECKOUT_OF_0.1
    .venv/bin/python -P -m garrison.testing.isolation -- .venv/bin/python .../tests/recorded_home/record.py ARCHIVE

Everything below is done with that checkout's own code (its commands, its scripts, its tests' support modules) and uses
the names of that version. What it leaves is packed into ARCHIVE as `recorded_home` unpacks it: machine paths and the
like stand there as @PLACEHOLDERS@.
"""

from __future__ import annotations

import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

CHECKOUT = Path.cwd()
sys.path[:0] = [str(CHECKOUT / "tests"), str(CHECKOUT / "tests/claude")]

from claude.conftest import Scene  # noqa: E402
from claude_scripts import report, steps, work  # noqa: E402
from garrison.testing.asked import Asked  # noqa: E402
from garrison.testing.model_server import ModelServer  # noqa: E402
from garrison.testing.turn import say, use  # noqa: E402
from support import PROGRAM, Node, Place, git, make_repository, wait_for  # noqa: E402
from support import work as work_of  # noqa: E402

GATE = "test -f calc.py && test ! -e broken.txt"
WORKFLOW = """name: report
steps:
  - name: words
    tool: text.join
    arguments: {parts: [one, two], separator: " "}
  - name: missing
    tool: files.read
    arguments: {path: nowhere.txt}
    depends_on: [words]
"""
ENGINE = """digraph build { goal="Build it"; start [shape=Mdiamond]; x [shape=Msquare];
  first [shape=parallelogram, tool_command="echo first >> $LEDGER"]
  second [shape=parallelogram, tool_command="while [ ! -e $RELEASE ]; do sleep 0.05; done; echo second >> $LEDGER"]
  third [shape=parallelogram, tool_command="echo third >> $LEDGER"]
  start -> first -> second -> third -> x }
"""
GATE_ENGINE = """digraph ship { start [shape=Mdiamond]; x [shape=Msquare];
  make [shape=parallelogram, tool_command="echo made"]; gate [shape=hexagon, label="Ship?"]
  start -> make -> gate; gate -> x [label="[A] Approve"]; gate -> make [label="[F] Fix"] }
"""


class Recorder:
    """Makes everything that a home can hold, in one place."""

    def __init__(self, root: Path) -> None:
        make_repository(root / "repo")
        self.place = Place(root, {"PATH": "/usr/local/bin:/usr/bin:/bin", "RELEASE": str(root / "release")})
        self.scene = Scene(self.place)
        self.root = root

    def garrison(self, *words: object, code: int = 0, **env: str) -> str:
        """Run one command that must end with `code`; its output."""
        done = self.place.command(*words, **env)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    def script(self, name: str, *words: object) -> str:
        """Run one of the scripts."""
        done = subprocess.run([sys.executable, CHECKOUT / "scripts" / name, *map(str, words)], env=self.place.env,
                              cwd=self.place.repo, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def finished_run(self) -> None:
        """A command node whose orchestrator was killed once, then a Claude node; both landed."""
        self.scene.players["write"] = steps(work("write"), report(), "Done.")
        graph = self.root / "finished.dot"
        plan = Node("plan", before="sleep 1")
        graph.write_text(self.place.graph(plan, name="finished").read_text().replace(
            "plan -> exit;", 'write [shape=box, agent=claude, prompt="Do write."]; plan -> write -> exit;'))
        launcher = self.place.launch(graph, "finished", gate=GATE)
        self.place.kill("orchestrator-plan", run="finished")
        assert self.place.finish(launcher, "finished") == 0, self.place.told()

    def failed_run(self) -> None:
        """A node that leaves work and fails."""
        broken = Node("broken", before="echo half > half.txt; git add -A; git commit -qm Half; echo no; exit 3")
        launcher = self.place.launch(self.place.graph(broken, name="failed"), "failed", "--max-rework", "0", gate=GATE)
        assert self.place.finish(launcher, "failed") == 1

    def stopped_run(self) -> None:
        """One node landed, one stopped at its work: one commit and an uncommitted file."""
        waiting = ("test -e draft.txt || { echo draft > draft.txt; git add draft.txt; git commit -qm Draft; }; "
                   'echo uncommitted > rest.txt; while [ ! -e "$RELEASE" ]; do sleep 0.05; done')
        graph = self.place.graph(Node("first"), Node("second", after=("first",), before=waiting), name="stopped")
        launcher = self.place.launch(graph, "stopped", "--env", "RELEASE", gate=GATE)
        tree = wait_for("the second node is at work", lambda: list(self.place.trees.glob("*/stopped/second/rest.txt")))
        assert tree
        self.garrison("stop", "stopped")
        assert self.place.finish(launcher, "stopped") == 130

    def killed_run(self) -> None:
        """A routed graph whose gate asks a person; every process was killed while it waited."""
        graph = self.root / "killed.dot"
        command = work_of(Node("make")).replace('"', '\\"')
        graph.write_text(f'digraph killed {{ goal="a test"; start [shape=Mdiamond]; exit [shape=Msquare];\n'
                         f'  make [shape=box, command="{command}"]; ship [shape=hexagon, label="Ship it?"]\n'
                         '  start -> make -> ship; ship -> exit [label="[Y] Yes"]; ship -> make [label="[N] No"] }\n')
        self.place.launch(graph, "killed", gate=GATE)
        wait_for("the gate asks", lambda: "Ship it?" in self.place.command("status", "killed").stdout)
        self.place.kill("launch", "guardian-killed", "processor-killed", run="killed")

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

    def by_hand(self) -> None:
        """Records without a run, as prompts and scripts of the seeds make them."""
        self.script("identity_registry.py", "create", "runner", "by_hand", "--session-id", "s1", "--worktree", "/tree")
        self.script("identity_registry.py", "create", "orchestrator", "by_hand")
        self.script("identity_registry.py", "mark-crashed", "orchestrator", "by_hand")
        self.script("hook_manager.py", "create", "runner", "by_hand")
        self.script("hook_manager.py", "update-phase", "runner", "by_hand", "executing")
        self.script("hook_manager.py", "update-resumption", "runner", "by_hand", "Look at the parser first.")
        self.script("signal_protocol.py", "write", "runner-by_hand", "guardian-hand", "NEEDS_INPUT", "--payload",
                    json.dumps({"node_id": "by_hand", "question": "Which parser?"}))

    def workflow(self) -> None:
        """A workflow that failed at its second step."""
        path = self.root / "report.yaml"
        path.write_text(WORKFLOW)
        self.garrison("workflow", "run", path, "--session", "report-1", "--tree", self.place.repo, code=1)

    def session_and_conversation(self) -> None:
        """A session of two turns, and a conversation in which the butler asks triage."""
        def script(asked: Asked) -> Any:
            if asked.prompt.startswith("CLASSIFY"):
                return say(json.dumps({"delegations": [{"intent": "delegate_triage", "reasoning": "look"}],
                                       "confidence": 1}))
            if "You find out what needs" in asked.system:
                return say("I look.", use("mcp__desk__runs")) if asked.step == 0 else \
                    say('```json\n{"summary": "one run is stopped", "data": {"runs": 3}}\n```')
            return say("One run is stopped." if "one run is stopped" in asked.prompt else "I am well.")

        with ModelServer(script) as server:
            model = {"ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": os.environ["ANTHROPIC_API_KEY"]}
            self.garrison("session", "start", "helper")
            self.garrison("session", "send", "helper", "How are you?", **model)
            self.garrison("session", "send", "helper", "Really?", **model)
            self.garrison("ask", "What needs me today?", **model)

    def engine(self) -> None:
        """A run of `garrison pipeline run`, killed at its second node: its journal goes on in zeros."""
        graph = self.root / "build.dot"
        graph.write_text(ENGINE)
        (self.root / "engine-ledger").touch()
        child = subprocess.Popen([*PROGRAM, "pipeline", "run", str(graph), "--run-dir", "pipelines/build"],
                                 env={**self.place.env, "LEDGER": str(self.root / "engine-ledger")},
                                 cwd=self.place.home, start_new_session=True, stdout=subprocess.DEVNULL)
        wait_for("the second node is at work", lambda: "first" in (self.root / "engine-ledger").read_text())
        time.sleep(1)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for process in self.place.mine():
            os.kill(process.pid, signal.SIGKILL)
        journal = self.place.home / "pipelines/build/journal.jsonl"
        assert journal.read_bytes().endswith(b"\0")

    def engine_gate(self) -> None:
        """A run of `garrison pipeline run` that ended because its gate asks a person."""
        graph = self.root / "ship.dot"
        graph.write_text(GATE_ENGINE)
        self.garrison("pipeline", "run", graph, "--run-dir", self.place.home / "pipelines/ship", code=3)

    def record(self) -> None:
        """All of it; nothing may still run."""
        self.finished_run()
        self.failed_run()
        self.stopped_run()
        self.killed_run()
        self.queue()
        self.by_hand()
        self.workflow()
        self.session_and_conversation()
        self.engine()
        self.engine_gate()
        left = self.place.leave()
        assert not left, left
        self.scene.server.close()


EXCLUDED = ("home/claude", "home/run", "repo/.git/hooks", "user", "state", "rt", "fired", "out", "points")
"""What belongs to the machine, to git or to the CLI, and is made again when it is missing."""
TRANSCRIPTS = "/claude/transcripts/"
"""The CLI's own text, which is not ours to hand on."""


def placeholders(root: Path, key: str) -> list[tuple[bytes, bytes]]:
    """What in a file is of this machine, and what stands for it in the archive."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    host, namespace = platform.node(), os.readlink("/proc/self/ns/pid")  # noqa: PTH115
    return [(str(root).encode(), b"@ROOT@"), (key.encode(), b"@KEY@"), (boot.encode(), b"@BOOT@"),
            (namespace.encode(), b"@PID_NS@"), (f'"host": "{host}"'.encode(), b'"host": "@HOST@"'),
            (f'"host":"{host}"'.encode(), b'"host":"@HOST@"'), (b"/usr/local/bin:/usr/bin:/bin", b"@PATH@")]


def pack(root: Path, archive: Path) -> None:
    """Put everything but what is excluded into the archive, in order, with placeholders."""
    [key] = [path.name for path in (root / "home/merge-queue").iterdir()]
    replaced = placeholders(root, key)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if any(name == one or name.startswith(f"{one}/") for one in EXCLUDED) or TRANSCRIPTS in f"/{name}/":
                continue
            member = tar.gettarinfo(path, name.replace(key, "@KEY@"))
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            if not member.isfile():
                tar.addfile(member)
                continue
            data = path.read_bytes()
            for found, placeholder in replaced:
                data = data.replace(found, placeholder)
            for machine in (str(CHECKOUT), str(Path.home()), str(root.parent / "garrison-")):
                assert machine.encode() not in data, f"{name} names {machine}"
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def main() -> None:
    """Record and pack."""
    root = Path(tempfile.mkdtemp(prefix="recorded-", dir="/tmp"))
    Recorder(root).record()
    pack(root, Path(sys.argv[1]))
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
