"""The replay of CooperBench: its data as repositories, its controls and classes, and a pair by garrison."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "benchmarks/cooperbench.py"
sys.path.insert(0, str(ROOT / "benchmarks"))

from cooperbench_data import TaskRepository, Unusable, build, find_dataset, git, own_name, tasks  # noqa: E402
from cooperbench_run import Suites, suite_command  # noqa: E402

BASE = {"shop/__init__.py": "", "shop/price.py": "RATE = 2\n\n\ndef price(n):\n    return n * RATE\n" + "\n# end\n" * 3,
        "shop/names.py": "NAMES = ['a']\n", "tests/test_price.py": "def test_old():\n    assert True\n"}
FEATURES = {
    "1": ({"shop/names.py": "NAMES = ['a', 'b']\n"}, "from shop.names import NAMES\ndef test_b(): assert 'b' in NAMES"),
    "2": ({"shop/names.py": "NAMES = ['a', 'c']\n"}, "from shop.names import NAMES\ndef test_c(): assert 'c' in NAMES"),
    "3": ({"shop/price.py": BASE["shop/price.py"].replace("RATE = 2", "RATE = 3")},
          "from shop.price import price\ndef test_three(): assert price(1) == 3"),
    "4": ({"shop/total.py": "from shop.price import price\n\n\ndef total():\n    return price(1)\n"},
          "from shop.total import total\ndef test_total(): assert total() == 2"),
    "10": ({"shop/more.py": "X = 1\n"}, "def test_nothing(): assert True"),
}
"""Features of a library: 1 and 2 conflict, 3 and 4 are red together, 10 has a suite that judges nothing."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a dataset of one task with the layout of CooperBench."""
    root = tmp_path_factory.mktemp("data")
    repo, folder = root / "repo", root / "data/shop/task7"
    git(root, "init", "-q", "-b", "base/task7", str(repo))
    write(repo, BASE)
    for key in ("user.name", "user.email"):
        git(repo, "config", key, "x")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "base")
    folder.mkdir(parents=True)
    git(repo, "bundle", "create", str(folder.parent / "base.bundle"), "base/task7")
    whole: dict[str, str] = {"shop/names.py": "NAMES = ['a', 'b', 'c']\n"}
    for name, (files, test) in FEATURES.items():
        (folder / f"feature{name}").mkdir()
        patch(repo, files, folder / f"feature{name}/feature.patch")
        patch(repo, {"tests/test_price.py": BASE["tests/test_price.py"] + f"\n\n{test}\n"},
              folder / f"feature{name}/tests.patch")
        whole = {**files, **whole}
    patch(repo, whole | {"shop/total.py": "def total():\n    return 2\n"}, folder / "combined.patch")
    return root / "data"


def write(repo: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(text)


def patch(repo: Path, files: dict[str, str], target: Path) -> None:
    write(repo, files)
    git(repo, "add", "-A")
    target.write_text(git(repo, "diff", "--cached") + "\n")
    git(repo, "reset", "-q", "--hard")


@pytest.fixture(scope="module")
def source(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> TaskRepository:
    [task] = tasks(dataset)
    assert task.key == "shop/task7"
    return build(task, tmp_path_factory.mktemp("state") / "task")


def test_each_feature_has_a_suite_in_its_own_file(source: TaskRepository) -> None:
    assert [one.name for one in source.task.features] == ["1", "2", "3", "4", "10"]
    assert source.refused == ()
    assert source.has_combined
    assert source.task.features[0].suite == ("tests/test_price_feature1.py",)
    changed = git(source.path, "diff", "--name-only", "main", "refs/cooperbench/feature/1").splitlines()
    assert changed == [".suites/feature1", "shop/names.py", "tests/test_price_feature1.py"]
    assert build(source.task, source.path.parent) == source


@pytest.mark.parametrize(("path", "name"), [
    ("tests/test_a.py", "tests/test_a_feature3.py"), ("a_test.py", "a_feature3_test.py"),
    ("tests/unit/test_test.py", "tests/unit/test_test_feature3.py")])
def test_a_copy_is_collected_like_its_original(path: str, name: str) -> None:
    assert own_name(path, "3") == name


def test_pairs_are_classed_by_merges_and_suites(source: TaskRepository, tmp_path: Path,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which takes most of a start of pytest
    runs: list[bool] = []
    suites = Suites(suite_command(sys.executable), tmp_path, {}, lambda _, green: runs.append(green))
    assert source.merged("gold/1", "gold/2") == ""
    assert suites.green(source.path, source.merged("feature/1", "feature/3"))
    assert suites.green(source.path, source.rev("feature/4"))
    assert not suites.green(source.path, source.rev("suite/4"))
    assert not suites.green(source.path, source.merged("feature/3", "feature/4"))
    assert suites.green(source.path, "main")
    known = len(runs)
    assert not suites.green(source.path, source.merged("feature/3", "feature/4"))
    assert len(runs) == known == 5
    assert len(list(tmp_path.glob("red-*.log"))) == 2


def test_without_the_dataset_it_is_skipped_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="name its folder with --data or COOPERBENCH"):
        find_dataset(str(tmp_path))
    done = subprocess.run([sys.executable, str(PROGRAM), "--data", str(tmp_path), "--state", str(tmp_path / "state")],
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("skipped: no task of CooperBench in ")
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_pairs_land_green_and_the_second_call_repeats_nothing(dataset: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAM), "--data", str(dataset), "--state", str(tmp_path / "state"), "--quiet"]
    env = {**os.environ, "TMPDIR": str(tmp_path)}

    def ran(*more: str) -> str:
        done = subprocess.run([*words, *more], env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return "\n".join(" ".join(line.split()) for line in done.stdout.splitlines())

    said = ran("--phases", "control,calm")
    assert "4 of 5 features can be judged; left out: 10 (green without its own feature)" in said
    assert "calm pairs landed with both suites green 6 of 6" in said
    assert "calm red commits on main at any moment; findings of the checker 0; 0" in said
    assert "calm clean red 1 of 1 caught, 1 landed green by rework" in said
    assert "4 of 6 landed with both suites green, 1 red commits on main, 1 left to a person" in said
    said = ran("--phases", "killed", "--pair", "3,4")
    assert "killed red commits on main at any moment; findings of the checker 0; 0" in said
    before = (tmp_path / "state/results.jsonl").read_bytes()
    ran("--phases", "control,calm")
    assert (tmp_path / "state/results.jsonl").read_bytes() == before
