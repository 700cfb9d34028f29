"""Candidates: commits that the target would become, built by each entry's strategy: merge, squash, rebase or ff-only.

A candidate depends only on the entries, the tip and the gate: the same entry on the same base with the same trailers
gives the same commits, byte for byte. Authors and their dates are kept, the user is the committer. Only the commits
that land are signed. No checkout is involved, and the tested tree is the tree that lands. The last commit of an entry
has the queue's trailers, except with ff-only, which makes no commit.

The entries of a set are stacked on the tip in order and tested in that form. Landing makes new commits with the same
trees; their trailers name the entries that landed together and say that the last one's tree was tested. A batch lands
under one merge with that tree, whose second parent is the last of them: so each commit on the target's first-parent
line was tested, and each entry can still be reverted alone.

An entry that cannot be built on the tip itself gets its final status here: in conflict, already landed, or commit gone.
One that cannot be built on the other entries of the batch waits until they have landed.
"""

from __future__ import annotations

import hashlib
import re
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from garrison.errors import GarrisonError, Hindered, UsageError
from garrison.merge import union
from garrison.merge.config import BATCH_HISTORY
from garrison.merge.entry import BRANCH_TRAILER, FAST_FORWARD, STRAIGHT, TRAILER
from garrison.merge.queue import StepResult, pin_ref
from garrison.merge.records import EntryCancelled, EntryLanded, StatusChanged
from garrison.merge.turns import TURN, is_free_loss
from garrison.plugins import PluginGroup, load, offered
from garrison.records.names import INTEGRATION
from garrison.system import failpoint
from garrison.system.clock import from_iso
from garrison.system.git import GitError
from garrison.system.git.bounds import explain_excess
from garrison.system.git.commits import MergeResult
from garrison.system.git.damage import GcWatch, is_gc_running
from garrison.system.git.landable import explain_refusal
from garrison.system.git.repository import EMAIL, NAME
from garrison.system.git.signing import SigningFailed, parse_ident
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from garrison.merge.config import QueueConfig
    from garrison.merge.entry import MergeEntry
    from garrison.merge.gates_by_path import ChosenGate
    from garrison.merge.queue import QueueWriter
    from garrison.system.git import Git
    from garrison.system.git.commits import Commit

    Trailers = Callable[[str], Sequence[str]]
    """Tree → trailer lines of a commit's message."""
    Merge = Callable[[str, str], MergeResult]
    """Merges two commits: ours, theirs."""


_LINE_FORMAT = f"--format=%H|%P|%(trailers:key={TRAILER},valueonly,separator=%x2C)"
_KEPT_CHAINS = 32
"""Chains on the current tip kept in memory."""


class CandidateChain(Value):
    """Batch stacked on the tip `base`: `trees[i]` and `commits[i]` contain the first i entries, those at 0 none."""

    base: str
    entries: tuple[MergeEntry, ...]
    trees: tuple[str, ...]
    commits: tuple[str, ...]
    exact: tuple[str, ...] = ()
    """Entries whose commits already have their landing trailers."""
    united: tuple[tuple[str, ...], ...] = ()
    """For each entry, the files in which both sides' lines were kept (see `union`)."""

    def prefix(self, entries: Sequence[MergeEntry]) -> CandidateChain:
        return CandidateChain(self.base, tuple(entries), self.trees[:len(entries) + 1],
                              self.commits[:len(entries) + 1], self.exact, self.united[:len(entries)])

    def after(self, count: int, tip: str) -> CandidateChain:
        """Return the rest of the chain once its first `count` entries are the tip; the trees do not change."""
        return CandidateChain(tip, self.entries[count:], self.trees[count:], (tip, *self.commits[count + 1:]),
                              united=self.united[count:])


class LandingCommits(Value):
    """Commits of a landing: the target's `new` one, and that of each entry."""

    new: str
    entries: tuple[str, ...]


class CandidateBuilder:
    """Builds the candidates of one queue, and keeps the last chains in memory."""

    def __init__(self, writer: QueueWriter, turn: float = TURN) -> None:
        """`turn`: seconds of the turn of a node that lost to a moved target."""
        self.writer, self.queue, self.git, self.turn = writer, writer.queue, writer.git, turn
        self.select_gate: Callable[[QueueConfig, str, str], ChosenGate | None] = lambda config, base, tree: None
        """Returns the gate selected by the paths in which a tree differs from the target; None for the whole one."""
        self._chains: list[CandidateChain] = []
        self._pinned: dict[str, str] = {}
        """Entry → its pinned candidate commit."""
        self._checked = False
        """True once a batch was built from intact objects: damage by a dead processor is then ruled out."""
        self._dropped: set[str] = set()
        """Objects that were set aside, or were missing, when a batch was built."""
        self.robbed = False
        """Set once a `git gc` removed what was built: it is rebuilt while gc is locked out."""
        self._gc = GcWatch(self.git.common)
        self._signed: tuple[tuple[object, ...], tuple[str, ...]] = ((), ())
        """What was last signed, and its commits: a landing that was blocked is not signed again."""

    # --- a set ------------------------------------------------------------------------------------------------------

    def start_set(self, tip: str, wanted: Sequence[MergeEntry]) -> StepResult | CandidateChain:
        """Stack the wanted entries on the tip, without those that do not merge with the earlier ones. If the first
        cannot be built on the tip, settle it instead. Queued entries become candidates.
        """
        self._name_committer()
        chosen: list[MergeEntry] = []
        built: list[Candidate] = []
        names = tuple(entry.id for entry in wanted)
        for entry in wanted:
            is_waiting = entry.status == "queued"
            parent = str(built[-1].commit) if built else tip
            before = built[-1].tree if built else self.git.tree_of(tip)
            try:
                candidate = self._build(entry, parent, names, len(chosen) + 1, tip)
            except GitError:
                if not chosen:
                    raise
                continue  # not the first entry: others may cause the failure, so it waits
            if isinstance(candidate, StepResult):
                return candidate
            if (candidate.commit is None or candidate.tree == before) and is_waiting and \
                    self.git.is_ancestor(entry.oid, tip):
                return self._record_already_landed(entry, tip, self._explain_presence(entry, tip))
            changes_nothing = bool(built) and candidate.tree == built[-1].tree
            if candidate.commit is not None and candidate.commit != parent and not changes_nothing:
                chosen.append(entry)
                built.append(candidate)
            elif not chosen:  # not the first entry: once the others have landed, the target may contain it already
                return self._record_unbuildable(entry, tip, candidate)
        return self._begin(CandidateChain(
            tip, tuple(chosen), (self.git.tree_of(tip), *(each.tree for each in built)),
            (tip, *(str(each.commit) for each in built)), names, tuple(each.united for each in built)))

    def _begin(self, chain: CandidateChain) -> StepResult | CandidateChain:
        """Pin a chain, and turn its queued entries into candidates."""
        tip, chosen = chain.base, chain.entries
        if self._drop_damage(tip, chain.commits[-1], chosen):
            return StepResult("built again", chosen[0].id)
        self._keep(chain)
        # Pin before recording: the journal must not name commits that gc may remove.
        self.pin_candidate(chain)
        failpoint.here("pinned")
        joining = [index for index, entry in enumerate(chosen, 1) if entry.status == "queued"]
        if joining:
            self.writer.append(StatusChanged(tuple(chosen[index - 1].id for index in joining), "candidate", base=tip,
                                             trees=tuple(chain.trees[index] for index in joining),
                                             commits=tuple(chain.commits[index] for index in joining)))
            failpoint.here("candidate")
        return chain

    def _keep(self, chain: CandidateChain) -> None:
        self._chains = [chain, *(each for each in self._chains if each.base == chain.base)][:_KEPT_CHAINS]

    def lands_alone(self, entry: MergeEntry) -> bool:
        """Return whether an entry must land alone: its strategy promises a linear history of tested commits.
        """
        return self._is_merged_at_tip and entry.strategy in STRAIGHT

    @property
    def _is_merged_at_tip(self) -> bool:
        config = self.queue.state.config
        return config is None or config.batch_history == BATCH_HISTORY[0]

    def _build(self, entry: MergeEntry, parent: str, names: tuple[str, ...], position: int, tip: str,
               ) -> Candidate | StepResult:
        try:
            return self._build_landable(entry, parent, names, position, tip)
        except GitError:
            if self.git.rev(entry.oid) is not None:
                raise
            self.writer.append(EntryCancelled(entry.id, f"commit {entry.oid} is gone"), sync=True)
            return StepResult("cancelled", entry.id)

    def _build_landable(self, entry: MergeEntry, parent: str, names: tuple[str, ...], position: int, tip: str,
                        ) -> Candidate:
        """Build an entry's candidate, or explain why nobody could check out or merge its tree.

        Damaged objects of an earlier try that make git fail are set aside and rewritten.
        """
        while True:
            try:
                if excess := self._explain_excess(entry, target=tip):
                    return Candidate("", None, (), excess)
                candidate = build_candidate(self.git, entry, parent, self.trailers_of(entry, names, position, tip),
                                            target=tip)
                why = self._explain_refusal(parent, candidate, foreign=candidate.commit == entry.oid)
                return Candidate("", None, (), why) if why else candidate
            except GitError as error:
                if not self.git.drop_damaged_named(error.stderr):  # terminates: each pass sets some aside
                    raise

    def _explain_excess(self, entry: MergeEntry, target: str) -> str:
        """Return which limit an entry's history exceeds, '' if none; called before git lists or merges it."""
        excess = self.git.excesses.get(entry.oid)  # a known result needs no merge base
        if excess is None:
            excess = explain_excess(self.git, self.git.merge_base(target, entry.oid) or "", entry.oid)
        return f"{entry.branch} is too large to be tested: {excess}" if excess else ""

    def _explain_refusal(self, parent: str, candidate: Candidate, *, foreign: bool) -> str:
        """Return why git itself refuses a candidate's tree, '' if it does not."""
        if candidate.commit is None or candidate.commit == parent:
            return ""
        config = self.queue.state.config
        return explain_refusal(self.git, self.git.tree_of(parent), candidate.tree, foreign=foreign,
                               missing=config is None or config.no_gate)

    def _record_unbuildable(self, entry: MergeEntry, tip: str, candidate: Candidate) -> StepResult:
        """Settle an entry that has no candidate on the tip: already landed, or in conflict."""
        if entry.status != "queued":
            self.writer.append(StatusChanged((entry.id,), "queued", "its candidate no longer fits the target"))
            return StepResult("requeued", entry.id)
        if candidate.commit is not None:
            return self._record_already_landed(entry, tip, f"its changes are already in {self.queue.target}")
        return self.record_conflict(entry, tip, candidate.files, candidate.reason)

    def record_conflict(self, entry: MergeEntry, tip: str, files: Sequence[str], reason: str) -> StepResult:
        """Record that an entry is in conflict with the tip; if a runner enqueued it, its node gets a turn."""
        has_turn = bool(files and entry.recipient)
        earlier = [each for each in self.queue.state.entries_of(*entry.key) if each.id != entry.id]
        self.writer.append(StatusChanged(
            (entry.id,), "conflict", f"{reason} (against {self.queue.target} at {tip[:10]})", tuple(files), tip,
            turn=self.turn if has_turn else 0.0, moved=has_turn and is_free_loss(files, earlier)), sync=True)
        failpoint.here("conflict")
        return StepResult("conflict", entry.id)

    def _explain_presence(self, entry: MergeEntry, tip: str) -> str:
        """Describe how the target got an entry's commit: by a landing, or from elsewhere, without a test."""
        target, moves = self.queue.target, self.queue.state.moves
        missing = f"{entry.oid}..{tip}"
        # not both options at once: in a batch the commit is behind the merges of its chain, off the first-parent line
        has_it = set(self.git.run("rev-list", "--ancestry-path", missing, "--").out.split())
        lines = self.git.run("log", "--first-parent", _LINE_FORMAT, missing, "--").out.splitlines()
        later = [line.split("|") for line in reversed(lines)  # on the target's first-parent line, oldest first
                 if line.split("|", 1)[0] in has_it]
        if later and later[0][1].split(" ")[0] != entry.oid and later[0][2].strip():
            return f"already in {target}"  # merged by a queue
        move = next((commit for commit in (entry.oid, *(line[0] for line in later)) if commit in moves), None)
        if move is not None and not self.git.is_ancestor(entry.oid, moves[move]):
            return f"already in {target}"
        return f"already in {target}, where this queue did not put it: not tested here"

    def _record_already_landed(self, entry: MergeEntry, tip: str, reason: str) -> StepResult:
        """Record that the target already contains an entry."""
        self.writer.append(EntryLanded(entry.id, tip, tip, reason), sync=True)
        self.writer.drop_pins([self.queue.entry(entry.id)])
        return StepResult("landed", entry.id)

    # --- commits of a set
    # ------------------------------------------------------------------------------------------------

    def chain(self, tip: str, batch: Sequence[MergeEntry]) -> CandidateChain | None:
        """Return the batch stacked on the tip, from memory if possible; None if it no longer merges."""
        self._name_committer()
        names = tuple(entry.id for entry in batch)
        for kept in self._chains:
            if kept.base == tip and tuple(entry.id for entry in kept.entries[:len(names)]) == names:
                return kept.prefix(batch)
        built_again = self._build_chain(tip, batch)
        while built_again is not None and self._drop_damage(tip, built_again[1][-1], batch):
            built_again = self._build_chain(tip, batch)
        if built_again is None:
            return None
        trees, commits, united = built_again
        chain = CandidateChain(tip, tuple(batch), tuple(trees), tuple(commits), names, tuple(united))
        self._keep(chain)
        return chain

    def _build_chain(self, tip: str, batch: Sequence[MergeEntry],
                     ) -> tuple[list[str], list[str], list[tuple[str, ...]]] | None:
        """Return trees, commits and united files of a batch stacked on the tip; None if it no longer merges."""
        names = tuple(entry.id for entry in batch)
        trees, commits, united = [self.git.tree_of(tip)], [tip], []
        for position, entry in enumerate(batch, 1):
            candidate = self._build_landable(entry, commits[-1], names, position, tip)
            if candidate.commit is None or candidate.commit == commits[-1]:
                return None
            trees.append(candidate.tree)
            commits.append(candidate.commit)
            united.append(candidate.united)
        return trees, commits, united

    def _drop_damage(self, tip: str, commit: str, batch: Sequence[MergeEntry]) -> bool:
        """Set aside objects of a chain that a power cut damaged; return whether there were any.

        The caller builds the chain again, and git rewrites them. Damage hidden by a damaged commit or tree is found in
        the next pass. Objects still missing then are not ours: git fails at the entry, which is judged by that.
        """
        if self._checked:
            return False
        damaged = set(self.git.drop_damaged_objects(commit, [tip, *(entry.oid for entry in batch)]))
        is_new = not damaged <= self._dropped
        self._checked, self._dropped = not damaged, self._dropped | damaged
        return is_new

    def pin_candidate(self, chain: CandidateChain) -> str:
        """Pin the chain, and return the commit to test."""
        self._pin(chain.entries[-1], chain.commits[-1])
        return chain.commits[-1]

    def pin_landing(self, chain: CandidateChain, count: int) -> LandingCommits:
        """Pin and return the commits that land the chain's first `count` entries as a batch, signed if the user signs
        commits. Raises SigningFailed."""
        self._name_committer()
        config = self.queue.state.config
        self.git.signer = config.signer if config is not None else None
        try:
            commits = self._build_landing(chain, tuple(entry.id for entry in chain.entries[:count]))
        finally:
            self.git.signer = None
        self._pin(chain.entries[count - 1], commits[-1])
        return LandingCommits(commits[-1], commits[:count])

    def _build_landing(self, chain: CandidateChain, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the commits of a landing in entry order; the last one is the target's new tip."""
        count = len(names)
        known_by = (chain.base, names, chain.trees[:count + 1], self.queue.state.config)
        if self.git.signer is not None and self._signed[0] == known_by:
            return self._signed[1]
        commits = chain.commits[1:count + 1]
        # The trailers name the entries that land together, which may be fewer than were tested together.
        if names != chain.exact or self.git.signer is not None:
            rebuilt = [chain.base]
            for position, entry in enumerate(chain.entries[:count], 1):
                candidate = build_candidate(self.git, entry, rebuilt[-1], self.trailers_of(
                    entry, names, position, chain.base), chain.trees[position], chain.base)
                if candidate.commit is None or candidate.tree != chain.trees[position]:
                    self._forget()
                    raise GarrisonError(f"{entry.id} gave another tree than was tested; building it again")
                rebuilt.append(candidate.commit)
            commits = tuple(rebuilt[1:])
        if count > 1 and self._is_merged_at_tip:
            commits = (*commits, self._merge_batch(chain, names, commits[-1]))
        self._signed = (known_by, commits)
        return commits

    def _name_committer(self) -> None:
        """Start building: set the committer that a launch recorded, else the checkout's user."""
        # No ref reaches what is built until `_pin`, so `_pin` checks whether a gc ran since.
        self._gc = GcWatch(self.git.common)
        config = self.queue.state.config
        recorded = parse_ident(config.committer) if config is not None else None
        self.git.committer = recorded or self._named_here or (NAME, EMAIL)

    @cached_property
    def _named_here(self) -> tuple[str, str] | None:
        return parse_ident(self.git.find_committer({}))

    def _merge_batch(self, chain: CandidateChain, names: Sequence[str], top: str) -> str:
        """Return the commit that merges a batch whose last commit is `top` into the target, with the tested tree."""
        count = len(names)
        entries, tree = chain.entries[:count], chain.trees[count]
        common = [line for line in self.trailers_of(entries[-1], tuple(names), count, chain.base)(tree)
                  if line.startswith(_OF_BATCH)]
        message = "\n".join([f"Merge {count} branches into {self.queue.target}", "",
                             *(f"* {entry.branch}" for entry in entries)])
        trailers = [*(f"{TRAILER}: {name}" for name in names), *common]
        return self.git.commit_tree(tree, [chain.base, top], append_trailers(message, trailers),
                                    date=_date(entries[-1]))

    def _pin(self, entry: MergeEntry, commit: str) -> None:
        if self._pinned.get(entry.id) == commit and self.git.has_object(commit):
            return
        if not self.git.make_ref(pin_ref(entry.id, "candidate"), commit) or not self.git.has_object(commit):
            self._give_up_pin(entry)  # a git gc that had listed the refs before the pin existed collected it
        # A gc that ran during the build may have listed the refs before this one existed, and may still remove the
        # rest: what was merged in, and what is below the commit.
        if self._gc.has_seen_gc() and (is_gc_running(self.git.common) or not self.git.has_all(commit, entry.oid)):
            self._give_up_pin(entry)
        self._pinned = {**dict(list(self._pinned.items())[-_KEPT_CHAINS:]), entry.id: commit}

    def _give_up_pin(self, entry: MergeEntry) -> NoReturn:
        """Drop a pin whose objects a `git gc` may have removed, and request a rebuild with gc locked out."""
        self._forget()
        self.git.drop_refs([pin_ref(entry.id, "candidate")])
        self.robbed = True
        raise Hindered(f"a git gc took the candidate of {entry.id}; building it again")

    def _forget(self) -> None:
        self._chains = []

    def advance(self, chain: CandidateChain, count: int, tip: str) -> None:
        """Drop the first `count` entries of a chain, now landed, from all chains that start with them."""
        names = chain.entries[:count]
        self._chains = [each.after(count, tip) for each in self._chains if each.base == chain.base and
                        each.trees[:count + 1] == chain.trees[:count + 1] and len(each.entries) > count and
                        [entry.id for entry in each.entries[:count]] == [entry.id for entry in names]]

    def trailers_of(self, entry: MergeEntry, names: tuple[str, ...], position: int, tip: str,
                  ) -> Callable[[str], list[str]]:
        """Return the trailers of the entry's commit for its tree, so that the history alone tells what was tested."""
        config = self.queue.state.config
        batch = f"{hashlib.sha256(' '.join(names).encode()).hexdigest()[:8]} {position}/{len(names)}"

        def lines(tree: str) -> list[str]:
            tested = f"with {len(names)}/{len(names)}"
            if config is None or config.no_gate:
                tested = ""
            elif position == len(names):  # what its paths select, even if it passed the whole gate because that was due
                gate = self.select_gate(config, tip, tree) if entry.node != INTEGRATION else None
                by = f"gates {','.join(gate.names)}" if gate is not None and gate.names else "gate"
                tested = f"{tree} {by} {(config if gate is None else gate.config).command_key}"
            return [*([f"Garrison-Node: {entry.node}", f"Garrison-Run: {entry.run}"] if entry.run else []),
                    f"{TRAILER}: {entry.id}", f"{BRANCH_TRAILER}: {entry.branch}", f"{_OF_BATCH[0]}: {batch}",
                    *([f"{_OF_BATCH[1]}: {tested}"] if tested else [])]

        return lines


# ---- the commit of an entry -----------------------------------------------------------------------------------------

_OF_BATCH = ("Merge-Queue-Batch", "Merge-Queue-Tested")
"""Trailers shared by all entries of a batch; the second only if there is a gate."""
_TRAILER = re.compile(r"[A-Za-z0-9-]+: \S")


class Candidate(NamedTuple):
    """Commit that would land; if `commit` is None, `files` and `reason` explain why.

    If `commit` is the base, the base already contains the branch.
    """

    tree: str
    commit: str | None
    files: tuple[str, ...] = ()
    reason: str = ""
    united: tuple[str, ...] = ()
    """Files in which both sides' lines were kept (see `union`)."""


def build_candidate(git: Git, entry: MergeEntry, base: str, trailers: Trailers, tree: str = "", target: str = "",
                    ) -> Candidate:
    """Build the commit that `entry` would put on top of `base` with its strategy. Writes objects, moves no ref.

    Args:
        tree: result of an earlier merge of the two, which saves merging them again.
        target: the target's commit, whose attributes decide on unions; default: `base`.
    """
    if entry.strategy not in _STRATEGIES:
        return _installed(git, entry, base, trailers)

    def merge(ours: str, theirs: str) -> MergeResult:
        return MergeResult(tree, []) if tree and entry.strategy == "merge" else union.merge(
            git, ours, theirs, target or base)

    return _STRATEGIES[entry.strategy](git, entry, base, trailers, merge)


def _installed(git: Git, entry: MergeEntry, base: str, trailers: Trailers) -> Candidate:
    """Build the commit with the strategy of an installed package; it must be a descendant of the target."""
    name = entry.strategy
    try:
        if name not in offered(PluginGroup.STRATEGIES):
            raise UsageError(f"no installed package offers the merge strategy {name}; install it again, or enqueue "
                             f"{entry.branch} with another strategy")
        made = load(PluginGroup.STRATEGIES, name)(git, entry, base, trailers)
    except (GitError, SigningFailed):
        raise
    except Exception as error:  # a package's code may raise anything
        text = " ".join(str(error).split())
        return Candidate("", None, (), text if isinstance(error, UsageError) else
                         f"the merge strategy {name} failed: {type(error).__name__}: {text}")
    if not isinstance(made, Candidate):
        return Candidate("", None, (), f"the merge strategy {name} returned {type(made).__name__}, no Candidate")
    if made.commit is not None and not (git.is_ancestor(base, made.commit) and git.tree_of(made.commit) == made.tree):
        return Candidate("", None, (), f"the merge strategy {name} made a commit that does not continue the target")
    return made


def _merge(git: Git, entry: MergeEntry, base: str, trailers: Trailers, merge: Merge) -> Candidate:
    merged = merge(base, entry.oid)
    if merged.tree is None:
        return _conflict(merged)
    message = append_trailers(entry.title or f"Merge {entry.branch} into {entry.target}", trailers(merged.tree))
    # What it changes is asked next.
    return Candidate(merged.tree, git.commit_tree(merged.tree, [base, entry.oid], message, date=_date(entry),
                                                  meanwhile=partial(git.changes, git.tree_of(base), merged.tree)),
                     united=merged.united)


def _squash(git: Git, entry: MergeEntry, base: str, trailers: Trailers, merge: Merge) -> Candidate:
    merged = merge(base, entry.oid)
    if merged.tree is None:
        return _conflict(merged)
    if merged.tree == git.tree_of(base):
        return Candidate(merged.tree, base)
    work = [commit for commit in git.commits(base, entry.oid) if len(commit.parents) < 2]
    message, coauthors = squash_message(entry.title or f"Squash {entry.branch}", work)
    lines = [*(f"Co-authored-by: {name}" for name in coauthors), *trailers(merged.tree)]
    return Candidate(merged.tree, git.commit_tree(merged.tree, [base], append_trailers(message, lines),
                                                  date=_date(entry), author=work[0].author if work else None),
                     united=merged.united)


def _rebase(git: Git, entry: MergeEntry, base: str, trailers: Trailers, merge: Merge) -> Candidate:
    work = git.commits(base, entry.oid)
    unfit = next((commit for commit in work if len(commit.parents) != 1), None)
    if unfit:
        what = "is a merge" if unfit.parents else "has no parent"
        return Candidate("", None, (), f"commit {unfit.oid[:10]} of {entry.branch} {what}, which cannot be rebased; "
                                       "make its history straight, or enqueue it with another strategy")
    picked, tree, united = [], git.tree_of(base), set[str]()
    for commit in work:
        result = _cherry_pick(git, commit, tree, merge)
        united.update(result.united)
        if result.tree is None:
            return Candidate("", None, tuple(result.conflicts), f"{result.reason} while {commit.oid[:10]} was rebased")
        if result.tree != tree:
            picked.append((commit, result.tree))
            tree = result.tree
    top = base
    for left, (commit, after) in zip(reversed(range(len(picked))), picked, strict=True):
        if left and commit.parents == [top]:
            top = commit.oid  # already in place
        else:
            message = append_trailers(commit.message, () if left else trailers(after))
            top = git.commit_tree(after, [top], message, date=_date(entry), author=commit.author)
    return Candidate(tree, top, united=tuple(sorted(united)))


def _cherry_pick(git: Git, commit: Commit, tree: str, merge: Merge) -> MergeResult:
    """Apply what `commit` changed on top of `tree`: a merge whose base is its parent."""
    # A fixed date: a second try writes the same object. It never becomes part of a history.
    base = git.commit_tree(tree, commit.parents, "base of a rebase\n", date=0, signed=False)
    return merge(base, commit.oid)


def _ff_only(git: Git, entry: MergeEntry, base: str, trailers: Trailers, merge: Merge) -> Candidate:
    if not git.is_ancestor(base, entry.oid):
        return Candidate("", None, (), f"{entry.target} at {base[:10]} is not contained in {entry.branch}, so it "
                                       "cannot be moved forward to it; bring the branch up to date and enqueue it "
                                       "again")
    return Candidate(git.tree_of(entry.oid), entry.oid)


def _fast_forward(git: Git, entry: MergeEntry, base: str, trailers: Trailers, merge: Merge) -> Candidate:
    """Fast-forward if the branch is ahead of the target, as on a run's own branch."""
    build = _ff_only if git.is_ancestor(base, entry.oid) else _merge
    return build(git, entry, base, trailers, merge)


_STRATEGIES: dict[str, Callable[[Git, MergeEntry, str, Trailers, Merge], Candidate]] = {
    "merge": _merge, "squash": _squash, "rebase": _rebase, "ff-only": _ff_only,
    FAST_FORWARD: _fast_forward}


def _date(entry: MergeEntry) -> int:
    # Not the current time: a rebuild after a crash must give the same commit, byte for byte.
    return int(from_iso(entry.enqueued_at))


def _conflict(merged: MergeResult) -> Candidate:
    return Candidate("", None, tuple(merged.conflicts), merged.reason)


# ------------------------------------------------------------------------------------------------------------- messages


def squash_message(subject: str, work: Sequence[Commit]) -> tuple[str, list[str]]:
    """Return the message for a squash of `work`, and its authors other than the first (`Name <mail>`).

    Args:
        subject: subject for several commits, or none; a single commit keeps its message.
    """
    authors = list(dict.fromkeys(f"{commit.author.name} <{commit.author.email}>" for commit in work))
    if len(work) == 1:
        return work[0].message, []
    subjects = "".join(f"* {commit.message.strip().partition(chr(10))[0]}\n" for commit in work)
    return f"{subject}\n\n{subjects}" if subjects else subject, authors[1:]


def append_trailers(message: str, trailers: Sequence[str]) -> str:
    """Return `message` with trailers appended to those it already has."""
    text = message.strip("\n")
    if not trailers:
        return f"{text}\n"
    paragraph = text.rpartition("\n\n")[2] if "\n\n" in text else ""
    has_trailers = bool(paragraph) and all(_TRAILER.match(line) for line in paragraph.split("\n"))
    return text + ("\n" if has_trailers else "\n\n") + "\n".join(trailers) + "\n"
