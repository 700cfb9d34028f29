"""A run's pull request driven without processes: real journal records, policy, worker, client and git; a forge in
memory; a gate and a node that this driver plays.

`turn` is a guardian's turn. `kill` throws everything away but the journal, the repository and the forge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge_memory import Fault, Killed, MemoryForge, World
from garrison.backoff import Backoff
from garrison.config import PullRequestOptions
from garrison.pipeline.flow import Finished
from garrison.pipeline.outcome import SUCCESS, Outcome
from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.processes.actions import Action, ActionKind
from garrison.pull_request import client as pull_request_client
from garrison.pull_request.client import PullRequestClient
from garrison.pull_request.facts import ForgeStep
from garrison.pull_request.policy import PullRequestView
from garrison.pull_request.texts import NodeSummary, RunSummary, put_section, write_section
from garrison.pull_request.worker import ForgeWorker
from garrison.records.events import FlowAdvanced, NodeChanged, RunChanged, encode
from garrison.records.journal import Entry
from garrison.records.run import LAND_PR, Launch
from garrison.run import guardian_policy
from garrison.run.guardian_view import GuardianView, LandingView
from garrison.run.merge_client import MergeStatus
from garrison.run.state import REQUESTED, TESTED, RunState, replay_run
from garrison.system.clock import iso
from garrison.system.git import Git
from garrison.values import asdict
from support import git

RUN = "r1"
BRANCH = f"garrison/{RUN}/integration"
PLAN = plan_run(parse("digraph { start [shape=Mdiamond] exit [shape=Msquare] start -> work -> exit }"))


def repositories(root: Path) -> tuple[Path, Path]:
    """A bare repository of the forge with a base, and a clone in which the run has done its work."""
    bare, repo = root / "forge.git", root / "repo"
    git(root, "init", "-q", "--bare", "-b", "main", str(bare))
    git(root, "clone", "-q", str(bare), str(repo))
    git(repo, "config", "user.name", "p")
    git(repo, "config", "user.email", "p@p")
    git(repo, "symbolic-ref", "HEAD", "refs/heads/main")
    commit(repo, "calc.py", "one\ntwo\nthree\n")
    git(repo, "push", "-q", "origin", "main")
    git(repo, "branch", BRANCH)
    return bare, repo


def commit(repo: Path, name: str, text: str, branch: str = "") -> str:
    """Commit a file on a branch (default: the one checked out) without a checkout of it; return the commit."""
    if not branch:
        (repo / name).write_text(text)
        git(repo, "add", "-A")
        git(repo, "commit", "-q", "-m", f"{name}: {text[:20].strip()}")
        return git(repo, "rev-parse", "HEAD")
    tip = git(repo, "rev-parse", branch)
    there = repo.parent / "tree"
    git(repo, "worktree", "add", "-q", "--detach", str(there), tip)
    try:
        made = commit(there, name, text)
    finally:
        git(repo, "worktree", "remove", "--force", str(there))
    git(repo, "update-ref", f"refs/heads/{branch}", made)
    return made


class Driver:
    """One run."""

    def __init__(self, root: Path, fault: Fault = lambda _: "", options: PullRequestOptions | None = None) -> None:
        pull_request_client.LISTED_SECONDS = 0.0  # the forge in memory lists at once what was made
        pull_request_client.PAUSES = Backoff(0.0, tries=3)
        self.bare, self.repo = repositories(root)
        self.world = World(self.bare)
        self.fault, self.options = fault, options or PullRequestOptions(poll=1.0, settle=1.5)
        self.git = Git(self.repo)
        self.launch = Launch(RUN, "p", str(self.repo), "main", "t", str(root), land=LAND_PR, remote="origin",
                             base_oid=git(self.repo, "rev-parse", "main"), gate="true")
        self.login = "garrison"
        self.entries: list[Entry] = []
        self.now, self.kills, self.looks, self.reworks = 1e9, 0, 0, 0
        self.merge: MergeStatus | None = None
        self.tested: dict[tuple[str, str], str] = {}
        self.told: list[str] = []
        self.record(NodeChanged("work", "pending"))
        self.record(RunChanged("running"))
        self.begin()

    def begin(self) -> None:
        self.state: RunState = replay_run(self.entries, PLAN.program, RUN)
        self.worker = ForgeWorker(self.open, self.options.poll, self.options.settle)

    def open(self) -> PullRequestClient:
        forge: Any = MemoryForge(self.world, self.fault, self.login)
        return PullRequestClient(forge, Git(self.repo), self.launch, self.options, lambda *_: "work")

    def kill(self) -> None:
        """Kill the guardian: its journal, the repository and the forge stay."""
        self.kills += 1
        self.begin()

    def record(self, event: Any) -> None:
        entry = Entry(len(self.entries) + 1, 1, "t", iso(self.now), event.kind, encode(event))
        self.entries.append(entry)
        if len(self.entries) > 2:
            self.state.apply(entry)

    # --- what the guardian's other parts do

    def work(self) -> None:
        """Let the node work: it merges into the run's branch, and the flow continues to its exit."""
        for place in list(self.state.flow.places.values()):
            self.reworks += 1
            self.told.append(place.reason)
            commit(self.repo, "work.txt", f"work {len(self.entries)}\n", BRANCH)
            self.record(FlowAdvanced(asdict(Finished(place.id, Outcome(SUCCESS), place.attempt)), "work"))

    def gate(self) -> None:
        """Pass the gate with the run's branch merged into the base."""
        landing = self.state.landing
        if self.merge is None or self.merge.attempt != landing.attempt:
            tree = self.git.merge_tree(landing.base, landing.oid).tree
            assert tree is not None
            made = self.git.commit_tree(tree, [landing.base, landing.oid], "tested", date=1)
            self.tested[landing.base, landing.oid] = tree
            self.merge = MergeStatus(landing.attempt, "landed", commit=made)

    # --- a turn

    def turn(self) -> bool:
        """Take one turn as a guardian; return whether anything was done. Killed by a fault, it starts again."""
        flow = self.state.flow
        if flow.over != "done":
            self.work()
            return True
        if self.worker.receive(self.now):
            self.looks += self.worker.facts is not None
        tip = self.git.branch_tip(BRANCH) or ""
        base = self.git.rev(self.launch.base_ref) or self.launch.base_oid
        landing = LandingView(tip, merge=self.merge, base=base)
        if self.state.landing.status not in (REQUESTED, TESTED):
            actions = guardian_policy.request_landing(self.state, RUN, landing)
        else:
            if self.state.landing.status == REQUESTED:
                self.gate()
            view = GuardianView(RUN, 0.0, "b", landing=LandingView(tip, merge=self.merge, base=base))
            actions = guardian_policy.follow_landing(self.state, view, 2) or self._view(tip).follow(self.state, RUN, 2)
        for action in actions:
            self._act(action)
        return bool(actions)

    def _view(self, tip: str) -> PullRequestView:
        worker, landing = self.worker, self.state.landing
        if not worker.is_busy and self.now >= worker.due:
            self._ask(None)
        section = write_section(RunSummary(RUN, "goal", (NodeSummary("work", "Work", "done", self.reworks),)))
        body = put_section(worker.facts.body, section) if worker.facts is not None and worker.facts.number else ""
        tree = self.git.tree_of(landing.commit) if landing.status == TESTED else ""
        return PullRequestView(tip, self.options, worker.facts, tree, worker.problem, worker.refused, worker.wait,
                               section, body, worker.silence)

    def _ask(self, step: ForgeStep | None) -> None:
        """Do one job at the forge, here rather than in the thread, so that a kill happens at its very request."""
        worker = self.worker
        worker.facts = None
        try:
            worker.work(step, self.state.pull_request, "Title")
        except Killed:
            self.kill()
            return
        worker.is_busy = True

    def _act(self, action: Action) -> None:
        if action.kind is ActionKind.ASK_FOLLOWER:
            self._ask(action.expect(ForgeStep))
        elif action.payload is not None and hasattr(action.payload, "kind"):
            self.record(action.payload)
        else:
            assert action.kind is ActionKind.ENQUEUE, action

    def settle(self, turns: int = 400) -> None:
        """Take turns until nothing more happens but waiting."""
        idle = self.looks
        for _ in range(turns):
            if self.state.landing.status in ("landed", "failed"):
                return
            if self.turn():
                idle = self.looks
            elif not self.worker.is_busy and self.looks >= idle + 3:
                return
            self.now = self.now + 0.01 if self.worker.is_busy or self.worker.wait else max(self.now, self.worker.due)
            if self.worker.wait:
                self.now += 5
        raise AssertionError(f"it does not settle: {self.state.pull_request}")
