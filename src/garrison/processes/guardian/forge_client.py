"""Forge client of a guardian: when it looks at the forge, and what the policy learns of it.

It does nothing before the flow is at its exit, nor while a node reworks: then nothing at the forge is waited for. The
count of requests is kept in `runs/RUN/forge/count.json`; a change of `runs/RUN/forge/wake` (`garrison pr sync`, a
webhook) makes it look at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from garrison.config import read_config
from garrison.errors import GarrisonError
from garrison.processes.forge_wake import Wishes, forge_folder, read_wishes, wake_file
from garrison.processes.guardian.forge_worker import ForgeCount, ForgeWorker
from garrison.processes.guardian.pull_request_policy import PullRequestView
from garrison.processes.run_state import NOT_LANDED, REQUESTED, TESTED
from garrison.records import atomic
from garrison.records.json_io import read_json
from garrison.system.clock import iso
from garrison.values import asdict, replace

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.pipeline.plan import RunPlan
    from garrison.processes.guardian.view import LandingView
    from garrison.processes.pull_request_client import PullRequestClient
    from garrison.processes.pull_request_facts import ForgeStep
    from garrison.processes.run_state import RunState
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git


def count_file(root: Path) -> Path:
    return forge_folder(root) / "count.json"


def read_count(root: Path) -> ForgeCount:
    """Return a run's count of requests; nothing counted if it is absent or unreadable."""
    data: dict[str, Any] = {}
    with suppress(GarrisonError, OSError, ValueError):
        data = read_json(count_file(root)) or {}
    names = asdict(ForgeCount())
    return ForgeCount(**{name: data[name] for name, default in names.items()
                         if isinstance(data.get(name), type(default))})


class ForgeClient:
    """Forge of one run, as its guardian uses it."""

    def __init__(self, runtime: Runtime, launch: Launch, plan: RunPlan, git: Git) -> None:
        self.runtime, self.launch, self.plan, self.git = runtime, launch, plan, git
        self.root = runtime.files(launch.run_id).root
        self.wake_file = wake_file(self.root)
        self.options = read_config(runtime.home).pull_requests()
        self.worker = ForgeWorker(self._open, self.options.poll, self.options.settle)
        self.worker.count = read_count(self.root)
        self._woken = self._stamp()
        self._closes = self._title = ""
        self._wishes, self._given = Wishes(), launch
        self._wish()
        self._replies: tuple[object, dict[str, str]] = (None, {})
        self._section: tuple[object, str, str] = (None, "", "")
        """State of the nodes for which the section was written, section and title."""
        self._is_on = self._is_leaving = False
        self._looked_for: tuple[str, int] = ("", 0)
        """Status and attempt of the landing that the facts belong to."""

    def _open(self) -> PullRequestClient:
        """Open the client; in the worker's thread, which alone uses it."""
        from garrison.processes.forge_access import connect
        from garrison.processes.pull_request_client import PullRequestClient
        from garrison.processes.pull_request_work import OwnerFinder
        from garrison.system.git import Git

        git = Git(self.git.root, home=self.runtime.home)
        forge, credentials = connect(git, self.launch.remote, self.runtime.home, self.runtime.environ, self.options)
        if self.launch.issue:
            self._closes = f"Closes #{self.launch.issue}"
            with suppress(GarrisonError):
                self._title = forge.read_issue(self.launch.issue).title
        return PullRequestClient(forge, git, self.launch, self.options,
                                 OwnerFinder(self.runtime, self.launch, git).find, credentials, self._wishes.given_up)

    def _follow_wishes(self) -> None:
        """Take the base that a person has named since the launch."""
        self.launch = replace(self._given, base=self._wishes.base or self._given.base)

    def _stamp(self) -> int:
        try:
            return self.wake_file.stat().st_mtime_ns
        except OSError:
            return 0

    def observe(self, state: RunState, landing: LandingView | None) -> PullRequestView | None:
        """Return what is known; begin a look that is due."""
        worker, now = self.worker, self.runtime.clock.time()
        if worker.receive(now):
            self._save()
        self._is_on = landing is not None and landing.is_new and state.status == "running" \
            and state.landing.status in (REQUESTED, TESTED)
        if (stamp := self._stamp()) != self._woken and not worker.is_busy:
            self._woken = stamp
            self._wish()
            worker.wake()
        if landing is None or not self._is_on:
            worker.facts = None
            self._is_leaving = _fails(state)
            if not self._is_leaving:
                worker.due = 0.0
                return None
            return PullRequestView("", self.options, problem=worker.problem, refused=worker.refused, done=worker.done,
                                   is_busy=worker.is_busy or (bool(worker.wait) and now < worker.due),
                                   gives_up=worker.gives_up(now))
        if (at := (state.landing.status, state.landing.attempt)) != self._looked_for:
            self._looked_for = at  # reviews and checks may have changed while the gate ran
            worker.facts, worker.due = None, 0.0
        if not worker.is_busy and now >= worker.due:
            worker.begin(None, state.pull_request)
        facts = worker.facts
        section, _ = self._texts(state)
        body = ""
        if facts is not None and facts.number:
            from garrison.processes.pull_request_texts import put_section

            body = put_section(facts.body, section)
        tree = self.git.tree_of(state.landing.commit) if state.landing.status == TESTED and state.landing.commit else ""
        return PullRequestView(landing.tip, self.options, facts, tree, worker.problem, worker.refused, worker.wait,
                               section, body, worker.silence, landing.pause, self._read_replies(state))

    def _wish(self) -> None:
        """Follow what a person wants of the request since the last time."""
        with suppress(GarrisonError):  # a damaged file says nothing
            if (wishes := read_wishes(self.root)) != self._wishes:
                self._wishes = wishes
                self._follow_wishes()
                self.worker.reopen()

    def _read_replies(self, state: RunState) -> dict[str, str]:
        """Return the agents' answers to comments; they are read once for each landing."""
        known = state.pull_request
        key = (len(known.owners), state.landing.status, state.landing.attempt)
        if self._replies[0] != key:
            from garrison.processes.pull_request_work import read_replies

            self._replies = (key, read_replies(self.runtime, self.launch, state, self.git))
        return self._replies[1]

    def _texts(self, state: RunState) -> tuple[str, str]:
        """Return section and title; they are written anew when a node has changed."""
        nodes = tuple((name, node.status, node.attempt) for name, node in state.nodes.items())
        key = (nodes, self._closes, self._title, state.landing.status, state.landing.oid, self.launch.base)
        if self._section[0] != key:
            from garrison.processes.pull_request_texts import write_section, write_title
            from garrison.processes.pull_request_work import summarize

            summary = summarize(self.runtime, self.launch, self.plan, state, self.git, closes=self._closes,
                                title=self._title, name=self.options.mention)
            self._section = (key, write_section(summary), write_title(summary))
        return self._section[1], self._section[2]

    def begin(self, step: ForgeStep, state: RunState) -> None:
        """Begin a step at the forge."""
        self.worker.begin(step, state.pull_request, self._texts(state)[1])

    def _save(self) -> None:
        """Keep the count; losing the last one in a power cut is harmless."""
        count = self.worker.count
        self.worker.count = replace(count, began=count.began or self.runtime.clock.utc(),
                                    next_look=iso(self.worker.due))
        atomic.make_directory(forge_folder(self.root))
        atomic.write(count_file(self.root), _encode(self.worker.count), durable=False)

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when the forge has answered, and when somebody asks for a look."""
        event_loop.watch_descriptor(self.worker.descriptor)
        if self._is_on:
            atomic.make_directory(forge_folder(self.root))
            event_loop.watch_directory(forge_folder(self.root))

    def seconds_to_look(self) -> float | None:
        """Return the seconds until the next look; None if none is due."""
        if not (self._is_on or self._is_leaving) or self.worker.is_busy:
            return None
        return max(0.0, self.worker.due - self.runtime.clock.time())


def _fails(state: RunState) -> bool:
    """Return whether the run ends without a landing although reviewers were asked to look at its request."""
    is_over = state.flow is not None and state.flow.over not in ("", "done")
    return state.status == "running" and bool(state.pull_request.number) and (
        state.landing.status == NOT_LANDED or is_over)


def _encode(count: ForgeCount) -> bytes:
    import json

    return json.dumps(asdict(count), indent=1).encode()
