"""Pull request client: one poll of forge and repository, or one step there. Blocking; it runs alongside the guardian's
loop (`worker.py`).

A poll reads everything and changes only garrison's copies of remote refs. A step that creates something has a
marker by which the forge's client searches for it first, and a push has the tip that it replaces.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from garrison.backoff import Backoff
from garrison.config import MergeRule
from garrison.errors import GarrisonError
from garrison.forge.errors import ForgeNotFound, ForgeRefused, ForgeUnreachable, Stale, Unauthorized
from garrison.forge.marker import attach, has_marker, is_marked, without_marker
from garrison.forge.model import (
    CheckState,
    ForgeMerge,
    MergeMethod,
    PullDraft,
    PullState,
    ReviewVerdict,
    Side,
    mark_required,
)
from garrison.merge.config import read_signer
from garrison.merge.target import fetch_tip
from garrison.pull_request.facts import (
    ISSUE,
    CheckResult,
    CommitCheck,
    Facts,
    MergeFacts,
    Relation,
    RequestComment,
    StepKind,
    hash_words,
)
from garrison.pull_request.texts import (
    answer_marker,
    failure_marker,
    is_addressed,
    marker_of,
    put_section,
)
from garrison.records.pull_request import NO_AUTO, GivenReview
from garrison.system import failpoint
from garrison.system.git import ABSENT, GitError
from garrison.system.git.signing import SigningFailed, parse_ident
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from garrison.config import PullRequestOptions
    from garrison.forge import model
    from garrison.forge.client import Forge
    from garrison.pull_request.facts import ForgeStep
    from garrison.records.pull_request import PullRequest
    from garrison.records.run import Launch
    from garrison.system.git import Git

T = TypeVar("T")
P = ParamSpec("P")

NETWORK_SECONDS = 60.0
TRUST_SECONDS = 600.0
"""Seconds for which an answer about a user's permission is reused."""
MAX_MERGES = 100
"""Most merges of the base, since an approval or since the run's work arrived there, that are searched."""
YOUNG_SECONDS = 10.0
"""Age up to which a client searches twice for objects that its predecessor may have created."""
LISTED_SECONDS = 2.0
"""Seconds within which a forge lists new objects."""
PAUSES = Backoff(0.2, tries=3)
"""Delays before an unanswered read is repeated within its poll."""
SWIFT_SECONDS = 5.0
"""Seconds after which a failed read is not repeated in the same poll."""
KEPT_SECONDS = 60.0
"""Seconds for which the next poll reuses the answers of a failed one."""
REJECTED, UNANSWERED = 1, 128
"""Exit codes of a `git push` with and without an answer of the remote; git also ends with 1 at some broken
connections."""
MAX_TRIES = 5
"""Times that a client tries to answer a comment while the forge fails at it."""
GENERAL, REVIEW = "comment-", "review-"
WHOLE = (GENERAL, REVIEW, ISSUE)
"""Prefixes of the ids of comments that are not on a line."""
_RESULTS = {CheckState.PENDING: CheckResult.PENDING, CheckState.FAILED: CheckResult.FAILED,
            CheckState.PASSED: CheckResult.PASSED, CheckState.SKIPPED: CheckResult.PASSED}
_STATES = {"pending": CheckState.PENDING, "success": CheckState.PASSED, "failure": CheckState.FAILED}
_PUBLISHED = {state: word for word, state in _STATES.items()}


class PullRequestClient:
    """Forge and repository of one run's pull request."""

    def __init__(self, forge: Forge, git: Git, launch: Launch, options: PullRequestOptions,
                 own: Callable[[str, int, str, str], str], credentials: Mapping[str, str] | None = None,
                 given_up: int = 0) -> None:
        """Prepare.

        Args:
            own: returns the node that owns a line of a file at a commit (path, line or 0, commit, log).
            credentials: environment with which git may use the remote.
            given_up: number of the request that this one replaces; 0: this is the run's first.
        """
        self.forge, self.git, self.launch, self.options, self.own = forge, git, launch, options, own
        self.given_up = given_up
        self._kept: dict[tuple[object, ...], object] = {}
        self._kept_until = 0.0
        self.credentials = dict(credentials or {})
        self._trust: dict[str, tuple[float, bool]] = {}
        self._login = ""
        self._owners: dict[str, str] = {}
        self._logs: dict[str, str] = {}
        self._is_auto: bool | None = None
        """True if this client turned auto-merge on or off last; None: neither."""
        self._answered: set[str] = set()
        """Answered comments: a forge may not list its newest comments yet."""
        self._unanswered: Counter[str] = Counter()
        """Comments → times that the forge refused their answer."""
        self._is_young = time.monotonic() + YOUNG_SECONDS

    # --- a poll -------------------------------------------------------------------------------------------------------

    def look(self, known: PullRequest, *, anew: bool = False) -> Facts:
        """Read everything about the pull request; with `anew`, without cached answers, even if the forge
        reports no change."""
        if anew or time.monotonic() > self._kept_until:
            self._kept.clear()
            self._kept_until = time.monotonic() + KEPT_SECONDS
        self.forge.read_anew(anew=anew)
        facts = self._look(known)
        self._kept.clear()
        return facts

    def _read(self, read: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Read something, with retries if the forge does not answer; it is cached until the poll succeeds."""
        key = (getattr(read, "__name__", ""), *given, *named.items())
        if key not in self._kept:
            self._kept[key] = _repeatedly(lambda: read(*given, **named))
        return cast("T", self._kept[key])

    def _look(self, known: PullRequest) -> Facts:
        launch, git, forge = self.launch, self.git, self.forge
        head = _repeatedly(lambda: self._fetch(launch.onto))
        base = _repeatedly(lambda: self._fetch(launch.base))
        tip = git.branch_tip(launch.onto) or ""
        relation = relate(git, tip, head, known.head)
        issue_gone = self._issue_gone()  # before the request, since its merge closes the issue
        pull = self._read(forge.read_pull, known.number) if known.number > self.given_up else \
            self._read(forge.find_pull, marker_of(launch.run_id, self.given_up), launch.onto)
        if pull is not None and (pull.number <= self.given_up or not (known.number or self._is_ours(pull))):
            pull = None
        is_merged = pull is not None and pull.state is PullState.MERGED
        facts = Facts(relation, head, base, tip=tip, renamed="" if base else self._renamed(pull),
                      issue_gone="" if is_merged else issue_gone)
        if pull is None:
            return facts
        facts = replace(facts, number=pull.number, url=pull.url, is_open=pull.state is PullState.OPEN,
                        is_draft=pull.draft, body=pull.body.replace("\r\n", "\n"),
                        is_on_base=bool(tip and base) and _is_ancestor(git, tip, base),
                        other_base=pull.base if pull.base != launch.base else "")
        if is_merged or (facts.is_on_base and pull.state is PullState.CLOSED):
            return replace(facts, merge=self._merge_facts(pull, base, tip))
        if pull.state is not PullState.OPEN or not base:
            return facts
        rules = self._read(forge.read_rules, launch.base)
        checks = mark_required(self._read(forge.list_checks, head), head, rules) if head else []
        published = next((_PUBLISHED.get(check.state, "") for check in checks if check.name == self.options.status), "")
        # stable, in order of arrival
        reviews = sorted(self._read(forge.list_reviews, pull.number), key=lambda each: each.at)
        approvals, outdated, objections = self._judge(reviews, head, base)
        lines = self._read(forge.list_line_comments, pull.number)
        open_threads = {line.thread for line in lines if not line.resolved} if rules.requires_resolved else set()
        return replace(facts, published=published, approvals=approvals, outdated=outdated, objections=objections,
                     reviews=self._last_words(reviews, outdated),
                     requires_checks=any(check.required and check.name != self.options.status for check in checks),
                     required_approvals=rules.required_approvals, auto_merge=self._is_scheduled(pull.number, known),
                     checks=tuple(self._check(check, head) for check in checks if check.name != self.options.status),
                     comments=tuple(self._comments(pull.number, reviews, lines, head)),
                     unresolved=len(open_threads), requires_resolved=rules.requires_resolved)

    def _is_ours(self, pull: model.ForgePullRequest) -> bool:
        """Return whether a request may be the run's: anybody may open one from a branch that they can read."""
        return pull.author in ("", self._own_login()) or self._can_write(pull.author)

    def _renamed(self, pull: model.ForgePullRequest | None) -> str:
        """Return the new name of a base that is gone: where the request was moved, else the remote's default."""
        if pull is not None and pull.base != self.launch.base:
            return pull.base
        answer = self.git.run("ls-remote", "--symref", "--", self.launch.remote, "HEAD", timeout=NETWORK_SECONDS,
                              check=False, extra=self.credentials)
        found = re.match(r"ref: refs/heads/(\S+)\tHEAD$", answer.out, re.MULTILINE)
        return found[1] if found is not None else ""

    def _issue_gone(self) -> str:
        """Return what happened to the issue of the run; '' if it is open and unchanged."""
        number, label = self.launch.issue, self.launch.issue_label
        if not number:
            return ""
        try:
            issue = self._read(self.forge.read_issue, number)
        except ForgeNotFound:
            return f"issue #{number} was removed"
        except (ForgeRefused, Unauthorized):  # the token may not read issues: its state is unknown
            return ""
        if not issue.open:
            return f"issue #{number} was closed"
        # as forges filter: ignoring case, and by several labels at once
        there = {each.casefold() for each in issue.labels}
        wanted = [label] if not label or label.casefold() in there else label.split(",")
        has_all = all(not each.strip() or each.strip().casefold() in there for each in wanted)
        return "" if has_all else f"issue #{number} lost its label"

    def _edited_issue(self) -> list[RequestComment]:
        """Return the text of the run's issue if it was edited."""
        number, taken = self.launch.issue, self.launch.issue_text
        if not number or not taken or self._issue_gone():
            return []
        with suppress(ForgeRefused, Unauthorized):
            issue = self._read(self.forge.read_issue, number)
            text = f"{issue.title}\n\n{issue.text}"
            return [RequestComment(f"{ISSUE}{number}", issue.author, text, self._can_write(issue.author),
                                   is_addressed=True)] if hash_words(text) != taken else []
        return []

    def _fetch(self, branch: str) -> str:
        return fetch_tip(self.git, self.launch.remote, branch, NETWORK_SECONDS, self.credentials)

    def _merge_facts(self, pull: model.ForgePullRequest, base: str, tip: str) -> MergeFacts:
        merged = pull.merge_commit if pull.state is PullState.MERGED else self._arrived(tip, base)
        commit = self.git.rev(f"{merged}^{{commit}}") if merged else None
        if commit is None or not base or not self.git.is_ancestor(commit, base):
            return MergeFacts(pull.merge_commit, on_base=False)
        head = self.git.rev(f"{pull.head_commit}^{{commit}}") if pull.head_commit else None
        ahead = head if head and tip and head != tip and self.git.is_ancestor(tip, head) else ""
        return MergeFacts(commit, on_base=True, tree=self.git.tree_of(commit),
                          parent=self.git.rev(f"{commit}^1") or "", ahead=ahead)

    def _arrived(self, tip: str, base: str) -> str:
        """Return the first commit of the base that contains commits pushed there directly."""
        found = ""
        for oid in self.git.run("rev-list", "--first-parent", f"--max-count={MAX_MERGES}", base, "--").out.split():
            if not self.git.is_ancestor(tip, oid):
                break
            found = oid
        return found

    def _is_scheduled(self, number: int, known: PullRequest) -> bool:
        believed = self._is_auto if self._is_auto is not None else known.auto not in ("", NO_AUTO)
        if self.options.merge is not MergeRule.AUTO or not (believed or known.auto):
            return False
        told = self._read(self.forge.is_merge_scheduled, number)
        return told if told is not None else believed

    def _can_write(self, login: str) -> bool:
        if not login:  # a deleted account
            return False
        at, answer = self._trust.get(login, (float("-inf"), False))
        if time.monotonic() - at > TRUST_SECONDS:
            answer = self._read(self.forge.can_write, login)
            self._trust[login] = (time.monotonic(), answer)
        return answer

    def _judge(self, reviews: Sequence[model.Review], head: str, base: str,
               ) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
        """Return the number of approvals, the authors of outdated approvals, and those who request changes: by the
        latest verdict of each reviewer with write permission."""
        latest = {review.author: review for review in reviews
                  if review.verdict is not ReviewVerdict.COMMENT and review.author != self._own_login()}
        counted = [review for review in latest.values() if self._can_write(review.author)]
        approvals = [review for review in counted if review.verdict is ReviewVerdict.APPROVED]
        outdated = [review.author for review in approvals
                    if review.stale or not only_merges(self.git, review.commit, head, base)]
        return (len(approvals) - len(outdated), tuple(sorted(outdated)),
                tuple(sorted(review.author for review in counted if review.verdict is ReviewVerdict.CHANGES)))

    def _last_words(self, reviews: Sequence[model.Review], outdated: tuple[str, ...]) -> tuple[GivenReview, ...]:
        """Return each reviewer's latest verdict; a comment does not withdraw an earlier one."""
        latest: dict[str, model.Review] = {}
        for review in reviews:
            if review.author != self._own_login() and (
                    review.verdict is not ReviewVerdict.COMMENT or review.author not in latest):
                latest[review.author] = review
        return tuple(GivenReview(author, review.verdict, author in outdated, self._can_write(author))
                     for author, review in latest.items())

    def _own_login(self) -> str:
        self._login = self._login or self._read(self.forge.read_login)
        return self._login

    def _check(self, check: model.Check, head: str) -> CommitCheck:
        result = _RESULTS[check.state]
        if result is not CheckResult.FAILED or check.commit not in (head, ""):
            return CommitCheck(check.name, result, check.commit or head, url=check.url)
        key = f"{check.name}@{head}"
        if key not in self._logs:  # a red check keeps its log while it is red on this commit
            self._logs[key] = self._read(self.forge.read_check_log, check)
        log = self._logs[key] or check.summary
        return CommitCheck(check.name, result, head, log, url=check.url, owner=self._owner("", 0, head, log))

    def _comments(self, number: int, reviews: Sequence[model.Review], lines: Sequence[model.LineComment], head: str,
                  ) -> list[RequestComment]:
        """Return comments of people: on lines (the first of a thread, and those after garrison's answer), on the
        whole, and as a review. Those with a marker are garrison's: the token may be the reviewer's own."""
        own, run = self._own_login(), self.launch.run_id
        general = self._read(self.forge.list_comments, number, pull=True)
        name = self.options.mention

        def is_own(author: str, text: str) -> bool:  # a run may continue with another user's token
            return is_marked(text) and (author == own or self._can_write(author))

        everything = [*((each.author, each.text) for each in lines), *((each.author, each.text) for each in general)]
        written = [text for author, text in everything if is_own(author, text)]
        found, reviewed, answered = self._edited_issue(), set[str](), set[str]()
        said = defaultdict[str, list[tuple[str, str]]](list)
        for line in lines:
            if not is_own(line.author, line.text):
                number_, was = _place(line)
                reviewed.add(line.review)
                found.append(RequestComment(line.id, line.author, line.text, self._can_write(line.author), line.path,
                                            number_,
                                            resolved=line.resolved, owner=self._owner(line.path, number_, head, ""),
                                            was=was,
                                            before=tuple(said[line.thread]) if line.thread in answered else ()))
            else:
                answered.add(line.thread)
            if is_own(line.author, line.text) or self.options.hears(line.author,
                                                                    can_write=self._can_write(line.author)):
                said[line.thread].append((line.author, without_marker(line.text)))
        found += [RequestComment(f"{GENERAL}{each.id}", each.author, each.text, self._can_write(each.author),
                                 is_addressed=is_addressed(each.text, name))
                  for each in general if not is_own(each.author, each.text)]
        latest = {review.author: review for review in reviews if review.verdict is not ReviewVerdict.COMMENT}
        for review in reviews:
            asks = review.verdict is ReviewVerdict.CHANGES and latest.get(review.author) is review
            is_empty = not review.text.strip()
            if is_own(review.author, review.text) or (is_empty and (
                    not asks or review.author == own or review.id in reviewed)):
                continue
            if asks or review.verdict in (ReviewVerdict.COMMENT, ReviewVerdict.APPROVED):
                found.append(RequestComment(f"{REVIEW}{review.id}", review.author, review.text,
                                            self._can_write(review.author),
                                            requests_changes=asks, is_addressed=is_addressed(review.text, name)))
        unique = {each.id: each for each in found}  # pages that shift between two requests repeat some
        return [replace(each, answered=each.key in self._answered or any(
            has_marker(text, answer_marker(run, name)) for text in written for name in (each.key, each.id)))
            for each in unique.values()]

    def _owner(self, path: str, line: int, commit: str, log: str) -> str:
        key = f"{path}:{line}@{commit}:{hash(log)}"
        if key not in self._owners:
            self._owners[key] = self.own(path, line, commit, log) if path or log else ""
        return self._owners[key]

    # --- a step -------------------------------------------------------------------------------------------------------

    def take(self, step: ForgeStep, known: PullRequest, title: str) -> None:
        """Take one step; ForgeError or GitError if it was not, or may not have been, taken."""
        launch, forge, number = self.launch, self.forge, known.number
        self._kept.clear()
        match step.kind:
            case StepKind.PUSH:
                self._push(step)
            case StepKind.OPEN:
                marker = marker_of(launch.run_id, self.given_up)
                forge.open_pull(PullDraft(launch.onto, launch.base, title, attach(step.text, marker),
                                          self.options.labels), marker)
            case StepKind.EDIT:
                # into the current body: somebody may be editing it
                forge.set_body(number, put_section(forge.read_pull(number).body, step.text))
            case StepKind.READY:
                forge.mark_ready(number)
            case StepKind.TAKE_IN:
                self.take_in(step.head)
            case StepKind.REPLY:
                self._reply(number, step)
            case StepKind.STATUS:
                words = {"success": "the merge with the base passed the gate", "pending": "the gate runs",
                         "failure": "the gate failed"}
                forge.publish_status(step.head, self.options.status, _STATES[step.text], words[step.text])
            case StepKind.LEAVE:
                self._leave(number, step)
            case StepKind.MERGE | StepKind.AUTO_MERGE | StepKind.NO_AUTO_MERGE:
                self._merge(number, step)

    def _merge(self, number: int, step: ForgeStep) -> None:
        """Merge the tested commit into the tested base, or turn the forge's auto-merge on or off; the forge checks the
        commit alone.

        Raises:
            Stale: a merge now would not be the one that was tested.
        """
        launch, is_auto = self.launch, step.kind is StepKind.AUTO_MERGE
        if step.kind is StepKind.NO_AUTO_MERGE:
            self.forge.cancel_auto_merge(number)
            self._is_auto = False
            return
        base = self._fetch(launch.base)
        if base != step.lease or self.forge.read_pull(number).base != launch.base:
            raise Stale(step.lease, base)
        # the first method that the repository allows: a merge commit keeps the run's commits
        method = next(iter(self.forge.read_rules(launch.base).methods), MergeMethod.MERGE)
        merge = self.forge.enable_auto_merge if is_auto else self.forge.merge
        outcome = merge(number, step.head, method)
        if outcome.result is ForgeMerge.REFUSED:
            raise ForgeRefused(f"the forge does not merge pull request #{number}: {outcome.reason}", outcome.reason)
        self._is_auto = is_auto or self._is_auto

    def _push(self, step: ForgeStep) -> None:
        ref = f"refs/heads/{self.launch.onto}"
        # The lease alone would allow a push over commits that were seen there but never taken in.
        if step.lease and not _is_ancestor(self.git, step.lease, step.head):
            raise GarrisonError(f"{step.head[:10]} lacks {step.lease[:10]}, which is on {self.launch.onto} at the "
                                "forge; it is not pushed over it")
        arguments = ("push", "--quiet", "--porcelain", "--no-recurse-submodules",
                     f"--force-with-lease={ref}:{step.lease}", self.launch.remote, f"{step.head}:{ref}")
        failpoint.here("forge:push")
        answer = self.git.run(*arguments, check=False, timeout=NETWORK_SECONDS,
                              extra=self.credentials)
        failpoint.here("forge:pushed")
        if answer.code:  # a rejection by the remote has its own line
            is_answered = any(line.startswith("!\t") for line in answer.out.splitlines())
            raise GitError(arguments[:1], REJECTED if is_answered else UNANSWERED, answer.err)

    def take_in(self, head: str) -> None:
        """Move the run's branch to the commits of others, merged with its own."""
        git, ref, tip = self.git, f"refs/heads/{self.launch.onto}", self.git.branch_tip(self.launch.onto)
        new = head
        if tip is not None and not git.is_ancestor(tip, head):
            merged = git.merge_tree(tip, head)
            if merged.tree is None or merged.conflicts:
                raise ForgeRefused("the commits that people pushed onto its branch conflict with the run's; merge them "
                                   f"into {self.launch.onto} by hand, and push it")
            # The date of the pushed commit, not now: a second try after a crash makes the same commit.
            date = int(git.run("log", "-1", "--format=%ct", head).out.strip() or 0)
            git.committer = parse_ident(self.launch.committer) or git.committer
            git.signer = read_signer(self.launch.signer)  # like every landing: the branch may require it
            try:
                new = git.commit_tree(merged.tree, [tip, head], f"Merge what people pushed onto {self.launch.onto}",
                                      date=date)
            except SigningFailed as error:
                raise GarrisonError(f"the merge of what people pushed cannot be signed: {error}") from error
            finally:
                git.signer = None
        if not git.update_ref(ref, new, tip or ABSENT, message="garrison: take in what people pushed"):
            raise GarrisonError(f"could not move {self.launch.onto} to {new[:10]}: another git moved it; looking again")

    def _reply(self, number: int, step: ForgeStep) -> None:
        """Answer a comment once; one that is gone needs no answer.

        An answer is a courtesy: if the forge refuses it (the conversation is locked, its first comment was deleted,
        this request fails each time), nothing waits for it.
        """
        marker = answer_marker(self.launch.run_id, step.comment)
        if time.monotonic() < self._is_young:  # a predecessor that was killed may just have answered it
            time.sleep(LISTED_SECONDS)
        is_answered = True
        try:
            with _courtesy():
                is_answered = self._answer(number, step, marker)
        except ForgeUnreachable:
            self._unanswered[step.comment] += 1
            if self._unanswered[step.comment] < MAX_TRIES:
                raise
        if is_answered:
            self._answered.add(step.comment)

    def _leave(self, number: int, step: ForgeStep) -> None:
        """Comment why the run failed, and make it a draft again; if the forge refuses that, the end does not wait."""
        marker = failure_marker(self.launch.run_id, step.comment)
        with _courtesy():
            self.forge.comment(number, attach(step.text, marker), marker, pull=True)
        with _courtesy():
            self.forge.mark_draft(number)

    def _answer(self, number: int, step: ForgeStep, marker: str) -> bool:
        """Answer a comment; return whether it was found: the forge may list it only at the next poll."""
        forge, comment = self.forge, step.comment.split("@")[0]
        if step.comment.startswith(WHOLE):
            forge.comment(number, attach(step.text, marker), marker, pull=True)
        else:
            thread = next((line.thread for line in forge.list_line_comments(number) if line.id == comment), "")
            if not thread:
                return False
            if step.resolves:  # before the answer, which marks all of this as done
                with _courtesy():
                    forge.resolve(number, thread)
            forge.reply(number, thread, attach(step.text, marker), marker)
        return True


def relate(git: Git, tip: str, head: str, known: str) -> Relation:
    """Return the relation of the branch on the forge (`head`) to the run's (`tip`); `known` was its last known head."""
    if not head:
        return Relation.ABSENT
    if known and known != head and not _is_ancestor(git, known, head):
        return Relation.REWRITTEN
    if head == tip:
        return Relation.SAME
    if tip and _is_ancestor(git, head, tip):
        return Relation.BEHIND
    # It existed before the first push: another branch of that name, not commits on the run's.
    if not known:
        return Relation.REWRITTEN
    return Relation.AHEAD if tip and _is_ancestor(git, tip, head) else Relation.DIVERGED


def only_merges(git: Git, seen: str, head: str, base: str) -> bool:
    """Return whether `head` is the commit `seen`, or adds only clean merges of the base to it.

    An approval counts for the reviewed commits: later conflict resolutions and other commits were not reviewed.
    A forge that does not report the commit ('') is trusted, since it marks stale reviews itself.
    """
    tip = head
    for _ in range(MAX_MERGES):
        if not seen or tip == seen:
            return True
        # A third one shows a merge that brought in more than the base.
        parents = [oid for number in (1, 2, 3) if (oid := git.rev(f"{tip}^{number}"))]
        if len(parents) != 2 or not _is_ancestor(git, parents[1], base) \
                or git.merge_tree(*parents).tree != git.tree_of(tip):
            return False
        tip = parents[0]
    return False


def _place(line: model.LineComment) -> tuple[int, str]:
    """Return the line of the present file that a comment is about, 0 if it is gone, with a description of it."""
    number = line.line or line.original_line or 0
    if line.side is Side.OLD:
        return 0, f"line {number} of the base, which the change removes"
    if line.line is None and number:
        return 0, f"line {number}{f' of {line.commit[:10]}' if line.commit else ''}, which has changed since"
    return number, ""


@contextmanager
def _courtesy() -> Iterator[None]:
    """Ignore a refusal of the forge: the object is locked or gone, or the token may not do that."""
    try:
        yield
    except (ForgeRefused, ForgeNotFound):
        pass
    except Unauthorized as error:
        if not error.scope:  # the token itself is not valid
            raise


def _repeatedly(read: Callable[[], T]) -> T:
    """Return the result of a read, retried a few times if it fails quickly and without an answer."""
    failures = 0
    while True:
        began = time.monotonic()
        try:
            return read()
        except (ForgeUnreachable, GitError):
            failures += 1
            if PAUSES.is_over(failures) or time.monotonic() - began > SWIFT_SECONDS:
                raise
            time.sleep(PAUSES.delay(failures))


def _is_ancestor(git: Git, old: str, new: str) -> bool:
    try:
        return git.is_ancestor(old, new)
    except GitError:  # the old commit is gone here
        return False
