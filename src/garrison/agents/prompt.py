"""Prompts of an attempt: a task and its briefing, formatted with prompts/*.md. Pure except for the templates.

The orchestrator writes `build` to prompt.md at the start of each incarnation; in a successor's, the briefing has an
interruption. A Claude session that is resumed gets a shorter message instead, and the rules as its system prompt
(`conversation.prompts`). tests/unit/golden_prompts.md shows what each prompt says.
"""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING

from garrison.agents.briefing import Briefing, EndedBy, Reporting, StartFrom
from garrison.agents.quotation import mention, path_name, quote
from garrison.agents.template import fill
from garrison.ends import RefusedBy
from garrison.sandbox.place import Mode, Network
from garrison.system.terminal_text import clean_lines
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from garrison.agents.briefing import (
        Criterion,
        EarlierRefusal,
        FileConflict,
        Interruption,
        Judgement,
        LandingTerms,
        PersonsWord,
        TargetChange,
        WorkState,
    )
    from garrison.records.run import Task
    from garrison.sandbox.place import Rights

SHORT = 10
"""Characters of a commit's id."""
MAX_PREAMBLE = 16_000
"""Characters of the account of the run so far; the pipeline limits it first."""
MAX_CLAIM = 4000
MAX_FEEDBACK = 16_000
"""Characters of feedback on a pull request in a prompt; longer feedback is in a file."""
MAX_DECIDED, MAX_SAID = 40, 2000
"""Latest messages of the user that a prompt quotes, and characters of each."""
MAX_DIFF = 24_000
"""Characters of a diff in a validator's prompt; a longer one is in a file."""
MAX_EARLIER = 10
"""Number of latest refusals that are listed."""
MAX_FILES = 5
"""Files of one landed change that are named."""
MAX_HUNKS = 6000
"""Characters of conflicts in a prompt."""
MAX_ASKED = 600
"""Characters of another task's text."""
MAX_BLOCK = 8000
"""Characters of a list in a prompt; the rest is only counted."""
ACCOUNT = "Done so far:"
"""Start of the pipeline's account of what agents have done."""
NOTHING_PRINTED = "(it printed nothing)"
_NETWORKS = {Network.NONE: "There is no network.", Network.OPEN: "The network is the machine's.",
             Network.ALLOW: "The network reaches the hosts that the user allows, and no other."}
_REWORK: dict[RefusedBy, str] = {by: f"rework_{by}.md" for by in RefusedBy if by is not RefusedBy.MOVED}


def build(task: Task, briefing: Briefing) -> str:
    """Return the text for prompt.md: the task, then the rules if no tool describes them, then what happened before."""
    parts = [_task(task, briefing), decided(briefing.decided), briefing.lessons, run_so_far(task)]
    if briefing.reporting is not Reporting.TOOLS:
        parts += [_next_step(task, briefing), _rules(briefing)]
    return join([*parts, *_what_happened(task, briefing)])


def for_host(task: Task, briefing: Briefing) -> str:
    """Return the task for a host's run, with what only its home knows: the run so far, how the work lands, and what
    happened before."""
    landing = briefing.landing
    landed = f"Work that this task can rely on has landed:\n\n{_landed(briefing)}"
    gate = f"When you are done, the branch, merged with `{landing.target}`, must pass: {code(landing.gate)}" \
        if landing.target and landing.gate else ""
    ways = f"Your report decides how the run continues:\n\n{_list(task.ways)}"
    parts = [task.prompt or task.label, decided(briefing.decided), briefing.lessons,
             landed if briefing.landed else "", gate, ways if task.ways else "", run_so_far(task)]
    return join([*parts, *_what_happened(task, briefing)])


def _what_happened(task: Task, briefing: Briefing) -> Iterator[str]:
    if briefing.refusal is not None:
        yield rework(task, briefing.refusal, briefing.reporting)
    if briefing.interruption is not None:
        yield from (resumption(briefing.interruption), fill("resume_advice.md"))


def join(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def decided(words: Sequence[PersonsWord]) -> str:
    """Return the section about the user's decisions, '' for none."""
    lines = []
    for word in words[-MAX_DECIDED:]:
        said = "\n  ".join(clean_lines(word.text.strip()[:MAX_SAID]))
        lines.append(f"- asked {mention(word.question, 600)}, they answered: {said}" if word.question else
                     f"- {word.source or 'they told the agent'}: {said}")
    # Newest first: if there is no room for all, the oldest are dropped.
    kept = _bounded(lines[::-1], MAX_FEEDBACK)[::-1]
    return fill("decided.md", words="\n".join(kept)).strip() if lines else ""


def _bounded(lines: Sequence[str], limit: int = MAX_BLOCK) -> list[str]:
    """Return the first lines of a list, as many as fit, and how many more there are."""
    kept, left = list[str](), limit
    for line in lines:
        left -= len(line) + 1
        if left < 0 and kept:
            return [*kept, f"- and {len(lines) - len(kept)} more"]
        kept.append(line)
    return kept


def run_so_far(task: Task) -> str:
    """Return the section about the run so far, '' for none; a session that continues an earlier node's knows it.

    An account that only lists the finished tasks would repeat the list of what landed.
    """
    repeated = {ACCOUNT, *(f"- {work['node']}: success" for work in task.landed)}
    if repeated.issuperset(task.preamble.splitlines()):
        return ""
    quoted = quote(task.preamble, MAX_PREAMBLE)
    return fill("run_so_far.md", preamble=quoted).strip() if quoted else ""


def in_place(text: str, goal: str, preamble: str, reason: str, steering: str = "", *, has_account: bool) -> str:
    """Return the prompt of a node in `garrison pipeline run`, which has no briefing.

    Args:
        text: the node's own prompt.
        preamble: the pipeline's account of the run so far, which may start with the goal.
        reason: why an earlier attempt was not good enough, '' for none.
        steering: a message of the run's manager.
        has_account: the preamble also says what is done, besides the goal.
    """
    head = f"Goal: {goal}" if goal and preamble.startswith(f"Goal: {goal}") else ""
    said = preamble[len(head):].strip()
    if has_account:
        preamble = join([head, fill("run_so_far.md", preamble=quote(said, MAX_PREAMBLE))])
    before = [steering, preamble, fill("rework_in_place.md", reason=quote(reason, MAX_CLAIM)) if reason else ""]
    return join([*before, f"## Task\n\n{text}" if any("## " in part for part in before) else text])


def without_run_so_far(task: Task, text: str) -> str:
    section = run_so_far(task)
    return text.replace(f"\n\n{section}", "", 1) if section else text


def with_run_so_far(task: Task, text: str) -> str:
    """Return a prompt with the section about the run so far; one that a pipeline run without a garrison has written
    lacks it."""
    section = run_so_far(task)
    return text if section in text else f"{section}\n\n{text}"


def _task(task: Task, briefing: Briefing) -> str:
    return fill("task.md", **_words(task),
                start=f"You begin in `{task.subfolder}`, a folder of your worktree; all of the repository is there."
                if task.subfolder else "",
                conditions=_conditions(task, briefing), landed=_landed(briefing),
                siblings=_siblings(briefing), attempt=str(task.attempt),
                attempts=str(max(briefing.attempts, task.attempt)) if briefing.attempts else "", left=briefing.left)


def _words(task: Task) -> dict[str, str]:
    """Return the parts of a task, each once, as values of a template."""
    text = task.prompt or task.label
    # `$goal` in a prompt has been replaced by it.
    return {"node": task.node, "label": task.label if task.label not in (text, task.node) else "", "prompt": text,
            "goal": "" if task.goal in text else task.goal, "prd_ref": task.prd_ref}


# ---- the task


def _conditions(task: Task, briefing: Briefing) -> str:
    landing = briefing.landing
    lines = []
    if not task.allow_empty:
        lines.append(f"the branch holds a change; if nothing has to be changed, {_nothing(briefing.reporting)}")
    if task.acceptance:
        where = f"`{task.subfolder}` of your worktree" if task.subfolder else "your worktree"
        lines.append(f"this command, run in {where} after you have ended, succeeds: {code(task.acceptance)}")
    if briefing.validated:
        lines.append("another agent, which did not see you work, finds that the branch does all of this task")
    if landing.approval:
        lines.append("the user has reviewed it")
    if landing.target and landing.gate:
        lines.append(f"the branch, merged with `{landing.target}`, passes: {code(landing.gate)}")
    if landing.run_target and landing.run_gate:
        lines.append(f"later, all work of the run together, merged with `{landing.run_target}`, passes: "
                     f"{code(landing.run_gate)}")
    return _list(lines)


def _nothing(reporting: Reporting) -> str:
    return "end with an exit code other than 0 and say why" if reporting is Reporting.EXIT_CODE else \
        "report `nothing_to_do` with the lines that prove it"


def code(command: str) -> str:
    text = command.strip()
    return f"`{text}`" if "\n" not in text and "`" not in text else f"\n\n````sh\n{text}\n````"


def _siblings(briefing: Briefing) -> str:
    lines = [f"- {_named(each.node, each.task)}{_files(each.files)}" for each in briefing.siblings]
    return "\n".join([*lines, f"- and {briefing.more_siblings} more"] if briefing.more_siblings else lines)


def _landed(briefing: Briefing) -> str:
    lines = [f"- and {briefing.more_landed} earlier"] if briefing.more_landed else []
    lines += [f"- {_named(work.node, work.task)}: {work.commit[:SHORT]}{_files(work.files)}"
              for work in briefing.landed]
    return "\n".join(lines)


def _named(node: str, task: str) -> str:
    """Return a node, with the words of its task if they say more."""
    return f"{node} ({mention(task)})" if task and task != node else node


def _files(names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - MAX_FILES} more" if len(names) > MAX_FILES else ""
    return f", in {', '.join(map(path_name, names[:MAX_FILES]))}{more}"


# ---- rules for an agent without garrison's tools


def lands(landing: LandingTerms) -> str:
    what = "stays as you leave it, for the user" if not landing.target else "is tested and merged when you are done"
    return (f"Your branch {what}: do not push or switch branches, and merge or rebase only where this task asks for "
            "it.")


def rules() -> dict[str, str]:
    """Return the common parts of all system prompts, as values of their templates."""
    return {name: fill(f"rules_{name}.md").strip() for name in ("scope", "statuses", "quoted")}


def setting(lands: str, confinement: str = "") -> str:
    """Return where an agent works, as a part of its system prompt; without `lands` it has no branch of its own."""
    return fill("setting_worktree.md", lands=lands, confinement=confinement) if lands else fill("setting_in_place.md")


def confinement(rights: Rights) -> str:
    """Describe the restrictions of a sandbox, '' without one."""
    if rights.mode is Mode.NONE:
        return ""
    more = "".join(f", in {path_name(str(path))}" for path in rights.write)
    return fill("confinement.md", writable=f"your worktree, in `/tmp`{more} and in your home",
                network=_NETWORKS[rights.network]).strip()


def _rules(briefing: Briefing) -> str:
    report = fill(f"command_report_{briefing.reporting.name.lower()}.md", result_file=briefing.result_file).strip()
    return fill("command_rules.md", branch=briefing.branch, lands=lands(briefing.landing),
                notes_file=briefing.notes_file, report=report, confinement=briefing.confinement,
                quoted=rules()["quoted"])


def _next_step(task: Task, briefing: Briefing) -> str:
    return fill("command_edges.md", ways=_list(task.ways), result_file=briefing.result_file) if task.ways else ""


# ---- rework


def rework(task: Task, refusal: EarlierRefusal, reporting: Reporting = Reporting.TOOLS) -> str:
    """Return why the previous attempt was refused, what is left of it, and what to do differently."""
    has_command = refusal.by in (RefusedBy.ACCEPTANCE, RefusedBy.GATE)
    is_persons = refusal.by is RefusedBy.REVIEW
    without_output = NOTHING_PRINTED if refusal.log else "(its log is gone)"
    return fill(
        _REWORK[refusal.by], attempt=str(task.attempt), refused=str(refusal.attempt), how=refusal.how or "it failed",
        ended=refusal.ended.value,
        command=code(refusal.command), reason=refusal.reason if is_persons else _reason(refusal), log=refusal.log,
        note=refusal.note, nothing=_nothing(reporting),
        output=quote(refusal.output) or (without_output if has_command else ""),
        failing=_list(mention(name) for name in refusal.failing), target=refusal.target, tip=refusal.tip[:SHORT],
        claim=quote(refusal.claim, MAX_CLAIM // 2), base=refusal.base[:SHORT],
        landed=_changes(refusal.landed, refusal.more_landed),
        criteria="\n".join(quote(f"{each.text}\n{each.evidence}", MAX_CLAIM // 4) for each in refusal.criteria),
        conflicts=_conflicts(refusal.conflicts), advice=_advice(refusal), start=_start(refusal), left=_left(refusal),
        answers=_answers(refusal) if is_persons and not refusal.feedback else ""
    ).rstrip() + _feedback(refusal) + _earlier(refusal)


def _feedback(refusal: EarlierRefusal) -> str:
    """Return what was said about the pull request, and how it is answered."""
    if not refusal.feedback:
        return ""
    text = refusal.feedback if not refusal.feedback_file else f"{refusal.feedback[:MAX_FEEDBACK]}…"
    return "\n\n" + fill("rework_feedback.md", feedback=text, file=refusal.feedback_file,
                         answers=_answers(refusal)).rstrip()


def _answers(refusal: EarlierRefusal) -> str:
    """Return how comments are answered, '' if there are none."""
    ids = [mention(name) for name in refusal.comments]
    return fill("rework_answers.md", ids=", ".join(ids), replies=refusal.replies_file,
                first=refusal.comments[0]).strip() if ids else ""


def rework_message(task: Task, briefing: Briefing) -> str:
    """Return the message to the refused attempt's session, which knows the task and its own work."""
    assert briefing.refusal is not None
    most = f" of at most {max(briefing.attempts, task.attempt)}" if briefing.attempts else ""
    parts = [fill("rework_resumed.md", attempt=f"{task.attempt}{most}", left=briefing.left), decided(briefing.decided),
             rework(task, replace(briefing.refusal, claim="", notes=""), briefing.reporting)]
    return join(parts if briefing.reporting is Reporting.TOOLS else [*parts, _rules(briefing)])


def _earlier(refusal: EarlierRefusal) -> str:
    lines = _list(mention(line, 300) for line in refusal.earlier[-MAX_EARLIER:])
    return f"\n\nRefused before that:\n{lines}\n" if lines else "\n"


def _reason(refusal: EarlierRefusal) -> str:
    """Return the reason as its template needs it: in a sentence, or quoted."""
    if refusal.by is RefusedBy.LOST:
        return mention(refusal.reason.partition("\n")[0], 400)
    if refusal.by is RefusedBy.CONFLICT:
        return mention(refusal.reason, 400)
    return quote(refusal.reason, MAX_CLAIM)


def _left(refusal: EarlierRefusal) -> str:
    is_kept = refusal.start is StartFrom.FRESH or refusal.by in (RefusedBy.GATE, RefusedBy.ACCEPTANCE,
                                                                 RefusedBy.VALIDATOR)
    said = "It had reported" if refusal.ended is EndedBy.REPORTED else "It made no report; its last words"
    return fill("rework_left.md", said=said,
                claim=quote(refusal.claim, MAX_CLAIM // 2), rescue=refusal.rescue,
                stat=quote(refusal.stat, 3000), notes=quote(refusal.notes, MAX_CLAIM // 2)).strip() if is_kept else ""


def _start(refusal: EarlierRefusal) -> str:
    if refusal.start is StartFrom.FRESH and not refusal.rescue:
        return ""
    text = fill(f"rework_start_{refusal.start.value}.md", target=refusal.target, base=refusal.base[:SHORT],
                rescue=refusal.rescue, merged=refusal.merged[:SHORT]).strip()
    if refusal.start is not StartFrom.MERGE or not refusal.conflicts or refusal.by is RefusedBy.CONFLICT:
        return text
    return f"{text}\n\nFiles with conflicts from that:\n{_conflicts(refusal.conflicts)}\n\n{_advice(refusal)}".strip()


def _advice(refusal: EarlierRefusal) -> str:
    if refusal.start is not StartFrom.MERGE:
        return fill("conflict_fresh.md")
    if not refusal.conflicts:
        return fill("conflict_merged.md")
    return fill("conflict_markers.md", refused=str(refusal.attempt), label=refusal.label, target=refusal.target)


def _conflicts(files: Sequence[FileConflict]) -> str:
    lines, asked = [], dict[str, str]()
    for each in files:
        lines.append("\n".join([f"- {path_name(each.name)}", *(f"  - {_change(change)}" for change in each.changes)]))
        asked |= {change.node: change.asked for change in each.changes if change.asked}
    # Indented: a committed copy of the prompt must not look like an unresolved conflict.
    hunks = [f"{each.name}:\n{indent(each.hunks, '  ')}" for each in files if each.hunks]
    words = fill(
        "conflict_words.md", hunks=quote("\n\n".join(_bounded(hunks, MAX_HUNKS)), MAX_HUNKS + 2000),
        asked="\n".join(f"- {node}:\n{quote(text[:MAX_ASKED], MAX_ASKED * 2)}" for node, text in asked.items())).strip()
    return "\n".join([*_bounded(lines), *(["", words] if words else [])])


def _changes(changes: Sequence[TargetChange], more: int) -> str:
    lines = [f"- {_change(change)}" for change in changes]
    return "\n".join([*lines, f"- and {more} earlier"] if more else lines)


def _change(change: TargetChange) -> str:
    if change.node:
        return f"{change.commit[:SHORT]}, the task {_named(change.node, change.task)}"
    author = f" by {mention(change.author)}" if change.author else ""
    return f"{change.commit[:SHORT]}{author}: {mention(change.subject)}"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


# ---- resumption


def resumption(interruption: Interruption, what: str = "The work on this task") -> str:
    """Return what interrupted the earlier work, and how far it got; `what` is the subject of the sentence."""
    return fill(
        "resume.md", how=_how(interruption, what), in_flight="\n".join(map(quote, interruption.in_flight)),
        output=quote(interruption.output, 2000), notes=quote(interruption.notes),
        **progress_texts(interruption.progress))


def progress_texts(progress: WorkState) -> dict[str, str]:
    """Return the template values `commits` and `uncommitted`."""
    commits, changes = list(progress.commits), list(progress.uncommitted)
    if progress.more_commits:
        commits.append(f"… and {progress.more_commits} earlier")
    if progress.more_uncommitted:
        changes.append(f"… and {progress.more_uncommitted} more")
    base = progress.base[:SHORT]
    return {"commits": fill("resume_commits.md", base=base, commits=quote("\n".join(commits))) if commits else
            f"Nothing is committed on the branch yet; it began at {base}." if base else "",
            "uncommitted": fill("resume_uncommitted.md", uncommitted=quote("\n".join(changes))) if changes else
            "No file is changed that is not committed." if base else ""}


def _how(interruption: Interruption, what: str) -> str:
    how = f"{what} was interrupted because {interruption.how}."
    if interruption.deaths > 1:
        how += f" That was the {_ordinal(interruption.deaths)} such death in this attempt."
    if interruption.predecessors:
        names = " and ".join(mention(name) for name in interruption.predecessors)
        how += f" You continue what {names} did, and know nothing of it but what is written here and in the worktree."
    return how


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


# ---- others


def validation(task: Task, judgement: Judgement) -> str:
    """Return a validator's prompt."""
    accepted = f"Its acceptance command passed on this branch: {code(judgement.accepted)}" if judgement.accepted else ""
    claim = "\n".join([judgement.claim, *(f"- {line}" for line in judgement.evidence)])
    return fill(
        "validate.md", **_words(task), decided=decided(judgement.decided), criteria=_criteria(judgement.criteria),
        branch=judgement.branch, head=judgement.head[:SHORT], base=judgement.base[:SHORT],
        target=judgement.target, accepted=accepted, stat=quote(judgement.stat) or "nothing",
        diff=quote(judgement.diff, MAX_DIFF * 2),
        diff_file="" if judgement.diff else judgement.diff_file, claim=quote(claim, MAX_CLAIM),
        run=fill("validate_run.md", base=judgement.base[:SHORT]).strip() if judgement.can_run else "")


def _criteria(criteria: Sequence[Criterion]) -> str:
    lines = (f"{each.text}{'' if each.met else f' (it was not met: {each.evidence})'}" for each in criteria)
    return quote(_list(lines), MAX_CLAIM)


def instructions(files: str, target: str, text: str) -> str:
    return fill("instructions.md", files=files, target=target, text=text).strip() if text else ""


MAX_TOKEN_BYTES = 3.6
"""Average bytes of English and code per token of current models."""


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens of a text by its length, since no tokenizer is available."""
    return round(len(text.encode(errors="replace")) / MAX_TOKEN_BYTES)
