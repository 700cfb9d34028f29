"""Run the commands of docs/ in the order of each page, in a folder like a reader's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from installed import FOLDER
from markdown_blocks import blocks
from support import DEADLINE, Place, git

ROOT = Path(__file__).resolve().parents[2]
LONG = ("docs/how-to.md", "docs/supervision.md", "docs/getting-started.md", "docs/first-agent.md", "docs/task-lists.md",
        "docs/plan.md", "docs/after-landing.md", "docs/monorepos.md", "docs/configuration.md", "docs/upgrading.md")
PAGES = ("docs/first-pipeline.md", "docs/notify.md", "docs/supervisor-by-hand.md", "docs/merge-queue.md",
         "docs/preview.md", "docs/services.md", "docs/acp.md", "docs/best-of-n.md", "docs/lessons.md", *LONG)
SAVED = frozenset({"dot", "toml", "yaml", "python"})
SHOWN = frozenset({"text", ""})
TEST = """import unittest

from deep_thought import answer


class Answers(unittest.TestCase):
    def test_answer(self):
        self.assertEqual(answer(), 42)
"""
FILES = {"README.md": "# A project\n", ".gitignore": "__pycache__/\n.venv/\n.pytest_cache/\n", "tests/__init__.py": "",
         "deep_thought.py": "def answer():\n    return 42\n", "tests/test_answer.py": TEST}


@pytest.fixture
def reader(places: Callable[..., Place]) -> Place:
    """Return a place with the scripts, an installed `garrison` on PATH and a small project in ~/src/project."""
    place = places()
    (place.root / "scripts").symlink_to(ROOT / "scripts")
    project = place.user / "src" / "project"
    (project / "tests").mkdir(parents=True)
    git(project, "init", "-q", "-b", "main")
    for name, text in FILES.items():
        (project / name).write_text(text)
    for name, value in (("user.name", "A Reader"), ("user.email", "reader@example.org")):
        git(project, "config", name, value)
    git(project, "add", "-A")
    git(project, "commit", "-qm", "Begin")
    folders = [str(FOLDER / "bin"), str(Path(sys.executable).parent), place.env["PATH"]]  # pytest is of this checkout
    place.env["PATH"] = os.pathsep.join(folders)
    return place


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", [pytest.param(page, marks=pytest.mark.slow if page in LONG else ())
                                  for page in PAGES])
def test_the_commands_of_a_page_work(reader: Place, page: str) -> None:
    """Run, save or skip every block on purpose; none is left out silently."""
    ran = 0
    for block in blocks(ROOT / page):
        where = f"{block.page}:{block.line}"
        if block.language in SAVED and block.file:
            folder = reader.home if block.file == "config.toml" else reader.root
            folder.mkdir(exist_ok=True, mode=0o700)
            (folder / block.file).write_text(block.text)
        elif block.language == "sh" and not block.not_run:
            env = reader.for_scripts if "scripts/" in block.text else reader.env
            done = subprocess.run(["bash", "-e", "-c", block.text], env=env, cwd=reader.root, capture_output=True,
                                  text=True, check=False, timeout=DEADLINE, stdin=subprocess.DEVNULL)
            assert done.returncode == 0, f"{where}\n{block.text}\n{done.stdout}\n{done.stderr}\n{reader.logs()}"
            assert "Traceback" not in done.stderr, f"{where}\n{done.stderr}"
            ran += 1
        else:
            assert block.language in SHOWN or block.not_run or block.language in SAVED, \
                f"{where}: `{block.language}` is neither run nor saved, and not marked as not run"
    assert ran >= 1


def test_the_pages_of_the_commands_match_their_help() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts/reference.py"), "--check"], capture_output=True,
                          text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
