"""`garrison status`: show runs, their progress, processes, failures and next steps.

The command reads through `views.run_view`. The render functions are pure: views become lines of spans, which contain
only cleaned text. A run's first line is its summary; the last ones show failures and next steps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import click

from garrison.cli import completion, terminal
from garrison.cli.commands import Command
from garrison.cli.home import report_no_runs
from garrison.cli.options import home_option, json_option
from garrison.cli.output import print_json, print_message
from garrison.cli.render import GAP, Line, StyledText, fit, raw, span, table, wrapped
from garrison.cli.resolve import existing_run, is_elsewhere, is_launched, is_of_this_folder
from garrison.cli.terminal import OutputTerminal, show, stdout_terminal
from garrison.directories import find_home
from garrison.ends import Departure
from garrison.errors import NotFound, UsageError
from garrison.merge.queue import find_unrecorded
from garrison.pipeline.questions import SIGNAL
from garrison.records.events import ForeignMove, Warned
from garrison.run.state import EXIT, describe_next
from garrison.run.status import UNFINISHED, Status
from garrison.system import terminal_text
from garrison.system.clock import format_age
from garrison.system.terminal_text import clean
from garrison.values import asdict, fields_of
from garrison.views.limits import Limit, format_duration
from garrison.views.node_view import (
    FailedNode,
    NodeView,
    changed_agents,
    first_line,
    refused_hosts,
    shared_outages,
    unreported_work,
)
from garrison.views.process_view import ProcessView
from garrison.views.run_view import RunInFull, RunReader, RunView, show_run, shown_in_full
from garrison.views.waits import describe_wait

RECENT = 5
"""Maximum number of finished runs listed, unless all are requested."""
SCREEN = 23
"""Lines of a small terminal without the prompt: a run of twelve nodes fits."""
FINISHED = 8
"""Maximum number of finished runs listed while watching all."""


@click.command(cls=Command, renamed={"--limits": "--verbose"}, examples=(
    ("garrison status", "this repository's last runs, and the unfinished ones in full"),
    ("garrison status --all", "all runs of the home"),
    ("garrison status crew-1 --watch", "redrawn each second until the run is over, with its exit code"),
    ("garrison status work-1a2b3c --dot", "its graph, with each node's status"),
    ("garrison status --json | jq '.[].counts'", "for programs"),
))
@click.argument("run", required=False, shell_complete=completion.runs)
@click.option("-w", "--watch", "every", is_flag=False, flag_value="1", metavar="[SECONDS]",
              help="Redraw every SECONDS (default 1) until the run is over; on a pipe, print a line per event. Exits "
                   "with the run's exit code.")
@click.option("-v", "--verbose", is_flag=True,
              help="Show phases, all processes, and limits and timeouts with their usage.")
@click.option("--all", "everything", is_flag=True, help="List all runs of the home, of every repository.")
@click.option("--dot", is_flag=True, help="Print RUN's original graph with each node's status.")
@json_option
@home_option
def status(run: str | None, every: str | None, home: str | None, *, verbose: bool, everything: bool, dot: bool,
           as_json: bool) -> int:
    """Show the unfinished runs of the repository you are in, in full, and the last five; or only RUN.

    ATTEMPT is a node's attempt and their maximum number; RESTARTS is how often its runner or agent was restarted.
    Processes are listed if they have problems.
    """
    place = find_home(home)
    seconds, run = _interval(every, run)
    if dot:
        return _print_graph(run, home)
    if run is not None and seconds is None and not is_launched(place, run):
        from garrison.cli.pipeline import print_engine_status
        from garrison.cli.pipeline_run import find_engine_run

        if (engine_run := find_engine_run(run, home)) is not None:
            print_engine_status(engine_run, as_json=as_json)
            return 0
    reader = RunReader(place, unrecorded=find_unrecorded(place), with_costs=True)
    command = StatusTable(reader, existing_run(place, run) if run is not None else None, verbose, everything=everything)
    if seconds is not None:
        return command.watch(seconds, as_json=as_json)
    views = command.read(details=as_json)
    if as_json:
        print_json(show_run(views[0]) if run else list(map(show_run, views)))
    elif views:
        if not run and not everything and all(is_elsewhere(view.repo) for view in views):
            print_message("this repository has no run yet; other repositories:")
        here = stdout_terminal()
        show(command.picture(views, here.columns), here)
    else:
        command.show_empty_home()
    for problem in dict.fromkeys(problem for view in views for problem in view.problems):
        print_message(problem)
    return 0


def _print_graph(run: str | None, home: str | None) -> int:
    from garrison.cli.pipeline import print_graph

    if run is None:
        raise UsageError("--dot prints the graph of one run: garrison status RUN --dot")
    print_graph(run, home)
    return 0


def _interval(every: str | None, run: str | None) -> tuple[float | None, str | None]:
    """Return the seconds between two refreshes, None without --watch, and the run, also from `--watch RUN`."""
    if every is None:
        return None, run
    try:
        seconds = float(every)
    except ValueError:
        if run is not None:
            raise UsageError(f"--watch {every!r} is not a number of seconds; use `--watch` or `--watch 2`") from None
        return 1.0, every
    if not 0.1 <= seconds <= 3600:
        raise UsageError(f"--watch {every} is not between 0.1 and 3600 seconds")
    return seconds, run


class StatusTable:
    """State of one call of the command; while watching, with the last views."""

    def __init__(self, reader: RunReader, run: str | None, verbose: bool, *, everything: bool) -> None:
        self.reader, self.run, self.verbose, self.everything = reader, run, verbose, everything
        self.last: dict[str, RunView] = {}
        self.total = 1
        """Number of runs at the last read."""
        self.watched: dict[str, int | None] = {}
        """Run shown in full → its exit code, None while it continues."""

    def read(self, *, details: bool = False) -> list[RunView]:
        """Read the named run, or the runs to show: unfinished ones (else the last) with details.

        With `details`, or if everything is requested, all are read, the former in full.
        """
        if self.run is not None:
            return [self.reader.read(self.run)]
        runs = self.reader.runs()
        self.total = len(runs)
        views = self.reader.read_each(runs if details or self.everything else self._shown(runs), details=details)
        if details:
            return views
        # reads these few twice: a run in full costs several times a listed one, and the choice depends on all
        in_full = shown_in_full(views if self.everything else of_this_folder(views), self.watched)
        return [self.reader.read(view.run_id) if view.run_id in in_full else view for view in views]

    def _shown(self, runs: Sequence[str]) -> list[str]:
        """Return the runs that may be shown: the last ones of this repository, and all that are not done."""
        def is_here(run: str) -> bool:
            launch = self.reader.launch(run)
            return launch is not None and is_of_this_folder(launch.repo)

        recent = set(islice(filter(is_here, reversed(runs)), RECENT)) or set(runs[-RECENT:])
        return [run for run in runs if run in recent or run in self.watched or not self.reader.is_done(run)]

    def picture(self, views: Sequence[RunView], columns: int | None) -> list[Line]:
        """Render the views."""
        listed = views if self.run is not None or self.everything else list_recent(views)
        full = [view for view in views if view.details]
        others = [view for view in listed if view not in full]
        lines = render_overview(listed, columns) if self.everything else []
        for view in full:
            lines += [*([[]] if lines else []), *render_run(
                view, columns, verbose=self.verbose, room=SCREEN - (3 if others and not self.everything else 0))]
        if self.everything:
            return lines
        if columns is not None and not self.verbose:
            others = shorten_recent(others, SCREEN - 2 - len(lines))
        recent = render_recent(others, self.total - len(full) - len(others), columns)
        return [*recent, *([[]] if recent and lines else []), *lines]

    def show_empty_home(self) -> None:
        """Print that the home has no runs."""
        report_no_runs(self.reader.home)
        if self.verbose:
            here = stdout_terminal()
            show(render_limits(self.reader.default_limits(), here.columns), here)

    def watch(self, seconds: float, *, as_json: bool) -> int:
        """Watch until the run, or all runs shown in full, are over; return the highest exit code."""
        if not self.reader.runs():
            raise NotFound(f"no run in {self.reader.home} to watch; in a repository, `garrison run TASK` starts one")
        if stdout_terminal().interactive and not as_json:
            return terminal.redraw(self._picture, self._exit_code, seconds)
        return terminal.follow(lambda: self._new_lines(as_json=as_json), self._exit_code, seconds)

    def _read_watched(self) -> list[RunView]:
        views = self.read()
        self.watched |= {view.run_id: _exit_code(view) for view in views if view.details}
        return views

    def _picture(self, here: OutputTerminal) -> list[Line]:
        views = self._read_watched()
        finished = [view for view in views if not view.details]
        return self.picture([view for view in views if view not in finished[:-FINISHED]], here.columns)

    def _new_lines(self, *, as_json: bool) -> list[str]:
        lines = []
        for view in self._read_watched():
            if not view.details:
                continue
            changed = changed_lines(self.last.get(view.run_id), view)
            self.last[view.run_id] = view
            if as_json:
                lines += [json.dumps(show_run(view), ensure_ascii=False, default=asdict)] if changed else []
            else:
                lines += [f"{time.strftime('%H:%M:%S')}  {clean(line)}" for line in changed]
        return lines

    def _exit_code(self) -> int | None:
        codes = list(self.watched.values())
        return None if None in codes else max((code for code in codes if code is not None), default=0)


def _exit_code(view: RunView) -> int | None:
    """Return the exit code of a finished run without living processes; None while it may change."""
    if view.adhoc:
        runner = view.process("runner")
        return None if runner is None or runner.living else int(runner.departure is not Departure.DONE)
    if view.status == "corrupt":
        return 1
    if view.status not in EXIT or view.living:
        return None
    return EXIT[view.status]


# ---- rendering --------------------------------------------------------------------------------------------------

STYLES: Mapping[str, str] = {
    "landed": "good", "no change": "good", "kept": "good", "skipped": "dim", "landing": "due", "queued": "due",
    "testing": "due", "waiting for approval": "due",
    "asks": "due", "died": "bad", "rejected": "bad", "working": "busy", "failed": "bad", "waiting": "dim",
    "parked": "due", "done": "good", "running": "busy", "new": "dim", "stopped": "due", "interrupted": "due",
    "corrupt": "bad", "undone": "bad",
    "alive": "good", "starting": "busy", "dead": "bad", "lapsed": "bad", "lingering": "bad", "elsewhere": "due",
}
"""State → style."""
BLOCKS: Mapping[str, str] = {"landed": "█", "no change": "=", "kept": "+", "undone": "u", "landing": "▓",
                             "working": "▒", "failed": "!", "waiting": "░", "parked": "p", "skipped": "-",
                             "stopped": "s"}
"""Place of a node → its character in the bar; distinct without colours."""
WORDS: Mapping[str, str] = {"landing": "waiting to land"}
"""Place of a node → its words in the legend, if different."""
FOREIGN_MOVES = 5
"""Maximum number of moves of the target outside the queue shown, latest ones."""
BAR = 30
"""Maximum width of a progress bar."""
MAX_NAME = 48
"""Maximum width of a node's name."""
DOING = 32
"""Minimum width of a node's activity for showing its full name."""
RUNS = ("RUN", "STATUS", "PROGRESS", "PIPELINE", "STARTED", "REPOSITORY", "REASON")
NODES = ("NODE", "STATUS", "AGE", "DOING")
NODES_IN_FULL = ("NODE", "STATUS", "PHASE", "ATTEMPT", "RESTARTS", "AGE", "DOING")
PROCESSES = ("PROCESS", "STARTS", "STATUS", "VERDICT", "PHASE", "PID", "HEARTBEAT", "WHY")
LIMITS = ("LEVEL", "LIMIT", "USED", "SET BY", "OF")


def of_this_folder(views: Sequence[RunView]) -> Sequence[RunView]:
    """Return the runs of the current repository; all if it has none."""
    return [view for view in views if is_of_this_folder(view.repo)] or views


def list_recent(views: Sequence[RunView]) -> list[RunView]:
    """Return the last and all unfinished runs of the current repository; of all if it has none."""
    here = of_this_folder(views)
    shown = {view.run_id for view in here[-RECENT:]}
    shown |= {view.run_id for view in here if view.status in UNFINISHED or view.hint}
    return [view for view in views if view.details or view.run_id in shown]


def render_overview(views: Sequence[RunView], columns: int | None) -> list[Line]:
    """Return one line per run."""
    rows = [(span(view.run_id, "head"), _state(view.status), span(view.progress), span(view.pipeline_id),
             span(format_age(view.age_s) and f"{format_age(view.age_s)} ago"), span(view.repo),
             span(first_line(view.reason))) for view in views]
    return table(RUNS, rows, columns, least=12)


def shorten_recent(views: Sequence[RunView], most: int) -> list[RunView]:
    """Return at most so many runs, but at least one, dropping finished and oldest ones first."""
    over = len(views) - max(1, most)
    left_out = [view.run_id for view in views if not view.hint][:max(0, over)]
    return [view for view in views if view.run_id not in left_out]


def render_recent(views: Sequence[RunView], more: int, columns: int | None) -> list[Line]:
    """Return a line for each run of this repository that is not shown in full, with advice or its end, and the number
    of further runs."""
    names = max((terminal_text.width(view.run_id) for view in views), default=0)
    lines = [fit([StyledText(terminal_text.pad(view.run_id, names) + GAP, "head"),
                  StyledText(f"{view.status:11}{GAP}", STYLES.get(view.status, "")),
                  StyledText(", ".join([view.progress, *([f"{format_age(view.age_s)} ago"] if view.age_s else [])])),
                  StyledText(terminal_text.clean(f"; {told}") if told else "")], columns)
             for view in views
             for told in [view.step or first_line(view.reason)]]
    return [*lines, *([raw(f"{more} more: `garrison status --all`", "dim")] if more else [])]


def render_run(view: RunView, columns: int | None, *, verbose: bool = False, room: int = SCREEN) -> list[Line]:
    """Render one run that was read with details, next steps last; `verbose`: everything.

    On a terminal the ends of failed nodes' outputs are shown if they fit into `room` lines, else only the reasons.
    """
    assert view.details is not None
    head = list(_head(view, columns, verbose=verbose))
    processes = _processes([each for each in view.processes if verbose or _needs_attention(each)], columns)
    failures = [list(_failure(view, node, columns)) for node in view.details.failed]
    nodes = _nodes(view.details, columns, verbose=verbose, explained=bool(failures))
    last = _last(view, columns, None)
    is_bounded = columns is not None and not verbose
    if is_bounded and room < sum(len(part) + 1 for part in (head, nodes, processes, *failures, last) if part) - 1:
        failures, nodes = [], _nodes(view.details, columns, verbose=verbose, explained=False)
        left = room - sum(len(part) + 1 for part in (head, nodes, processes) if part)
        last = _last(view, columns, None if len(last) <= left else max(1, left - 2))
    sections = [head, nodes, processes, *failures, render_limits(view.details.limits, columns) if verbose else [], last]
    lines: list[Line] = []
    for section in sections:
        lines += [*([[]] if lines and section else []), *section]
    return lines


def _head(view: RunView, columns: int | None, *, verbose: bool) -> Iterator[Line]:
    is_explained = view.status == "failed" and view.details is not None and bool(view.details.failed)
    line = f"run {view.run_id}: {view.status}, {view.progress}" if is_explained else summary(view)
    yield from wrapped(line, columns, STYLES.get(view.status, "head"))
    if view.total:
        yield _bar(view.counts, view.total, columns)
    if view.details and view.details.cost:
        yield from wrapped(f"cost: {view.details.cost}", columns, "dim")
    if view.details and (pause := view.details.queue):
        yield from wrapped(f"the merge queue is paused ({pause.paused}): {first_line(pause.detail)}", columns, "due")
    if view.lands and view.lands.status and view.lands.status != "landed":
        reason = f": {first_line(view.lands.reason)}" if view.lands.reason else ""
        yield from wrapped(f"its landing on {view.base}: {view.lands.status}{reason}", columns, "due")
    warnings: list[ForeignMove | Warned] = [*view.foreign_moves[-FOREIGN_MOVES:], *view.warnings[-FOREIGN_MOVES:]]
    for warning in warnings:
        yield from wrapped(f"warning: {warning.describe()}", columns, "due")
    nodes = view.details.nodes if view.details else ()
    for text in (*shared_outages(nodes), *refused_hosts(nodes), *unreported_work(nodes), *changed_agents(nodes)):
        yield from wrapped(text, columns, "due")
    if view.sandbox and (verbose or view.sandbox_gaps):
        yield from wrapped(view.sandbox, columns, "due" if view.sandbox_gaps else "")
    for problem in view.problems:
        yield from wrapped(problem, columns, "bad")


def _last(view: RunView, columns: int | None, most: int | None) -> list[Line]:
    """Return the next steps: waits for a signal, for the user (at most so many), and for the run."""
    lines = [line for gate in view.gates if gate.kind == SIGNAL
             for line in wrapped(f"{gate.node} {gate.summary()}", columns, "due", "  ", most=2)]
    waits = [describe_wait(wait, view.run_id) for wait in view.waits]
    if len(waits) == 1:
        lines += wrapped(f"waits for you: {waits[0]}", columns, "due", "  ", most=3)
    elif waits:
        lines += wrapped(f"waits for you: {len(waits)}", columns, "due")
        for text in waits[:most]:
            lines += [[StyledText("  "), *line] for line in wrapped(text, columns and columns - 2, "due", "  ",
                                                                 most=2 if most is None else 1)]
        if most is not None and most < len(waits):
            more = f"and {len(waits) - most} more: `garrison status {view.run_id} --verbose`"
            lines += [[StyledText("  "), *line] for line in wrapped(more, columns, "due")]
    is_over = view.status == Status.FAILED and not view.hint and not waits
    step = describe_next(view.run_id, view.status, over=True) if is_over else view.step
    if step and step not in waits:
        lines += wrapped(f"next: {step}", columns, "due", "  ")
    return lines


def summary(view: RunView) -> str:
    reason = f"; {first_line(view.reason)}" if view.reason else ""
    return f"run {view.run_id}: {view.status}, {view.progress}{reason}"


def _bar(counts: Mapping[str, int], total: int, columns: int | None) -> Line:
    legend = ", ".join(f"{count} {WORDS.get(place, place)}" for place, count in counts.items() if count)
    room = BAR if columns is None else min(BAR, max(8, columns - len(legend) - len(GAP)))
    line = [StyledText(BLOCKS[place] * cells, STYLES[place]) for place,
            cells in bar_shares(counts, total, room).items()]
    return fit([*line, StyledText(GAP + legend)], columns)


def bar_shares(counts: Mapping[str, int], total: int, room: int) -> dict[str, int]:
    """Return how many of `room` columns each place takes: all are used, with at least one per non-empty place if
    possible.
    """
    cells = {place: count * room // total for place, count in counts.items()}
    for place, count in counts.items():
        if count and not cells[place]:
            cells[place] = 1
    while (over := sum(cells.values()) - room) != 0:
        most = max(cells, key=lambda place: (cells[place], place == "landed"))
        cells[most] -= 1 if over > 0 else -1
    return cells


def _nodes(details: RunInFull, columns: int | None, *, verbose: bool, explained: bool) -> list[Line]:
    """Return a line for each node; failed ones are `explained` below with the end of their output."""
    if not details.nodes:
        return []
    below = {failed.node for failed in details.failed} if explained else ()
    rows = [(_state(node.state),
             *((span(node.phase), span(f"{node.attempt}/{node.attempts}"), span(_restarts(node)))
               if verbose else ()), span(format_age(node.since_s)),
             span("see below" if node.node in below else _doing(node, is_numbered=verbose),
                  "bad" if node.place == "failed" else ""))
            for node in details.nodes]
    head = NODES_IN_FULL if verbose else NODES
    others = sum(max(len(name), *(len(row[at].text) for row in rows)) + len(GAP) for at, name in enumerate(head[1:-1]))
    longest = MAX_NAME if columns is None else max(12, columns // 4, min(MAX_NAME, columns - others - len(GAP) - DOING))
    named = [(StyledText(terminal_text.fit(terminal_text.clean(node.node), longest)), *row)
             for node, row in zip(details.nodes, rows, strict=True)]
    return table(head, named, columns, most=3 if verbose else 1)


def _doing(node: NodeView, *, is_numbered: bool) -> str:
    """Return a node's activity, the time of the next probe if it is parked, and the silence of its agent.

    The attempt is named from the second on, unless a column has it.
    """
    doing, left = node.doing, node.parking.probe_in_s if node.parking else None
    if node.attempt > 1 and not is_numbered:
        doing = f"attempt {node.attempt}: {doing}"
    if left is not None:
        doing = doing.replace("parked:", f"parked, probe {f'in {format_age(left)}' if left else 'due'}:", 1)
    return doing + (node.signs.words() if node.signs else "")


def _restarts(node: NodeView) -> str:
    """Return how often a node's runner and agent were restarted within attempts; '' if never."""
    return str(sum(max(number - node.attempt, 0) for number in fields_of(node.incarnations).values()) or "")


def _needs_attention(process: ProcessView) -> bool:
    is_well = process.verdict in ("alive", "starting", "ended") and not process.stopped
    return not is_well or process.status in ("parked", "held")


def _processes(processes: Sequence[ProcessView], columns: int | None) -> list[Line]:
    rows = [(span(process.agent), span(process.incarnation), span(process.status), _state(process.verdict),
             span(process.phase), span(process.pid), span(format_age(process.beat_age_s)),
             span(first_line(process.why) if process.verdict != "alive" or process.stopped else ""))
            for process in processes]
    return table(PROCESSES, rows, columns, least=16) if rows else []


def _failure(view: RunView, node: FailedNode, columns: int | None) -> Iterator[Line]:
    why = first_line(node.reason) or "no reason was recorded"
    yield from wrapped(f"{node.node} failed in attempt {node.attempt}: {why}", columns, "bad", "  ")
    for line in terminal_text.clean_lines(node.tail)[-5:]:
        yield fit(raw("    " + line.expandtabs()), columns)
    look = f"see: garrison logs {node.node} --run {view.run_id}"
    yield [StyledText("  "), *fit(raw(look), None if columns is None else columns - 2)]
    yield [StyledText("  "), *raw(terminal_text.clean(node.folder), "dim")]


def render_limits(rows: Sequence[Limit], columns: int | None) -> list[Line]:
    cells = [(span(row.level, "head"), span(format_duration(row.limit) if row.unit == "seconds" else str(row.limit)),
              span(_used(row.used)), span(row.set_by, "dim"), span(row.text)) for row in rows]
    return table(LIMITS, cells, columns)


def _used(used: Mapping[str, float], most: int = 2) -> str:
    ordered = sorted(used.items(), key=lambda item: (-item[1], item[0]))
    largest = ", ".join(f"{name.partition('@')[0]} {count:g}" for name, count in ordered[:most])
    return largest + (f", {len(ordered) - most} more" if len(ordered) > most else "")


def _state(word: str) -> StyledText:
    return span(word, STYLES.get(word, ""))


def changed_lines(old: RunView | None, new: RunView) -> list[str]:
    """Return the changes between two views of a run, one per line; without an old view, everything."""
    before = {node.node: _node_line(node) for node in old.details.nodes} if old and old.details else {}
    lines = [summary(new)] if old is None or summary(old) != summary(new) else []
    if new.hint and (old is None or old.hint != new.hint):
        lines.append(new.hint)
    lines += [f"{gate.node} {gate.summary()}" for gate in new.gates if old is None or gate not in old.gates]
    lines += [problem for problem in new.problems if old is None or problem not in old.problems]
    nodes = new.details.nodes if new.details else []
    return lines + [line for node in nodes if before.get(node.node) != (line := _node_line(node))]


def _node_line(node: NodeView) -> str:
    phase = f", {node.phase}" if node.phase else ""
    attempt = f", attempt {node.attempt}" if node.attempt > 1 else ""
    return f"{node.node}: {node.state}{phase}{attempt}" + (f": {node.doing}" if node.doing else "")
