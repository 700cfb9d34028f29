"""The promises of a run, and the checks for each of them.

`check` returns a `BrokenPromise` for every broken promise it sees. A running run is checked for what must be true at
every moment; what must be true at its end (nothing waits, nothing is left) is checked once it has ended.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from garrison.testing.checker.attestations import Attestations, is_flipped
from garrison.testing.checker.gates import selected, whole_gate_every
from garrison.testing.checker.history import GUARDIAN, QUEUE, History, JournalEvent
from garrison.testing.checker.repository import CheckedCommit, CheckedRepository
from garrison.testing.checker.spending import SpentCall, overdrawn


class Promise(Enum):
    """Promises about every run; the value is the word that findings start with."""

    RECORD = "record"
    """Each journal is complete and was written by one incarnation at a time."""
    TESTED = "tested"
    """The exact tree of every commit that landed on the target's first-parent line had passed the gate before, or the
    gates selected by its paths, if the target declares gates by path."""
    ONCE = "once"
    """Each node landed once, or had nothing to land, or failed with a reason."""
    LIVES = "lives"
    """No process got a successor before its end was recorded."""
    KEPT = "kept"
    """Nothing that an agent committed is lost."""
    LIMITS = "limits"
    """New attempts and restarts stay within the limits of the launch."""
    MONEY = "money"
    """No model was called after a limit on its costs was reached."""
    CLEAN = "clean"
    """An ended run leaves nothing behind."""


@dataclass(frozen=True)
class BrokenPromise:
    """One broken promise."""

    promise: Promise
    text: str

    def __str__(self) -> str:
        return f"{self.promise.value}: {self.text}"


OVER = frozenset({"landed", "undone", "conflict", "rejected", "cancelled", "superseded"})
"""Final statuses of a merge entry, unless the user retries it."""
STATUS_OF = {"enq": "queued", "test": "testing", "landing": "landing", "landed": "landed", "undone": "undone",
             "unlanded": "landing_blocked", "foreign": "queued", "retry": "queued", "cancel": "cancelled"}
"""Kind of a queue's record → status of the entries that it is about; `state` contains the status."""
STRAIGHT = frozenset({"ff-only", "rebase"})
"""Strategies that put the branch's own commits on the target's line, so that only the last one was tested."""
GRACEFUL = re.compile(r"(attempt [0-9]+; )?it had ended gracefully|to stop what is still alive")
"""Starts of the reason, in journals of earlier versions, of a start after an end that no supervisor saw, since it had
been stopped too. It is still checked that the earlier incarnation wrote nothing afterwards."""
LANDED, FAILED, SKIPPED, ACTIVE = "validated", "failed", "skipped", "active"
NO_LANDING = frozenset({"no change", "kept"})
"""Recorded landings of a node that succeeded without landing; `kept` is the work of a candidate."""
KEPT = "kept"
INTEGRATION = "integration"
"""Node whose entry is a run that lands as a whole."""


def follows_an_end(start: Mapping[str, Any]) -> bool:
    """Return whether the record of a start says that the previous incarnation had ended by itself."""
    told = start.get("follows")
    return told in ("end", "last_attempt") if told else bool(GRACEFUL.match(str(start.get("why", ""))))


def check(history: History, repository: CheckedRepository, attestations: Attestations | None = None, *,
          home: Path | None = None, spending: Iterable[SpentCall] = ()) -> list[BrokenPromise]:
    """Return every broken promise, in the order of `Promise`; an empty list if none was seen.

    Without `attestations`, or for landings before they were written, the queue's own verdicts count. With `home`, the
    machine is searched for leftover processes of the ended run. Costs are compared with their limits as far as
    `spending` has them.
    """
    checked = _Check(history, repository, attestations or Attestations(), home, tuple(spending))
    return list(dict.fromkeys(checked.findings()))


@dataclass
class _Entry:
    """One merge entry, as the queue recorded it."""

    name: str
    enqueued: JournalEvent
    status: str = "queued"
    landings: list[JournalEvent] = field(default_factory=list)
    """Recorded intents to move the target."""
    landed: list[JournalEvent] = field(default_factory=list)
    moved: bool = False
    """True if it had a conflict only because the target had moved, which does not count as rework of its node."""

    @property
    def oid(self) -> str:
        return str(self.enqueued.data["oid"])

    @property
    def target(self) -> str:
        return str(self.enqueued.data.get("target", ""))

    @property
    def strategy(self) -> str:
        return str(self.enqueued.data.get("strategy") or "merge")


@dataclass
class _Node:
    """One node, as the guardian recorded it."""

    status: str = ""
    reason: str = ""
    landing: str = ""
    attempt: int = 1
    step: str = ""
    attempts: Counter[str] = field(default_factory=Counter)
    """Step of the flow → attempts that were started in it."""


class _Check:
    def __init__(self, history: History, repository: CheckedRepository, attestations: Attestations, home: Path | None,
                 spending: tuple[SpentCall, ...]) -> None:
        self.history, self.repository, self.home, self.spending = history, repository, home, spending
        self.attestations, self.launch = attestations, history.launch
        self.wrong: list[BrokenPromise] = []
        self.entries = self._fold_entries()
        self.nodes = self._fold_nodes()

    def findings(self) -> Iterator[BrokenPromise]:
        """Yield the broken promises, in order."""
        yield from self.wrong
        for promise, checks in (
                (Promise.RECORD, (self._sequences,)),
                (Promise.TESTED, (self._tested, self._whole_often_enough, self._attested)),
                (Promise.ONCE, (self._landed_once, self._own_work, self._only_forward, self._in_the_history,
                                self._ended, self._ended_once)),
                (Promise.LIVES, (self._successors, self._late_writers)),
                (Promise.KEPT, (self._commits, self._rescued)),
                (Promise.LIMITS, (self._attempts, self._deaths)),
                (Promise.MONEY, (lambda: overdrawn(self.spending),)),
                (Promise.CLEAN, (self._left,))):
            for one in checks:
                yield from (BrokenPromise(promise, text) for text in one())

    # --- what the journals say --------------------------------------------------------------------------------------

    def _fold_entries(self) -> dict[str, _Entry]:
        entries: dict[str, _Entry] = {}
        for event in sorted(self.history.of(*STATUS_OF, "state", journal=QUEUE), key=lambda event: event.seq):
            if event.kind == "test" and event.data.get("of", "entry") != "entry":
                continue
            if event.kind == "enq":
                self._enqueue(entries, event)
            for name in event.entries:
                if name in entries and event.kind != "enq":
                    self._change(entries[name], event)
        return entries

    def _enqueue(self, entries: dict[str, _Entry], event: JournalEvent) -> None:
        name = event.entries[0]
        if name in entries:
            self.wrong.append(BrokenPromise(Promise.ONCE, f"{name} was enqueued twice ({event.place})"))
        entries.setdefault(name, _Entry(name, event))
        for old in event.data.get("supersedes", ()):
            if old in entries:
                entries[old].status = "superseded"

    def _change(self, entry: _Entry, event: JournalEvent) -> None:
        status = str(event.data["status"]) if event.kind == "state" else STATUS_OF[event.kind]
        if event.kind == "undone" and entry.status in ("landed", "undone"):
            entry.status = "landed" if event.data.get("again") else status
            return
        if entry.status in OVER and status != entry.status and not (event.kind == "retry" and entry.status != "landed"):
            self.wrong.append(BrokenPromise(Promise.ONCE, f"{entry.name} was {entry.status} and became {status} "
                                                    f"({event.place})"))
        entry.status = status
        entry.moved |= bool(event.data.get("moved"))
        if event.kind == "landing":
            entry.landings.append(event)
        elif event.kind == "landed":
            entry.landed.append(event)

    def _fold_nodes(self) -> dict[str, _Node]:
        nodes: dict[str, _Node] = defaultdict(_Node)
        for event in self.history.of("node", "signal", journal=GUARDIAN):
            change = event.data if event.kind == "node" else event.data.get("effect")
            if not change:
                continue
            node = nodes[change["node"]]
            if change.get("attempt", 1) < node.attempt:
                self.wrong.append(BrokenPromise(Promise.LIMITS, f"{change['node']} went from attempt {node.attempt} "
                                                                f"back to {change['attempt']} ({event.place})"))
            node.step = change.get("step") or node.step
            node.status, node.reason = change["status"], change.get("reason", "")
            node.landing, node.attempt = change.get("landing", ""), change.get("attempt", 1)
            node.attempts[node.step] += node.status == ACTIVE
        return dict(nodes)

    # --- record -----------------------------------------------------------------------------------------------------

    def _sequences(self) -> Iterator[str]:
        for events in self.history.journals:
            first, again = events[0], Counter(event.seq for event in events)
            doubled = [number for number, times in again.items() if times > 1]
            if doubled and (first.journal != QUEUE or first.queue):  # without a name, it may be two queues
                yield f"{first.journal} has record {doubled[0]} twice"
        if self.history.end and not self.launch:
            yield "the run ended and no launch is recorded"

    # --- tested -----------------------------------------------------------------------------------------------------

    def _tested(self) -> Iterator[str]:
        if self.launch.get("no_gate"):
            return
        for entry in self.entries.values():
            if entry.target == self._ungated_branch():
                continue
            for event in entry.landings:
                if entry.landed and event.entries[0] == entry.name:  # a batch is tested once
                    yield from self._landing_tested(entry, event)

    def _ungated_branch(self) -> str:
        """Return the branch that collects the work of a run's nodes, to be tested as a whole later; '' for none."""
        launch = self.launch
        gathers = launch.get("land", "node") != "node" and launch.get("node_gate") is None
        return f"garrison/{launch.get('run_id', '')}/integration" if gathers else ""

    def _tested_branch(self) -> str:
        """Return the branch on which a pull request is tested, which is set to the base before each test; '' for none.
        """
        launch = self.launch
        return f"garrison/{launch.get('run_id', '')}/tested" if launch.get("land") == "pr" else ""

    def _landing_tested(self, entry: _Entry, event: JournalEvent) -> Iterator[str]:
        new, old = str(event.data["new"]), str(event.data["old"])
        passed, whole_run = self._passed(event), str(entry.enqueued.data.get("node")) == INTEGRATION
        line = self.repository.line(old, new)
        if not line:
            tree = self.repository.tree(new)
            if not tree:
                yield f"{new}, which landed {entry.name}, is not in the repository"
                return
            line = [CheckedCommit(new, tree, (), ())]
        for commit in line[-1:] if entry.strategy in STRAIGHT else line:
            runs = passed.get(commit.tree, ())
            if frozenset() in runs:
                continue
            before = old if entry.strategy in STRAIGHT or not commit.parents else commit.parents[0]
            wanted = None if whole_run else selected(self.repository, before, commit.oid) if runs else None
            if wanted is None or not any(wanted <= names for names in runs):
                if any(event.data["tree"] == commit.tree for event in self._green(event)):
                    self.attestations.require(commit.tree)
                what = "the gate" if not runs else "the whole gate" if wanted is None else \
                    f"the gates that its paths select ({', '.join(sorted(wanted))})"
                yield f"{commit.oid} landed with {entry.name}, and its tree {commit.tree} had not passed {what}"

    def _passed(self, landing: JournalEvent) -> dict[str, set[frozenset[str]]]:
        """Return the trees that had passed before a landing, each with the gates that ran; none for the whole gate."""
        since, passed = self.attestations.since, defaultdict[str, set[frozenset[str]]](set)
        attested = {(run.tree, run.gates) for run in self.attestations.runs if run.passed}
        for event in self._green(landing):
            tree, names = str(event.data["tree"]), frozenset(event.data.get("gates") or ())
            if (tree, names) in attested or not since or event.at < since:
                passed[tree].add(names)
        return passed

    def _green(self, landing: JournalEvent) -> list[JournalEvent]:
        return [event for event in self.history.of("verdict", journal=QUEUE)
                if event.data["result"] == "green" and event.seq < landing.seq]

    def _whole_often_enough(self) -> Iterator[str]:
        """The run never landed more entries without the whole gate than the target allows."""
        whole = {run.tree for run in self.attestations.runs if run.passed and not run.gates} | {
            str(event.data["tree"]) for event in self.history.of("verdict", journal=QUEUE)
            if event.data["result"] == "green" and not event.data.get("gates")}
        for target in {entry.target for entry in self.entries.values()} - {self._ungated_branch()}:
            landings = {event.seq: event for entry in self.entries.values() if entry.target == target
                        for event in entry.landings if entry.landed}
            since: list[str] = []
            for _, landing in sorted(landings.items()):
                is_whole = self.repository.tree(str(landing.data["new"])) in whole
                old = str(landing.data["old"])
                most = None if self.launch.get("no_gate") else whole_gate_every(self.repository, old)
                since = [] if is_whole or most is None else [*since, *landing.entries]
                if most is not None and len(since) >= most:
                    yield (f"{len(since)} entries landed on {target} without the whole gate, which has to run for one "
                           f"in {most}: {', '.join(since)}")
                    break

    def _attested(self) -> Iterator[str]:
        """A gate run found the tree checked out that the queue intended to test."""
        for run in self.attestations.runs:
            tree = self.repository.tree(run.commit)
            if tree and tree != run.tree:
                if is_flipped(tree, run.tree):
                    self.attestations.require(tree)
                yield f"a gate run that was to test {run.tree} found {run.commit} checked out, whose tree is {tree}"

    # --- once -------------------------------------------------------------------------------------------------------

    def _landed_once(self) -> Iterator[str]:
        for entry in self.entries.values():
            if len(entry.landed) > 1:
                yield f"{entry.name} was recorded as landed {len(entry.landed)} times"
            if entry.landed and not any(event.seq < entry.landed[0].seq for event in entry.landings):
                yield from self._was_there(entry)

    def _only_forward(self) -> Iterator[str]:
        """A landing keeps what the target had: only users revert something."""
        for entry in self.entries.values():
            for event in entry.landings if entry.landed else ():
                new, old = str(event.data["new"]), str(event.data["old"])
                if self.repository.tree(new) and not self.repository.is_ancestor(old, new):
                    yield f"{new}, which landed {entry.name}, lacks {old}, the previous tip of {entry.target}"

    def _was_there(self, entry: _Entry) -> Iterator[str]:
        """What lands without moving the target was already there, by its commits or by their changes."""
        old, commit = (str(entry.landed[0].data.get(name, "")) for name in ("old", "commit"))
        if old != commit or not commit:
            yield f"{entry.name} was recorded as landed without an intent before it"
        elif not self.repository.has_changes_of(entry.oid, commit):
            yield f"{entry.name} was recorded as being on the target already, and {commit} does not contain its changes"

    def _in_the_history(self) -> Iterator[str]:
        """Git has on each target's line exactly what the queue says has landed."""
        rewritten = any(event.data.get("rewritten") for event in self.history.of("foreign", journal=GUARDIAN))
        for target in {entry.target for entry in self.entries.values()} - {self._tested_branch()}:
            ref, base = self.repository.ref_of(target), self._base(target)
            if not ref or not base:
                continue
            named = Counter(name for commit in self.repository.own(base, ref) for name in set(commit.names))
            for entry in self.entries.values():
                if entry.target == target:
                    yield from self._one_in_the_history(entry, named, ref, is_rewritten=rewritten)

    def _own_work(self) -> Iterator[str]:
        """What landed for a node was made by its attempts: the first one started with nothing that the target
        lacked."""
        begun = {event.node or event.journal.partition("-")[2]: str(event.data["value"])
                 for event in self.history.of("fact") if event.data["name"] == "base"}
        for entry in self.entries.values():
            data = entry.enqueued.data
            commit = begun.get(str(data.get("node")), "") if data.get("run") == self.launch.get("run_id") else ""
            if commit and entry.landed and entry.landings \
                    and self.repository.is_ancestor(commit, str(entry.landings[-1].data["new"])) \
                    and not any(self.repository.is_ancestor(commit, old) for old in self._had(entry)):
                yield (f"{entry.name} landed {commit}, with which {data['node']} started: no attempt of this run made "
                       f"it, and {entry.target} did not have it")

    def _had(self, entry: _Entry) -> Iterator[str]:
        """Yield the target's commits before an entry landed, latest first: it may have been moved back since."""
        landings = {event.seq: event for other in self.entries.values() if other.target == entry.target
                    for event in other.landings if event.seq <= entry.landings[0].seq}
        for _, event in sorted(landings.items(), reverse=True):
            yield str(event.data["old"])
            if event.seq < entry.landings[0].seq:
                yield str(event.data["new"])

    def _base(self, target: str) -> str:
        """Return the commit from which a target is searched: the one before this run's first landing there."""
        landings = [event for entry in self.entries.values() if entry.target == target for event in entry.landings]
        first = min(landings, key=lambda event: event.seq, default=None)
        return str(first.data["old"] if first else self.launch.get("base_oid", ""))

    def _one_in_the_history(self, entry: _Entry, named: Mapping[str, int], ref: str, *,
                            is_rewritten: bool) -> Iterator[str]:
        times = named.get(entry.name, 0)
        if times > 1 and entry.strategy not in STRAIGHT:
            yield f"{entry.name} is {times} times in the history of {entry.target}"
        if times and entry.status not in ("landed", "landing", "landing_blocked"):
            yield f"{entry.name} is in the history of {entry.target} and recorded as {entry.status}"
        if entry.landed and entry.status != "undone" and not is_rewritten:
            new = str(entry.landings[-1].data["new"] if entry.landings else entry.landed[0].data["commit"])
            if not self.repository.is_ancestor(new, ref):
                yield f"{entry.name} is recorded as landed by {new}, which {entry.target} does not contain"

    def _ended(self) -> Iterator[str]:
        """At the end of a run each node landed, had nothing to land, was not reached, or failed with a reason."""
        if not self.history.end:
            return
        latest = {str(entry.enqueued.data["node"]): entry for entry in self.entries.values()}
        for name, node in self.nodes.items():
            entry = latest.get(name)
            if node.status == FAILED and not node.reason:
                yield f"{name} failed and no reason is recorded"
            elif node.landing == KEPT and entry is not None:
                yield f"{name} is a candidate, whose work lands only as another node's, and {entry.name} was enqueued"
            elif node.status == LANDED and node.landing not in NO_LANDING and entry is None and node.attempts.total():
                yield f"{name} is recorded as landed and was never enqueued"
            elif node.status == LANDED and node.landing not in NO_LANDING and entry is not None and not entry.landed:
                yield f"{name} is recorded as landed and its merge entry {entry.name} is {entry.status}"
            elif self.history.end == "done" and node.status not in (LANDED, FAILED, SKIPPED, "pending"):
                yield f"the run is done and {name} is {node.status}"
        for entry in self.entries.values():
            if self.history.end == "done" and entry.status not in OVER:
                yield f"the run is done and its merge entry {entry.name} is {entry.status}"

    def _ended_once(self) -> Iterator[str]:
        """A run that is done continues no more."""
        done = False
        for event in self.history.of("run", journal=GUARDIAN):
            if done:
                yield f"the run was done and became {event.data['status']} ({event.place})"
            done |= event.data["status"] == "done"

    # --- lives ------------------------------------------------------------------------------------------------------

    def _successors(self) -> Iterator[str]:
        """Between two starts of one process its supervisor recorded the first one's end."""
        for events in self.history.journals:
            living: dict[str, int] = {}
            ended: Counter[str] = Counter()
            for event in events:
                for name, incarnation in _ends(event, living):
                    ended[name] = max(ended[name], incarnation)
                if event.kind != "spawn":
                    continue
                name, incarnation = str(event.data["full"]), int(event.data["incarnation"])
                before = living.get(name, 0)
                if incarnation <= before:
                    yield f"{name} was started as incarnation {incarnation} after {before} ({event.place})"
                elif ended[name] < before and not follows_an_end(event.data):
                    yield f"{name} got incarnation {incarnation} while {before} had not ended ({event.place})"
                living[name] = max(incarnation, before)

    def _late_writers(self) -> Iterator[str]:
        """No incarnation wrote into a journal after its successor had."""
        for events in self.history.journals:
            latest: dict[str, int] = {}
            for event in events:
                writer, _, incarnation = event.by.rpartition("#")
                if not incarnation.isdigit():
                    continue
                if int(incarnation) < latest.get(writer, 0):
                    yield f"{writer} wrote as incarnation {incarnation} after {latest[writer]} had ({event.place})"
                latest[writer] = max(int(incarnation), latest.get(writer, 0))

    # --- kept -------------------------------------------------------------------------------------------------------

    def _commits(self) -> Iterator[str]:
        for entry in self.entries.values():
            if entry.status in ("superseded", "cancelled") or (entry.landed and entry.strategy != "merge"):
                continue
            if not self.repository.is_kept(entry.oid):
                yield f"{entry.oid}, which {entry.name} enqueued, is {entry.status} and no ref keeps it"

    def _rescued(self) -> Iterator[str]:
        """Saved work still exists, unless its node landed afterwards."""
        for event in self.history.of("rescue"):
            ref, node = str(event.data["ref"]), event.node or event.journal.partition("-")[2]
            if self.nodes.get(node, _Node()).status != LANDED and not self.repository.has_ref(ref):
                yield f"{ref}, in which work of {node} was saved, is gone"

    # --- limits -----------------------------------------------------------------------------------------------------

    def _attempts(self) -> Iterator[str]:
        allowed = self.launch.get("max_rework")
        helped = Counter(event.data.get("node") for event in self.history.of("signal", journal=GUARDIAN)
                         if str(event.data.get("from", "")).startswith("user"))
        moved = Counter(entry.enqueued.data.get("node") for entry in self.entries.values()
                        if entry.moved and entry.enqueued.data.get("run") == self.launch.get("run_id"))
        for name, node in self.nodes.items():
            for step, times in node.attempts.items():
                # A target that moved during the work, and the user's own command, each add an attempt beyond the limit.
                if allowed is not None and times > 1 + int(allowed) + moved[name] + helped[name]:
                    yield f"{name} was started {times} times in step {step or 'one'}, allowed are {1 + int(allowed)}"

    def _deaths(self) -> Iterator[str]:
        allowed = self.launch.get("max_respawn")
        crashes = (event.data for event in self.history.of("death") if event.data.get("class", "crash") == "crash")
        deaths = Counter((str(data["full"]), int(data.get("attempt", 1))) for data in crashes)
        for (name, attempt), times in deaths.items():
            # One more: the limit is on restarts, and the last restarted process may die too.
            if allowed is not None and name.startswith(("runner-", "orchestrator-")) and times > int(allowed) + 1:
                yield f"{name} died {times} times in attempt {attempt}, allowed are {allowed}"

    # --- clean ------------------------------------------------------------------------------------------------------

    def _left(self) -> Iterator[str]:
        if not self.history.end:
            return
        run = str(self.launch.get("run_id", ""))
        for pid, marker in living_processes(self.home, run) if self.home and run else ():
            yield f"process {pid} of {marker} is still there"
        trees = Path(str(self.launch.get("trees") or "/nonexistent"))
        done = {name for name, node in self.nodes.items() if node.status == LANDED}
        for path in self.repository.worktrees():
            if trees in path.parents and path.parent.name == run and path.name in done:
                yield f"the worktree {path} of a landed node is still there"


def _ends(event: JournalEvent, living: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the incarnations that a record ends: by death, by their own report, or with an accepted result."""
    data = event.data
    if event.kind in ("death", "fenced", "swept"):
        yield str(data["full"]), int(data["incarnation"])
    elif event.kind == "signal":
        yield from ((name, int(number)) for name, number in (data.get("lives") or data.get("resume") or {}).items())
        if data.get("type") == "RUNNER_EXITED" and data.get("incarnation"):
            yield str(data["from"]), int(data["incarnation"])
    elif event.kind == "fact" and data["name"] in ("change", "failed"):
        yield from living.items()


def living_processes(home: Path, run: str = "") -> Iterator[tuple[int, str]]:
    """Yield pid and marker (`HOME:RUN:role-name#incarnation`) of every process of that home, or of one run of it."""
    begin = f"GARRISON_LIFE={home}:{run + ':' if run else ''}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            variables = (entry / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or belongs to another user
            continue
        marker = next((one for one in variables if one.startswith(begin)), b"")
        if marker and state != "Z":
            yield int(entry.name), marker.decode(errors="replace").removeprefix("GARRISON_LIFE=")
