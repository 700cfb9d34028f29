"""Briefings: what the prompt of an attempt contains besides its task, read from the run's files and the repository.

`agents.briefing` defines the records, `agents.prompt` puts them into words. The only file written is a copy of the log
that the agent is to read: agents cannot read the original.

Events and the merge queue are imported where they are read: together they take 40 ms of an orchestrator's start, and
few attempts need them.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.agents import prompt
from garrison.agents.base import ANSWERED, FEEDBACK, MESSAGES, REFUSAL_LOG, REPLIES, VALIDATOR, read_notes
from garrison.agents.briefing import (
    NO_PROGRESS,
    Briefing,
    Criterion,
    EarlierDeath,
    EarlierRefusal,
    EndedBy,
    FileConflict,
    Interruption,
    Judgement,
    LandedWork,
    LandingTerms,
    PersonsWord,
    Reporting,
    Sibling,
    StartFrom,
    TargetChange,
    WorkState,
)
from garrison.agents.quotation import mention
from garrison.agents.registry import has_session, limits_of, reporting_of, turns_of, validator_agent
from garrison.ends import End, EndKind, RefusedBy
from garrison.errors import GarrisonError
from garrison.node.instructions import Instructions, read_instructions, read_private_lessons, read_settings
from garrison.node.worktree import CONFLICTS, MERGED, read_lines
from garrison.records import atomic, budget, journal, json_io
from garrison.records import run as run_records
from garrison.records.comments import comment_id
from garrison.records.failover import read_failovers, session_holders
from garrison.records.json_io import read_json
from garrison.records.names import Key, branch_name
from garrison.records.run import CONTINUE, LAND_NONE, LAND_PR, LAND_RUN, Task, read_result
from garrison.sandbox.place import EXCHANGE, Role
from garrison.sandbox.rights import read_rights
from garrison.supervise.death_classes import FAILOVER
from garrison.system import untrusted
from garrison.system.clock import from_iso
from garrison.system.command import read_tail
from garrison.system.exit_info import describe_end
from garrison.system.git import bounds
from garrison.system.git.rescues import parse_rescue
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from garrison.agents.base import Assignment
    from garrison.merge.entry import MergeEntry
    from garrison.merge.queue import MergeQueue
    from garrison.processes.runtime import Runtime
    from garrison.records.events import Event, FactRecorded
    from garrison.records.failover import Failover
    from garrison.records.run import Launch, Result, RunFiles
    from garrison.system.git import Git

MAX_LANDED = 8
"""Upstream nodes whose landed work is named, the latest."""
MAX_SIBLINGS = 8
"""Concurrent tasks that are named."""
MAX_HUNK_LINES = 60
"""Lines of one file's conflicts that are shown."""
MAX_CHANGES = 12
"""Commits of the target that are named."""
MAX_COMMITS, MAX_UNCOMMITTED = 15, 30
"""Commits and changed files of a worktree that are named."""
TAIL_LINES, TAIL_BYTES = 80, 6000
"""End of a log that a prompt contains."""
MAX_LOG = 1 << 20
"""Bytes at the end of a log that the agent gets as a file."""
MAX_FILES = 50
"""Files in conflict that are named."""
MAX_CRITERIA = 10
"""Criteria of a validator that a prompt lists."""
MAX_STAT = 40
"""Files that the summary of refused work lists."""
_BY_VERDICT = {"timeout": "its time was over", "missing": "it was not found or could not run",
               "empty": "it ran no tests", "lost": "it gave no verdict"}
_BY_KIND: dict[str, RefusedBy] = {**{by: by for by in RefusedBy}, RefusedBy.MOVED: RefusedBy.CONFLICT}
_BY_STATUS = {"conflict": RefusedBy.CONFLICT, "rejected": RefusedBy.GATE}


class Briefer:
    """Reads the briefing of one attempt."""

    def __init__(self, runtime: Runtime, launch: Launch, task: Task, git: Git, worktree: Path,
                 failovers: Sequence[Failover] = (), *, copies: bool = True) -> None:
        """Prepare to read; `copies`: copy the log that the agent is to read to where it can."""
        self.copies, self.failovers = copies, failovers
        self.runtime, self.launch, self.task, self.git, self.worktree = runtime, launch, task, git, worktree
        self.files = runtime.files(launch.run_id)
        self.folder = self.files.attempt(task.node, task.attempt)

    def landing(self) -> LandingTerms:
        """Return how the attempt's work lands."""
        launch = self.launch
        gate = "" if launch.no_gate else launch.gate or ""
        if launch.land in (LAND_RUN, LAND_PR):
            return LandingTerms(launch.onto, launch.node_gate or "", launch.base, gate, self.task.approve)
        if launch.land == LAND_NONE:
            return LandingTerms(launch.onto, launch.node_gate or "", approval=self.task.approve)
        return LandingTerms(launch.onto, gate, approval=self.task.approve)

    def prepare(self, assignment: Assignment, notes: str, *, is_successor: bool) -> tuple[Assignment, str]:
        """Return the assignment with the content of its agent's messages, and the text of its prompt."""
        deaths = self.deaths() if is_successor else ()
        briefing = self.brief(assignment, self.interruption(deaths, notes) if is_successor else None)
        instructions = read_instructions(self.git, self.launch.onto, self._began()) \
            if briefing.reporting is Reporting.TOOLS else Instructions()
        refused = self.mender(briefing.refusal)
        assignment = replace(assignment, deaths=deaths, look=self.progress, lands=prompt.lands(briefing.landing),
                             left=briefing.left,
                             confinement=briefing.confinement, instructions=instructions.text,
                             folder_instructions=instructions.folders, refused=refused,
                             read_repository=lambda: read_settings(self.git, self._began()),
                             rework=prompt.rework_message(self.task, briefing) if refused is not None else "")
        return assignment, prompt.build(self.task, briefing)

    def _began(self) -> str:
        """Return the target's commit from which the branch started, '' if unknown."""
        return self._base_of(self.git.head(self.worktree)) or ""

    def brief(self, assignment: Assignment, interruption: Interruption | None = None) -> Briefing:
        """Return the briefing of the attempt, and copy the log of the check that refused the previous one."""
        task = self.task
        landed, more = self._landed()
        rights = read_rights(self.runtime.home, Role.AGENT, task.agent, self.runtime.environ)
        return Briefing(
            branch_name(task.run_id, task.node), self.landing(), bool(validator_agent(task.attributes)), landed, more,
            *self._siblings(), self._attempts(), self._left(), self.decided(), self.refusal(), interruption,
            reporting_of(task.agent, self.runtime.home, task.attributes),
            str(assignment.notes), str(assignment.result_file), prompt.confinement(rights),
            read_private_lessons(self.runtime.home, self.git.key))

    def for_host(self, notes: str, *, is_successor: bool) -> str:
        """Return the text of the task for a host, whose own run briefs the agent about everything else."""
        deaths = self.deaths() if is_successor else ()
        landed, more = self._landed()
        interruption = self.interruption(deaths, notes) if is_successor else None
        return prompt.for_host(self.task, Briefing(
            branch_name(self.task.run_id, self.task.node), self.landing(), bool(validator_agent(self.task.attributes)),
            landed, more, decided=self.decided(), refusal=self.refusal(), interruption=interruption,
            reporting=Reporting.EXIT_CODE, lessons=read_private_lessons(self.runtime.home, self.git.key)))

    # ---- present state

    def _landed(self) -> tuple[tuple[LandedWork, ...], int]:
        named = self.task.landed[-MAX_LANDED:]
        changes = self._changes(*(each["commit"] for each in named), walk=False) if named else []
        files = {commit: names for commit, _, _, names in changes}
        works = tuple(LandedWork(each["node"], _first_line(each["task"]), each["commit"],
                                 tuple(files.get(each["commit"], ()))) for each in named)
        return works, len(self.task.landed) - len(works)

    def _attempts(self) -> int:
        """Return how many attempts the task may have, if each one is refused; 0: only another home knows."""
        if self.launch.claimed_for:
            return 0
        return 1 if self.task.attributes.get("rework") == "none" else self.launch.max_rework + 1

    def _left(self) -> str:
        """Return the responses and dollars that the task's agent has left, as a sentence."""
        from garrison.records import costs

        task, home = self.task, self.runtime.home
        if task.agent == "command":
            return ""
        paths = [path for _, _, path in costs.usage_files(home, task.run_id, task.node) if self.folder in path.parents]
        try:
            most = turns_of(task.agent, task.node, task.attributes, home)
            usd = limits_of(task.agent, task.node, task.attributes, home).node
        except GarrisonError:  # its profile has changed; starting the agent reports it
            return ""
        turns = min((budget.remaining_turns(most, costs.read_usage(path)) or 0 for path in paths), default=most)
        left = [] if most is None else [f"{turns} of {most} responses in this attempt"]
        if usd is not None:
            spent = budget.Meter(home, task.run_id, task.node, budget.Limits(usd)).spent()[0]
            left.append(f"${max(0.0, usd - spent):.2f} of ${usd:.2f} for all attempts")
        return f"You have left: {' and '.join(left)}." if left else ""

    def _siblings(self) -> tuple[tuple[Sibling, ...], int]:
        """Return the tasks of the run that other agents work on now, and how many more there are."""
        found: list[Task] = []
        for node in sorted(atomic.list_names(self.files.root / "nodes")):
            attempt = self.files.latest_attempt(node)
            is_over = os.path.exists(f"{self.files.root}/nodes/{node}/{attempt}/result.json")  # noqa: PTH110  # of all nodes
            if node != self.task.node and not is_over:
                with suppress(GarrisonError):
                    found += filter(None, [run_records.load(Task, self.files.attempt(node, attempt) / "task.json")])
        return (tuple(Sibling(task.node, _title(task), self.files_of(task)) for task in found[:MAX_SIBLINGS]),
                max(0, len(found) - MAX_SIBLINGS))

    def files_of(self, task: Task) -> tuple[str, ...]:
        """Return the files that another node has committed on its branch, and those that it may change."""
        tip = self.git.branch_tip(branch_name(task.run_id, task.node))
        base = self._base_of(tip)
        changed = self.git.changed_paths(base, tip) if tip and base and self._is_bounded(base, tip) else []
        return tuple(dict.fromkeys([*changed, *task.may_change]))

    def progress(self) -> WorkState:
        """Return what is committed and uncommitted in the worktree now; empty if git fails."""
        with suppress(GarrisonError):
            head = self.git.head(self.worktree)
            base = self._base_of(head)
            if head is None or base is None:
                return NO_PROGRESS
            is_read = head != base and self._is_bounded(base, head)
            commits = self.git.log_oneline(f"{base}..{head}", MAX_COMMITS, self.worktree) if is_read else []
            more = self.git.count_commits(f"{base}..{head}") - MAX_COMMITS if len(commits) == MAX_COMMITS else 0
            changed = self.git.list_files(self.worktree, "status", "--porcelain",
                                          "--untracked-files=normal").splitlines()
            return WorkState(base, tuple(commits), more,
                             tuple(changed[:MAX_UNCOMMITTED]), max(0, len(changed) - MAX_UNCOMMITTED))
        return NO_PROGRESS

    def _is_bounded(self, base: str, tip: str) -> bool:
        """Return whether the commits are small enough to read: without a sandbox they have not been measured yet."""
        with suppress(GarrisonError):
            return tip == base or not bounds.explain_excess(self.git, base, tip)
        return False

    def _base_of(self, commit: str | None) -> str | None:
        """Return the target's commit from which a branch started."""
        target = self.git.branch_tip(self.launch.onto) or self.launch.base_oid
        if commit == target:
            return target
        return self.git.merge_base(target, commit) if commit and target else None

    # ---- what happened in this attempt

    def deaths(self) -> tuple[EarlierDeath, ...]:
        """Return how earlier processes of this attempt's agent died, oldest first."""
        from garrison.records.events import ChildDied

        full = Key("orchestrator", self.task.node, self.launch.run_id).full
        return tuple(EarlierDeath(from_iso(at), f"its process died: {event.why}" if event.why else "its process died")
                     for at, event in self._journal(self.task.attempt)
                     if isinstance(event, ChildDied) and event.full == full and event.death_class != FAILOVER)

    def interruption(self, deaths: Sequence[EarlierDeath], notes: str) -> Interruption:
        """Return what an agent that continues an attempt must know, unless its own session contains it."""
        how, last = "the run was stopped, and has been resumed", self.failovers[-1] if self.failovers else None
        if last is not None and (not deaths or deaths[-1].at <= last.at):
            how = f"{last.previous}, the agent that worked on it, cannot continue ({mention(last.cause)})"
        elif deaths:
            how = deaths[-1].how
        since = [death for death in deaths if last is None or death.at > last.at]
        return Interruption(how, len(since), output=read_tail(self.folder / "output.log", 20, 3000),
                            progress=self.progress(), notes=notes,
                            predecessors=tuple(dict.fromkeys(each.previous for each in self.failovers if each.started)))

    def _journal(self, attempt: int) -> list[tuple[str, Event | None]]:
        from garrison.records.events import read_attempt

        return read_attempt(self.files.process_journal(f"runner-{self.task.node}"), attempt)

    def _fact(self, attempt: int, name: str) -> FactRecorded | None:
        """Return the recorded result of an attempt's job; None if there is none."""
        from garrison.records.events import FactRecorded

        return next((event for _, event in reversed(self._journal(attempt))
                     if isinstance(event, FactRecorded) and event.name == name), None)

    # ---- why the previous attempt was refused

    def refusal(self) -> EarlierRefusal | None:
        """Return why the previous attempt was refused, and what is left of it; None for a first attempt."""
        if self.task.attempt < 2 or not self.task.rework_reason:
            return None
        previous = self.task.attempt - 1
        entry = self._refused_entry(previous)
        events = [event for _, event in self._journal(previous)]
        by = self._refused_by(entry, events, previous)
        rescue = self._rescue(events, previous)
        start = {CONTINUE: StartFrom.CONTINUE, "merge": StartFrom.MERGE}.get(self.task.rework, StartFrom.FRESH)
        tip, base = entry.base if entry else "", self._base(entry, rescue)
        refusal = EarlierRefusal(by, previous, self.task.rework_reason, target=self.launch.onto, tip=tip, base=base,
                                 claim=self._claim(previous), ended=self._ended(previous), rescue=rescue,
                                 stat=self._stat(base, rescue), start=start)
        refusal = self._with_feedback(replace(
            refusal, notes=read_notes(self.files.attempt(self.task.node, previous)),
            earlier=self._earlier_refusals(previous)))
        if start is StartFrom.MERGE:
            refusal = self._with_merge(refusal)
        elif entry is not None and by is RefusedBy.CONFLICT:
            refusal = replace(refusal, conflicts=self._conflicts(entry.files, base, tip))
        detail = _DETAILS.get(by)
        return detail(self, refusal, entry) if detail is not None else refusal

    def mender(self, refusal: EarlierRefusal | None) -> Path | None:
        """Return the folder of the refused attempt if its session continues with the refusal; None: a fresh one starts.

        A pipeline that returns to a node configures itself which session continues; `rework=fresh` starts all over.
        """
        is_anew = self.task.attributes.get("rework") == StartFrom.FRESH
        if refusal is None or refusal.by is RefusedBy.RUN or self.failovers or is_anew:
            return None
        from garrison.agents.conversation.files import AttemptFiles
        from garrison.agents.program_stream import find_mender

        folder = self.files.attempt(self.task.node, refusal.attempt)
        before = run_records.load(Task, folder / "task.json")
        if before is None or before.agent != self.task.agent or read_failovers(folder):
            return None
        can_mend = bool(AttemptFiles(folder).find_mender()) or (
            refusal.by is not RefusedBy.FAILED and bool(find_mender(folder)))
        return folder if can_mend else None

    def _with_feedback(self, refusal: EarlierRefusal) -> EarlierRefusal:
        """Add the full feedback on the pull request for which the node was last sent back: each attempt since
        then has to answer it."""
        from garrison.records.events import FlowAdvanced, GuardianSignal, NodeChanged, PullRequestChanged, decode

        if self.launch.land != LAND_PR:
            return refusal
        sent, attempts = None, set[int]()  # the last return, and the node's attempts since then
        with suppress(GarrisonError, OSError, ValueError):
            for entry in journal.read_all(self.files.journal):
                if entry.kind not in (PullRequestChanged.kind, NodeChanged.kind, GuardianSignal.kind):
                    continue
                match decode(entry):
                    case PullRequestChanged(flow=FlowAdvanced()) as event if event.node == self.task.node:
                        sent, attempts = event, set()
                    case (NodeChanged() as change) | GuardianSignal(effect=NodeChanged() as change) \
                            if change.node == self.task.node:
                        attempts.add(change.attempt)
        if sent is None or sent.flow is None:
            return refusal
        is_cause = attempts <= {self.task.attempt}
        text = str(sent.flow.body.get("reason") or "")[len(sent.reason):].strip()
        path = self.folder / FEEDBACK
        is_long = len(text) > prompt.MAX_FEEDBACK
        if is_long and self.copies:
            atomic.write(path, text.encode(errors="replace"), durable=False)
        return replace(refusal, reason=sent.reason if is_cause else refusal.reason, feedback=text,
                       feedback_file=str(path) if is_long else "",
                       comments=tuple(key.split("@")[0] for key in sent.taken if not key.startswith("check:")),
                       replies_file=str(self.folder / EXCHANGE / REPLIES))

    def _has_session(self) -> bool:
        with suppress(GarrisonError) if self.task.hosts else nullcontext():  # an agent that only the host knows
            return has_session(self.task.agent, self.runtime.home)
        return False

    def decided(self, *, by_all: bool = False) -> tuple[PersonsWord, ...]:
        """Return the decisions of the person in charge about the task, oldest first.

        Args:
            by_all: also what the current agent gets elsewhere: messages to its session, the review that it reworks.
        """
        task, words = self.task, list[PersonsWord]()
        for attempt in range(1, task.attempt + 1):
            folder = self.files.attempt(task.node, attempt)
            words += [PersonsWord(str(line["text"]), str(line["question"]), "", str(line["at"]))
                      for line in json_io.read_lines(folder / ANSWERED)]
            if by_all or attempt < task.attempt or not self._has_session():
                words += [PersonsWord(str(line["text"]), "", "", str(line["at"])) for holder in session_holders(folder)
                          for line in json_io.read_lines(holder / MESSAGES)]
        words.sort(key=lambda word: word.at)
        if task.attempt > 1:
            words += [PersonsWord(entry.review, "", f"in their review of attempt {entry.attempt}")
                      for entry in self._queue().state.entries_of(self.launch.run_id, task.node)
                      if entry.review and (by_all or entry.attempt < task.attempt - 1)]
        if task.context.get("human.gate.node"):
            words += self._said_at_gates()
        return tuple(word for word in words if word.text.strip())

    def _said_at_gates(self) -> list[PersonsWord]:
        """Return the user's answers to the run's gates, as the guardian recorded them: agents can write a context."""
        from garrison.records.events import GuardianSignal, decode

        words = []
        with suppress(GarrisonError, OSError, ValueError):
            for entry in journal.read_all(self.files.journal):
                event = decode(entry)
                if isinstance(event, GuardianSignal) and event.type == "INPUT_RESPONSE" and event.flow is not None:
                    text = str(event.flow.outcome.context_updates.get("human.gate.text") or "")
                    words.append(PersonsWord(text, "", f"at the gate {event.node}", entry.at))
        return words

    def _earlier_refusals(self, before: int) -> tuple[str, ...]:
        """Return why the earlier attempts were refused, a line each."""
        from garrison.records.events import FactRecorded

        lines = []
        for attempt in range(1, before):
            entry = self._refused_entry(attempt)
            facts = [event.value for _, event in self._journal(attempt)
                     if isinstance(event, FactRecorded) and event.name == "failed"]
            reason = entry.reason if entry is not None else str(facts[-1]) if facts else ""
            lines += [f"attempt {attempt}: {_first_line(reason)}"] if reason else []
        return tuple(lines)

    def _refused_entry(self, attempt: int) -> MergeEntry | None:
        entries = self._queue().state.entries_of(self.launch.run_id, self.task.node)
        return next((entry for entry in reversed(entries)
                     if entry.attempt == attempt and entry.status in _BY_STATUS), None)

    def _queue(self) -> MergeQueue:
        from garrison.run.branch import node_queue

        return node_queue(self.runtime, self.launch, "briefing", self.git)

    def _refused_by(self, entry: MergeEntry | None, events: Sequence[Event | None], attempt: int) -> RefusedBy:
        from garrison.records.events import FactRecorded

        if entry is not None:
            return RefusedBy.REVIEW if entry.review else _BY_STATUS[entry.status]
        facts = {event.name: event for event in events if isinstance(event, FactRecorded)}
        kind = facts["failed"].failure_kind if "failed" in facts else ""
        if kind == RefusedBy.ACCEPTANCE:
            accepted = "acceptance" not in facts or facts["acceptance"].value == "ok"
            return RefusedBy.VALIDATOR if VALIDATOR in facts and accepted else RefusedBy.ACCEPTANCE
        if self.task.rework == CONTINUE:
            return RefusedBy.LOST
        if kind not in _BY_KIND and "failed" in facts:
            from garrison.agents.conversation.trouble import was_hindered

            return RefusedBy.OUTAGE if was_hindered(self.files.attempt(self.task.node, attempt)) else RefusedBy.FAILED
        return _BY_KIND.get(kind, RefusedBy.RUN)

    def _rescue(self, events: Iterable[Event | None], attempt: int) -> str:
        """Return the ref under which the attempt's work was saved at its end, '' for none."""
        from garrison.records.events import WorkSaved

        refs = [event.ref for event in events if isinstance(event, WorkSaved)]
        plain = [ref for ref in refs if parse_rescue(ref).attempt == attempt and not parse_rescue(ref).kind]
        return plain[-1] if plain and self.git.rev(plain[-1]) else ""

    def _base(self, entry: MergeEntry | None, rescue: str) -> str:
        if entry is not None and entry.base:
            return self.git.merge_base(entry.base, entry.oid) or ""
        return (self._base_of(self.git.rev(rescue)) or "") if rescue else ""

    def _claim(self, attempt: int) -> str:
        result, evidence = _reported(self.files, self.task, attempt)
        notes = str(result.said.get("notes") or "") if result is not None else ""
        return "\n".join([notes, *(f"- {line}" for line in evidence)]).strip()

    def _ended(self, attempt: int) -> EndedBy:
        result, _ = _reported(self.files, self.task, attempt)
        if result is None or result.said.get("status"):
            return EndedBy.REPORTED
        from garrison.agents.conversation.files import AttemptFiles

        is_silent = AttemptFiles(self.files.attempt(self.task.node, attempt)).unreported.exists()
        return EndedBy.SILENT if is_silent else EndedBy.EXIT_CODE

    def _stat(self, base: str, rescue: str) -> str:
        if not base or not rescue:
            return ""
        return self.git.run("diff", "--stat=100", f"--stat-count={MAX_STAT}", base, rescue, "--",
                            check=False).out.rstrip()

    def _with_merge(self, refusal: EarlierRefusal) -> EarlierRefusal:
        """Add what was merged into the branch at the start of this attempt, and the resulting files in conflict."""
        names = read_lines(self.folder / CONFLICTS)
        merged, _, label = "".join(read_lines(self.folder / MERGED)[:1]).partition(" ")
        return replace(refusal, merged=merged, label=label or merged,
                       conflicts=tuple(replace(each, hunks=self._hunks(each.name))
                                       for each in self._conflicts(names, refusal.base, merged)))

    def _hunks(self, name: str) -> str:
        """Return the conflicts in a file of the worktree, '' for none."""
        from garrison.merge.diff_guard import conflict_hunks

        with suppress(GarrisonError, OSError):
            return conflict_hunks(untrusted.read_begin(self.worktree, name, MAX_LOG).decode(errors="replace"),
                                  MAX_HUNK_LINES)
        return ""

    def _conflicts(self, names: Sequence[str], base: str, tip: str) -> tuple[FileConflict, ...]:
        """Return files in conflict, each with the commits of the target that changed it."""
        changed: dict[str, list[TargetChange]] = {name: [] for name in names[:MAX_FILES]}
        if base and tip and changed:
            works = self._works()
            for commit, subject, author, files in self._changes(f"{base}..{tip}", "--", *changed):
                for name in changed.keys() & set(files):
                    changed[name].append(_target_change(commit, subject, author, works))
        return tuple(FileConflict(name, tuple(changes[:MAX_CHANGES])) for name, changes in changed.items())

    def _landed_since(self, base: str, tip: str) -> tuple[tuple[TargetChange, ...], int]:
        if not base or not tip or base == tip:
            return (), 0
        found, works = self._changes(f"{base}..{tip}"), self._works()
        named = tuple(_target_change(commit, subject, author, works)
                      for commit, subject, author, _ in found[:MAX_CHANGES])
        return named, len(found) - len(named)

    def _changes(self, *revisions: str, walk: bool = True, batches: bool = True,
                 ) -> list[tuple[str, str, str, list[str]]]:
        """Return commit, subject, author and changed files of the target's commits in a range, newest first.

        Args:
            walk: the revisions are a range and paths, not single commits.
            batches: for the merge of a batch, return the commits of its entries.
        """
        from garrison.merge.entry import TRAILER

        # Without `-m` git lists no files of a merge. The other options override the user's configuration:
        # signatures (`log.showSignature`) or another encoding would get between the fields.
        arguments = ("log", "--first-parent", "-m", "--name-only", "--no-show-signature", "--encoding=UTF-8",
                     f"--format=%x00%H%x01%P%x01%(trailers:key={TRAILER},valueonly,separator=%x2C)%x01%s%x01%an%x01",
                     *(() if walk else ("--no-walk=unsorted",)))
        output = self.git.run(*arguments, *revisions, check=False).out
        changes: list[tuple[str, str, str, list[str]]] = []
        for part in output.split("\0")[1:]:
            commit, parents, entries, subject, author, names = part.split("\1", 5)
            if walk and batches and "," in entries and " " in parents:
                tip, top = parents.split()[:2]
                changes += self._changes(f"{tip}..{top}", *revisions[1:], batches=False)
            else:
                changes.append((commit, subject, author, [name for name in names.splitlines() if name]))
        return changes

    def _works(self) -> dict[str, tuple[str, str, str]]:
        """Return for each commit that the queue landed its node, its task, and the task's prompt."""
        return {entry.commit: (entry.node, *self._asked(entry)) for entry in self._queue().state.entries.values()
                if entry.status == "landed" and entry.commit}

    def _asked(self, entry: MergeEntry) -> tuple[str, str]:
        with suppress(GarrisonError):
            path = self.runtime.files(entry.run or "-").attempt(entry.node, entry.attempt) / "task.json"
            if (task := run_records.load(Task, path)) is not None:
                return _title(task), task.prompt
        return "", ""

    # ---- details by kind of refusal

    def _by_acceptance(self, refusal: EarlierRefusal, _entry: MergeEntry | None) -> EarlierRefusal:
        log = self.files.attempt(self.task.node, refusal.attempt) / "acceptance.log"
        fact = self._fact(refusal.attempt, "acceptance")
        how = _how(fact.end) if fact is not None else ""
        return self._with_log(replace(refusal, command=self.task.acceptance or "", how=how), log)

    def _by_gate(self, refusal: EarlierRefusal, entry: MergeEntry | None) -> EarlierRefusal:
        config = self._queue().state.config
        is_setup = entry is not None and entry.verdict == "setup"
        command = (config.setup if is_setup else config.gate) if config is not None else self.launch.gate
        landed, more = self._landed_since(refusal.base, refusal.tip)
        how, note = ("", "") if entry is None else (_how(End(entry.code), entry.verdict), entry.note)
        refusal = replace(refusal, command=command or "", how=how, landed=landed, more_landed=more, note=note)
        return self._with_log(refusal, Path(entry.log) if entry is not None and entry.log else None)

    def _by_validator(self, refusal: EarlierRefusal, _entry: MergeEntry | None) -> EarlierRefusal:
        criteria = tuple(each for each in self.criteria(refusal.attempt) if not each.met)
        fact = self._fact(refusal.attempt, VALIDATOR)
        return replace(refusal, reason=fact.said if fact is not None and fact.said else refusal.reason,
                       criteria=criteria[:MAX_CRITERIA])

    def criteria(self, attempt: int) -> tuple[Criterion, ...]:
        """Return the criteria by which a validator judged an attempt."""
        folder = self.files.attempt(self.task.node, attempt) / VALIDATOR
        listed = (read_json(folder / "claude" / "report.json") or {}).get("criteria")
        return tuple(Criterion(str(each.get("criterion", "")), each.get("met") is True, str(each.get("evidence", "")))
                     for each in listed if isinstance(each, dict)) if isinstance(listed, list) else ()

    def _by_review(self, refusal: EarlierRefusal, entry: MergeEntry | None) -> EarlierRefusal:
        if entry is None:
            return refusal
        ids = tuple(comment_id(number) for number in range(1, len(entry.comments) + 1))
        return replace(refusal, reason=entry.review, comments=(*refusal.comments, *ids),
                       replies_file=str(self.folder / EXCHANGE / REPLIES) if ids else refusal.replies_file)

    def _without_change(self, refusal: EarlierRefusal, _entry: MergeEntry | None) -> EarlierRefusal:
        log = self.files.attempt(self.task.node, refusal.attempt) / "output.log"
        return replace(refusal, output=read_tail(log, 20, 3000))

    def _by_run(self, refusal: EarlierRefusal, _entry: MergeEntry | None) -> EarlierRefusal:
        """Add the gate's output if the whole run was refused."""
        from garrison.run.branch import landing_queue

        queue = landing_queue(self.runtime, self.launch, "briefing", self.git)
        entries = [each for each in queue.state.entries.values() if each.run == self.launch.run_id] if queue else []
        if not entries or entries[-1].status != "rejected" or not entries[-1].log:
            return refusal
        return self._with_log(refusal, Path(entries[-1].log))

    def _with_log(self, refusal: EarlierRefusal, log: Path | None) -> EarlierRefusal:
        if log is None or not log.is_file():
            return refusal
        output, copy = read_tail(log, TAIL_LINES, TAIL_BYTES), self.folder / REFUSAL_LOG
        if self.copies:
            _copy_end(log, copy)
        from garrison.merge.failing_tests import find_failing  # few prompts are about failed tests

        return replace(refusal, output=output, failing=tuple(find_failing(read_tail(log, 20_000, MAX_LOG))),
                       log=str(copy))


_DETAILS = {RefusedBy.ACCEPTANCE: Briefer._by_acceptance, RefusedBy.GATE: Briefer._by_gate,
            RefusedBy.VALIDATOR: Briefer._by_validator, RefusedBy.REVIEW: Briefer._by_review,
            RefusedBy.NO_CHANGE: Briefer._without_change, RefusedBy.RUN: Briefer._by_run}


def read_judgement(runtime: Runtime, launch: Launch, task: Task, git: Git, head: str, diff_file: Path, *,
                   can_run: bool) -> Judgement:
    """Return the input of an attempt's validator; write the whole change to a file if it is long."""
    target = git.branch_tip(launch.onto) or launch.base_oid
    base = git.merge_base(target, head) or target
    diff = git.run("diff", "--no-color", "--no-ext-diff", "--no-textconv", base, head, "--").out
    is_long = len(diff) > prompt.MAX_DIFF
    if is_long:
        atomic.write(diff_file, diff.encode(errors="replace"))
    result, evidence = _reported(runtime.files(launch.run_id), task, task.attempt)
    claim = str(result.said.get("notes") or "") if result is not None else ""
    briefer = Briefer(runtime, launch, task, git, Path())
    before = next((found for attempt in range(task.attempt - 1, 0, -1) if (found := briefer.criteria(attempt))), ())
    return Judgement(
        branch_name(task.run_id, task.node), base, head, launch.onto,
        git.run("diff", "--stat=100", base, head, "--").out.rstrip(), "" if is_long else diff, str(diff_file),
        task.acceptance or "", claim or (result.tail if result is not None else ""),
        evidence, briefer.decided(by_all=True), before[:MAX_CRITERIA], can_run)


def _reported(files: RunFiles, task: Task, attempt: int) -> tuple[Result | None, tuple[str, ...]]:
    """Return an attempt's result with what its agent reported, and the evidence that the agent gave."""
    folder = files.attempt(task.node, attempt)
    result, _ = read_result(folder / "result.json", task.run_id, task.node, attempt)
    evidence = (read_json(folder / "claude" / "report.json") or {}).get("evidence")
    return result, tuple(map(str, evidence)) if isinstance(evidence, list) else ()


def _target_change(commit: str, subject: str, author: str, works: dict[str, tuple[str, str, str]],
                   ) -> TargetChange:
    node, task, asked = works.get(commit, ("", "", ""))
    return TargetChange(commit, subject, node, task, author, asked)


def _how(end: End | None, verdict: str = "") -> str:
    """Return in words how a command ended, for a gate with its verdict; '' if unknown."""
    if verdict in _BY_VERDICT:
        return _BY_VERDICT[verdict]
    if end is None or end.kind is EndKind.LOST:
        return ""
    if end.timed_out:
        return "its time was over"
    return describe_end(end) if end.signal else f"exit {end.code}"


def _copy_end(source: Path, target: Path) -> None:
    """Copy the end of a log to where the agent can read it."""
    with suppress(OSError), source.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MAX_LOG))
        atomic.write(target, file.read(MAX_LOG), durable=False)


def _title(task: Task) -> str:
    """Return the first line of a node's label, or of its task if it has no label."""
    return _first_line(task.label if task.label != task.node else task.prompt)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
