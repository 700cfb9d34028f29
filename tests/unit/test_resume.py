"""`garrison resume`: what a name means, its options, and the former commands."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from garrison.cli import launch, pipeline_run, resume, workflows
from garrison.cli.main import garrison, main
from garrison.cli.resume import WorkKind
from garrison.records.run import Launch

NAMES = {"crew-1": WorkKind.LAUNCHED, "lost-1": WorkKind.LAUNCHED, "work-1": WorkKind.PIPELINE,
         "20260131_1f2e": WorkKind.WORKFLOW}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with one of each kind; `lost-1` has lost its launch.json."""
    for name in ("runs/crew-1/launch.json", "runs/lost-1/journal.jsonl", "pipelines/work-1/journal.jsonl",
                 "workflows/20260131_1f2e.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("{}\n")
    return tmp_path


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Record what is resumed instead of resuming it."""
    calls: list[tuple[object, ...]] = []
    for module, name, kind in ((launch, "resume_run", WorkKind.LAUNCHED),
                               (workflows, "resume_session", WorkKind.WORKFLOW),
                               (pipeline_run, "resume_pipeline_run", WorkKind.PIPELINE)):
        monkeypatch.setattr(module, name, lambda run, home, _kind=kind, **options: calls.append((_kind, run, options)))
    return calls


def call(home: Path, *words: str) -> Result:
    return CliRunner().invoke(garrison, ["--home", str(home), *words])


@pytest.mark.parametrize(("name", "kind"), NAMES.items())
def test_a_name_or_the_path_of_a_pipeline_run_is_found(name, kind, home, resumed):
    assert call(home, "resume", name).exit_code == 0
    assert [found[:2] for found in resumed] == [(kind, name)]
    if kind is WorkKind.PIPELINE:
        assert call(home, "resume", str(home / "pipelines" / name)).exit_code == 0
        assert resumed[1][0] is kind


@pytest.mark.parametrize(("name", "words", "option", "others"), [
    ("crew-1", ["--keep"], "--keep", "a workflow session"), ("crew-1", ["--wait"], "--wait", "`garrison pipeline run`"),
    ("work-1", ["--detach"], "--detach", "a launched run"), ("20260131_1f2e", ["--max-steps", "3"], "--max-steps",
                                                             "a launched run or a run of"),
    ("crew-1", ["--answer", "a=b"], "--answer", "`garrison pipeline run`"),
])
def test_an_option_of_another_kind_is_refused(name, words, option, others, home, resumed, capsys):
    assert main(["--home", str(home), "resume", name, *words]) == 2
    told = capsys.readouterr().err
    assert f"{name} is {NAMES[name].value}; {option} is for " in told and others in told
    assert not resumed


def test_an_unknown_name_is_refused_with_the_closest_run(home, resumed, capsys):
    assert main(["--home", str(home), "resume", "crew-2"]) == 1
    assert "did you mean crew-1?" in capsys.readouterr().err
    assert not resumed


@pytest.mark.parametrize(("former", "kind"), [
    (["launch", "--resume", "crew-1"], WorkKind.LAUNCHED), (["pipeline", "resume", "work-1"], WorkKind.PIPELINE),
    (["workflow", "resume", "20260131_1f2e"], WorkKind.WORKFLOW),
])
def test_a_former_command_still_works_and_names_its_successor(former, kind, home, resumed):
    result = call(home, *former)
    assert (result.exit_code, resumed[0][0]) == (0, kind), result.output
    assert "is now `garrison resume" in result.stderr and result.stdout == ""


def test_the_options_of_all_kinds_are_those_of_the_command():
    names = {parameter.name for parameter in resume.resume.params if parameter.expose_value}
    assert set().union(*resume.OPTIONS.values()) == names - {"run", "home", "as_json"}


def test_only_one_visible_command_resumes():
    def visible(command: click.Command, *path: str) -> list[str]:
        if command.hidden:
            return []
        if not isinstance(command, click.Group):
            return [" ".join(path)]
        context = click.Context(command)
        found = [(name, command.get_command(context, name)) for name in command.list_commands(context)]
        return [line for name, each in found if each is not None for line in visible(each, *path, name)]

    lines = visible(garrison)
    assert [line for line in lines if line.split()[-1] == "resume"] == ["resume"]
    for word in ("status", "doctor", "answer", "signal"):
        assert [line for line in lines if line.split()[-1] == word] == [word] * (word != "signal")


def test_a_launch_interrupted_before_its_launcher_started_names_the_command_that_starts_it(monkeypatch, capsys):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    made = Launch("crew-1", "crew", "/repo", "main", "2026-01-31T00:00:00Z", "/trees", "")
    monkeypatch.setattr(launch.launching, "exec_launcher", interrupted)
    monkeypatch.setattr(launch, "create", lambda *_, **__: made)
    done = CliRunner().invoke(garrison, ["launch", "crew.dot"])
    assert isinstance(done.exception, KeyboardInterrupt | SystemExit)
    assert "`garrison resume crew-1` starts it" in done.output + capsys.readouterr().err
