"""Actions of the page and of `garrison top`: each runs an existing command with its current options."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import click
import pytest

from garrison.cli.main import garrison
from garrison.cli.top_app import ACTIONS
from garrison.errors import Refused, UsageError
from garrison.views.top_frame import TopRow
from garrison.web import actions, begin
from garrison.web.access import Rules
from garrison.web.broadcaster import Broadcaster
from garrison.web.chat import claude_butler
from garrison.web.connections import capacity_of
from garrison.web.routes import Page
from garrison.web.webhooks import Webhooks

ROWS = (TopRow(None, 0, 0, id="n", run="r1", kind="node", name="a", state="working"),
        TopRow(None, 0, 0, id="g", run="r1", kind="layer", name="guardian-x", state="alive", role="guardian"))
OFFER = begin.StartOffer((begin.RunDefaults("/r", "codex"),), ("claude",))
COMMANDS = [
    *(actions.run_command_words("r1", {"action": action}) for action in actions.RUN),
    *(actions.node_command_words("r1", "a", {"action": action, "text": "-- why $(id)"}) for action in actions.NODE),
    actions.run_command_words("r1", {"action": "again", "nodes": ["a", "b"]}),
    actions.review_command_words("r1", "a", {"text": ""}, 2, "0123abcd", [("-x.py:3", "--why")]),
    actions.review_command_words("r1", "a", {"choice": "Approve", "text": "fine"}, 2, "0123abcd"),
    *(actions.entry_command_words("a-1-0123abcd", {"action": action}) for action in actions.ENTRY),
    *(actions.queue_command_words("/", ["main", "x"], {"action": action, "target": "x"}) for action in actions.QUEUE),
    actions.answer_command_words("r1", "a", {"choice": "--yes"}),
    actions.review_command_words("r1", "a", {"choice": "Approve"}, 2, "0123abcd"),
    actions.review_command_words("r1", "a", {"text": "-- why $(id)"}, 2, "0123abcd"),
    *(list(begin.order_of({"kind": kind, "repo": "/r", "text": "7", "agent": "codex", "gate": "-x", "command": "-c",
                           "acceptance": "-a", "budget": "2", "approve": True, "plan": "p-1"}, OFFER).words)
      for kind in begin.KINDS),
    list(begin.order_added("r1", {"text": "-- do $(it)", "after": "a", "agent": "codex", "budget": "none"}).words),
    list(begin.order_edited("r1", "a", {"text": "-- do $(it)", "agent": "codex", "budget": "2"}).words),
    *(argv for action in ACTIONS.values() for row in ROWS if (argv := action.argv(row)) is not None),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_action_is_a_command_with_current_options(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command: click.Command = garrison
    context, rest = click.Context(garrison), words
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, rest)
        command, context = found, click.Context(found, parent=context, info_name=name)
    command.make_context(context.info_name or "", rest, parent=context.parent)
    assert capsys.readouterr().err == "", "a former option name prints a warning"


def test_only_its_button_approves_work_and_a_rejection_needs_a_reason() -> None:
    assert "--approve" in actions.review_command_words("r1", "a", {"choice": "Approve"}, 2, "0123abcd")
    for body in ({"text": "Approve"}, {"text": "fine", "choice": "approve"}):
        assert "--reject" in actions.review_command_words("r1", "a", body, 2, "0123abcd")
    with pytest.raises(UsageError, match="text is missing"):
        actions.review_command_words("r1", "a", {"choice": "Reject"}, 2, "0123abcd")


def test_an_action_applies_only_to_a_queue_of_the_run() -> None:
    targets = ["main", "garrison/r1/integration"]
    for body, target in (({}, "main"), ({"target": ""}, "main"), ({"target": targets[1]}, targets[1])):
        assert actions.queue_command_words("/", targets, {"action": "resume", **body})[-1] == f"--target={target}"
    with pytest.raises(UsageError, match="pass target, one of main, garrison/r1/integration"):
        actions.queue_command_words("/", targets, {"action": "resume", "target": "release"})


@pytest.mark.parametrize("body", [{}, {"action": "rm"}, {"action": ["stop"]}])
def test_an_unknown_action_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"keep-in-AGENTS.md, keep-in-CLAUDE.md, keep-private, drop"):
        actions.named_command_words(actions.LESSON, "a1", body)
    with pytest.raises(UsageError, match="stop, resume"):
        actions.run_command_words("r1", body)
    with pytest.raises(UsageError, match="merge entry"):
        actions.entry_command_words("../x", {"action": "hold"})


@pytest.mark.parametrize(("body", "why"), [
    ({"kind": "task", "repo": "/etc", "text": "x"}, "has no runs here"),
    ({"kind": "rm", "repo": "/r", "text": "x"}, "pass kind, one of task, tasks, goal, plan, issue"),
    ({"kind": "task", "repo": "/r", "text": " "}, "describe the task"),
    ({"kind": "tasks", "repo": "/r", "text": ["x"]}, "describe the task"),
    ({"kind": "issue", "repo": "/r", "text": "--label x"}, "is not an issue number"),
    ({"kind": "task", "repo": "/r", "text": "x", "agent": "--dry-run"}, "is not installed here; installed: claude"),
])
def test_only_offered_work_can_be_started(body: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        begin.order_of(body, OFFER)


def test_the_shown_command_can_be_typed() -> None:
    text = "-- fix `it`, and \"that\"; it's $HOME\nsecond line"
    order = begin.order_of({"kind": "task", "repo": "/r", "text": text, "gate": "make test"}, OFFER)
    assert order.text == text
    assert shlex.split(order.command) == ["garrison", "run", "--gate=make test", "--target-dir=/r", "--", text]
    assert shlex.split(begin.order_edited("r1", "a", {"text": text}).command)[-3:] == ["--", "a", text]


def test_nothing_is_offered_for_folders_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server may outlive its working directory and the repositories of its runs."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    broadcaster = Broadcaster(tmp_path, capacity_of(1000))
    assert Page(tmp_path, Rules(frozenset(), {}), broadcaster, claude_butler, Webhooks(tmp_path)
                ).read_offer().places == ()
    with pytest.raises(Refused, match=r"the repository .*/gone is gone"):
        begin.Beginnings(tmp_path).start(begin.CommandLine(("run",), str(gone)))


async def test_a_command_that_prints_a_very_long_line_ends_on_the_page(tmp_path: Path) -> None:
    beginnings = begin.Beginnings(tmp_path)
    begun = beginnings.start(begin.CommandLine(("x" * 70_000,), str(tmp_path)))
    while not beginnings.look(begun.id).is_over:
        await asyncio.sleep(0.02)
    assert beginnings.look(begun.id).problem == "Try 'garrison --help' for help."
