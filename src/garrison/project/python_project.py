"""Python projects: ways to test them, from the project's own tool down to a .venv with pytest. Pure.

A .venv gets the requirements that the project names for tests: an extra, a dependency group, a requirements file, the
`deps` of tox. It is unknown which of these is complete, so each is a candidate, most likely first.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from garrison.project.ecosystems import PYTHON, CommandPair
from garrison.project.files import ProjectFiles, is_python_test, python_literals, read_ini, read_toml, strings, table
from garrison.values import Value, replace

Version = tuple[int, int]
VENV = "python3 -m venv .venv && echo '*' > .venv/.gitignore && "
"""Start of a set-up with an environment in the worktree, which git ignores."""
PIP = ".venv/bin/pip install -q"
_ACTIVATE = "PATH=$PWD/.venv/bin:$PATH "
"""Prefix of a command in the .venv: tests may start programs that are installed there."""
# by default both keep environments below the HOME, but only set-up output in the worktree is kept
POETRY = "POETRY_VIRTUALENVS_IN_PROJECT=1 poetry"
PIPENV = "PIPENV_VENV_IN_PROJECT=1 pipenv"
MAX_VENVS = 7
"""Maximum number of candidates with a .venv."""

_TEST_NAMES = ("tests", "test", "testing", "pytest", "unittest", "dev", "develop", "development", "all", "ci")
"""Names of extras, groups and files with test requirements, most likely first."""
_OTHER_NAMES = re.compile(r"doc|lint|typ(e|ing)|mypy|format|style|bench|release|build|pre.?commit|publish|pyright|ruff")
_RUNNER = re.compile(r"\b(pytest|py\.test|unittest|nose2?|stestr|trial|green|ward|django|manage\.py|runtests|trial)\b")
_PYTEST = re.compile(r"\bpytest\b")
_PYTEST_TEST = r"^(import pytest|from pytest|(async )?def test_|class Test\w*(\(object\)|\(\))?:)"
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")


def propose_python(files: ProjectFiles, versions: Sequence[Version] = ((3, 11),)) -> list[CommandPair]:
    """Return candidates for testing a Python project in the order of trial; empty for other projects.

    Args:
        versions: versions of `python3` and of each `python3.N` on the PATH.
    """
    project = _read(files)
    if project is None:
        return []
    if not project.has_tests:
        return list(_without_tests(project))
    version = _choose_version(project, versions)
    python = "python3" if version == versions[0] else f"python{version[0]}.{version[1]}"
    found: dict[tuple[str, str], CommandPair] = {}
    for each in (*_with_own_tool(project, version), *_with_venv(project), *_with_tox_in_venv(project, version)):
        found.setdefault((each.setup, each.gate), replace(
            each, setup=each.setup.replace("python3 -m venv", f"{python} -m venv"),
            gate=each.gate.replace("python3 -m", f"{python} -m")))
    return list(found.values())


def _choose_version(project: _Project, versions: Sequence[Version]) -> Version:
    """Return the version of Python to test with: the one of `python3`, unless only another satisfies the project."""
    stated = str(table(project.pyproject, "project").get("requires-python")
                 or table(project.pyproject, "tool", "poetry", "dependencies").get("python") or "")

    def satisfies(version: Version) -> bool:
        for sign, minor in re.findall(r"(>=|<=|>|<|\^|~=|~|==)\s*3\.(\d+)", stated):
            number = int(minor)
            holds = {"<=": version[1] <= number, "<": version[1] < number, "~": version[1] == number,
                     "==": version[1] == number}
            if not holds.get(sign, version[1] >= number):
                return False
        return True

    return next((version for version in (versions[0], *sorted(versions[1:], reverse=True)) if satisfies(version)),
                versions[0])


# ------------------------------------------------------------------------------------------------------------- facts


class _Project(Value):
    """Facts from the files of a Python project."""

    files: ProjectFiles
    pyproject: Mapping[str, object]
    is_installable: bool
    """Set if pip can install it from its folder."""
    uses_pytest: bool
    has_tests: bool
    extras: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, tuple[str, ...]]
    """Dependency groups (PEP 735), with those that they include."""
    dependencies: tuple[str, ...]
    """Its runtime requirements, if stated outside a build system."""
    others: Mapping[str, tuple[str, ...]]
    """Requirements that only its own tool can install as a set, by place."""
    requirements: tuple[str, ...]
    """Requirements files for its tests, most likely first."""


def _read(files: ProjectFiles) -> _Project | None:
    pyproject = read_toml(files.text("pyproject.toml"))
    setup_cfg = read_ini(files.text("setup.cfg"))
    # a pyproject.toml with only tool settings, as in projects of other languages, is not a project
    is_named = bool(table(pyproject, "project") or table(pyproject, "build-system")
                    or table(pyproject, "tool", "poetry"))
    sources = [path for path in files.paths if path.endswith(".py")]
    if not (is_named or sources or files.has("setup.py", "requirements.txt", "Pipfile", "uv.lock", "poetry.lock")):
        return None
    tests = [path for path in sources if is_python_test(path) and not path.endswith("conftest.py")]
    is_odd = files.any("*", r"^\s*(python_files\s*=|addopts.*doctest)")
    legacy = python_literals(files.text("setup.py"), ("extras_require", "tests_require", "install_requires"))
    extras = {**{name: strings(value) for name, value in table(legacy, "extras_require").items()},
              **({name: strings(value) for name, value in setup_cfg.items("options.extras_require")}
                 if setup_cfg.has_section("options.extras_require") else {}),
              **{name: strings(value) for name, value in table(pyproject, "tool", "poetry", "extras").items()},
              **{name: strings(value) for name, value in
                 table(pyproject, "project", "optional-dependencies").items()}}
    return _Project(
        files, pyproject,
        is_installable=files.has("setup.py") or (
            is_named and table(pyproject, "tool", "poetry").get("package-mode") is not False),
        uses_pytest=_uses_pytest(files), has_tests=bool(tests) or is_odd, extras=extras,
        groups=_expand_groups(table(pyproject, "dependency-groups")),
        dependencies=(strings(table(pyproject, "project").get("dependencies"))
                      or strings(setup_cfg.get("options", "install_requires", fallback=""))
                      or _poetry_names(table(pyproject, "tool", "poetry", "dependencies"))),
        others=_other_requirements(files, pyproject, setup_cfg.get("options", "tests_require", fallback="") or
                                   strings(legacy.get("tests_require"))),
        requirements=_requirement_files(files))


def _uses_pytest(files: ProjectFiles) -> bool:
    return (files.has("pytest.ini", ".pytest.ini") or files.any("*conftest.py")
            or files.any("pyproject.toml", _PYTEST.pattern) or files.any("setup.cfg", _PYTEST.pattern)
            or files.any("tox.ini", _PYTEST.pattern) or files.any("tox.toml", _PYTEST.pattern)
            or files.any("noxfile.py", _PYTEST.pattern) or files.any("*requirements*.txt", r"^pytest\b")
            or files.any("*requirements/*.txt", r"^pytest\b") or files.any("Pipfile", _PYTEST.pattern)
            or any(re.search(_PYTEST_TEST, text, re.MULTILINE) is not None
                   for path, text in files.texts.items() if is_python_test(path)))


def _expand_groups(groups: Mapping[str, object]) -> Mapping[str, tuple[str, ...]]:
    def expand(name: str, seen: tuple[str, ...]) -> Iterator[str]:
        value = groups.get(name)
        for item in value if isinstance(value, list) else ():
            if isinstance(item, str):
                yield item
            elif isinstance(included := table(item).get("include-group"), str) and included not in seen:
                yield from expand(included, (*seen, included))
    return {name: tuple(expand(name, (name,))) for name in groups}


def _poetry_names(dependencies: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of requirements in Poetry's notation, without optional and unreleased ones."""
    return tuple(name for name, value in dependencies.items() if name.lower() != "python" and _NAME.fullmatch(name)
                 and not (isinstance(value, dict) and (value.get("optional") or {"path", "git", "url"} & set(value))))


def _other_requirements(files: ProjectFiles, pyproject: Mapping[str, object],
                        tests_require: str | tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    poetry, hatch = table(pyproject, "tool", "poetry"), table(pyproject, "tool", "hatch", "envs")
    found = {"tests_require of its set-up script": strings(tests_require)}
    for name, group in table(poetry, "group").items():
        if _is_for_tests(name):
            found[f"Poetry's group {name}"] = _poetry_names(table(group, "dependencies"))
    found["Poetry's dev-dependencies"] = _poetry_names(table(poetry, "dev-dependencies"))
    for name in ("hatch-test", "test", "tests", "default", "dev"):
        environment = table(hatch, name)
        found[f"hatch's environment {name}"] = (
            *(("pytest",) if name == "hatch-test" and environment else ()),
            *strings(environment.get("dependencies")), *strings(environment.get("extra-dependencies")))
    for name, value in table(pyproject, "tool", "pdm", "dev-dependencies").items():
        if _is_for_tests(name):
            found[f"pdm's group {name}"] = strings(value)
    found["uv's dev-dependencies"] = strings(table(pyproject, "tool", "uv").get("dev-dependencies"))
    found["dev-packages of the Pipfile"] = tuple(
        name for name in table(read_toml(files.text("Pipfile")), "dev-packages") if _NAME.fullmatch(name))
    tox = read_ini(files.text("tox.ini") or str(table(pyproject, "tool", "tox").get("legacy_tox_ini", "")))
    found["deps of tox.ini"] = tuple(_tox_requirements(tox.get("testenv", "deps", fallback="") or ""))
    return {where: names for where, names in found.items() if names}


def _tox_requirements(deps: str) -> Iterator[str]:
    """Yield pip's arguments for the unconditional lines of tox's `deps`."""
    for line in deps.splitlines():
        text = line.partition(" #")[0].strip().replace("{toxinidir}/", "").replace("{tox_root}/", "")
        if not text or text.startswith("#") or "{" in text or re.match(r"^[\w!-]+(,[\w!-]+)*\s*:", text):
            continue
        option = re.match(r"^(-r|-c)\s*(\S+)$", text)
        yield from (option[1], option[2]) if option else (text,)


def _requirement_files(files: ProjectFiles) -> tuple[str, ...]:
    found = [path for path in files.paths if path.count("/") <= 1 and re.search(
        r"(^|/)[\w.-]*requirements[\w.-]*\.(txt|in)$|^requirements/[\w.-]+\.(txt|in)$", path)]
    tested = [path for path in found if _is_for_tests(path.removeprefix("requirements/"))
              or files.any(path, r"^pytest\b")]
    return tuple(sorted(tested, key=lambda path: (path.endswith(".in"), _rank(path.removeprefix("requirements/")),
                                                  path)))


def _rank(name: str) -> int:
    words = re.split(r"[^a-z]+", name.lower())
    return min((_TEST_NAMES.index(word) for word in words if word in _TEST_NAMES), default=len(_TEST_NAMES))


def _is_for_tests(name: str) -> bool:
    return _rank(name) < len(_TEST_NAMES) and not _OTHER_NAMES.search(name.lower())


def _test_sets(sets: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the names of extras or groups with test requirements, those with a runner first."""
    named = [name for name in sets if _is_for_tests(name) or _has_runner(sets[name])]
    return sorted(named, key=lambda name: (not _has_runner(sets[name]), bool(_OTHER_NAMES.search(name)), _rank(name)))


def _has_runner(requirements: Sequence[str]) -> bool:
    return any(re.match(r"^pytest\b(?!-)", text.strip()) for text in requirements)


# ------------------------------------------------------------------------------------------------------ its own tools


def _with_own_tool(project: _Project, version: tuple[int, int]) -> Iterator[CommandPair]:
    files = project.files
    # `python -m pytest` finds modules in the top directory; plain pytest does only for an installed project
    runners = ("pytest -q", "python -m pytest -q") if project.uses_pytest else (_unittest(project, "python"),)
    if files.has("uv.lock"):
        every = " --all-packages" if table(project.pyproject, "tool", "uv", "workspace") else ""
        for number, (why, options) in enumerate(_uv_options(project)):
            for runner in runners if not number else runners[:1]:
                yield CommandPair(PYTHON, _with_runner(why, runner), f"uv run --no-sync {runner}",
                                  f"uv sync{options}{every}", install="uv pip install -q")
    for lock, run, setup, install in _locked(project):
        for runner in runners if files.has(lock) else ():
            yield CommandPair(PYTHON, _with_runner(lock, runner), f"{run} {runner}", setup, (".venv",), install=install)
    environment = find_tox_environment(files, version)
    if environment is not None:
        yield CommandPair(PYTHON, f"tox's environment {environment}", f"tox -q -e {environment}",
                          f"tox -q -e {environment} --notest", (".tox",), shows_tests=True)
    if files.has("noxfile.py"):
        session = find_nox_session(files.text("noxfile.py"))
        chosen = f" -s {session}" if session else ""
        yield CommandPair(PYTHON, f"nox's session {session}" if session else "noxfile.py", f"nox -r{chosen}",
                          f"nox -r --install-only{chosen}", (".nox",), shows_tests=True)


def _with_runner(why: str, runner: str) -> str:
    return f"{why} with python -m pytest" if runner.startswith("python -m pytest") else why


def _locked(project: _Project) -> Iterator[tuple[str, str, str, str]]:
    """Yield the lock file of each tool, its command to run a program, its set-up, and its command to add a package."""
    extras = "".join(f" --extras {shlex.quote(name)}" for name in _test_sets(project.extras)[:1])
    optional = [name for name, group in table(project.pyproject, "tool", "poetry", "group").items()
                if table(group).get("optional") and _is_for_tests(name)]
    groups = f" --with {','.join(optional)}" if optional else ""
    yield ("poetry.lock", f"{POETRY} run", f"{POETRY} install --no-interaction{groups}{extras}",
           f"{POETRY} run pip install -q")
    yield "pdm.lock", "pdm run", "pdm sync -d", ""
    yield "Pipfile.lock", f"{PIPENV} run", f"{PIPENV} sync --dev", ""


def _uv_options(project: _Project) -> Iterator[tuple[str, str]]:
    """Yield reasons and options of `uv sync`, with the group or extra of the runner unless it is a default."""
    defaults = strings(table(project.pyproject, "tool", "uv").get("default-groups")) or ("dev",)
    installed = [*project.dependencies, *strings(table(project.pyproject, "tool", "uv").get("dev-dependencies")),
                 *(text for name in defaults for text in project.groups.get(name, ()))]
    groups = [name for name in _test_sets(project.groups) if name not in defaults]
    extras = _test_sets(project.extras)
    if project.uses_pytest and not _has_runner(installed) and (groups or extras):
        chosen = f" --group {groups[0]}" if groups and (_has_runner(project.groups[groups[0]]) or not extras) else \
            f" --extra {extras[0]}"
    else:
        chosen = ""
    named = chosen.replace("--", "")
    yield f"uv.lock{f' with{named}' if named else ''}", f" --locked{chosen}"
    if groups or project.extras:
        yield "uv.lock with all groups and extras", " --locked --all-groups --all-extras"
    # --locked refuses a lock file that is out of date with pyproject.toml; --frozen uses it anyway
    yield f"uv.lock as it is{f' with{named}' if named else ''}", f" --frozen{chosen}"


def find_nox_session(text: str) -> str:
    """Return the session of a noxfile with a name for tests; '' if there is none."""
    named = re.findall(r"^@(?:nox\.)?session(?:\(([^)]*)\))?\s*\n(?:@.*\n)*(?:async )?def (\w+)", text, re.MULTILINE)
    names = []
    for arguments, function in named:
        stated = re.search(r"\bname\s*=\s*['\"]([^'\"]+)", arguments)
        names.append(stated[1] if stated else function)
    chosen = [name for name in names if re.search(r"test|^unit|^py(thon)?$", name) and not _OTHER_NAMES.search(name)]
    return min(chosen, key=lambda name: (name not in ("tests", "test"), _rank(name), len(name)), default="")


def find_tox_environment(files: ProjectFiles, version: tuple[int, int]) -> str | None:
    """Return the tox environment that tests with the Python on the PATH: from `envlist`, else `py`; None without tox.

    Plain `tox` would run linters, documentation and every listed Python.
    """
    pyproject = read_toml(files.text("pyproject.toml"))
    settings = table(pyproject, "tool", "tox") if not files.has("tox.ini") else {}
    native = read_toml(files.text("tox.toml")) or settings
    legacy = files.text("tox.ini") or str(settings.get("legacy_tox_ini", ""))
    if not (legacy or native):
        return None
    ini = read_ini(legacy)
    listed = [name for line in strings(native.get("env_list")) for name in _expand(line)]
    for key in ("envlist", "env_list"):
        listed += [name for line in re.split(r"[\n,](?![^{]*})", ini.get("tox", key, fallback="") or "")
                   for name in _expand(re.sub(r"\s|#.*", "", line))]
    python = f"py{version[0]}{version[1]}"
    dotted = f"{version[0]}.{version[1]}"
    same = [name for name in dict.fromkeys(listed) if {python, f"python{dotted}", dotted} & set(name.split("-"))]
    same += [name for name in dict.fromkeys(listed) if {"py", "py3", "python", "python3"} & set(name.split("-"))]
    tested = [name for name in [*same, python, "py"] if native or _runs_tests(ini, name)]
    return min(tested, key=lambda name: (bool(_OTHER_NAMES.search(name)), name in ("py", python) and name not in same,
                                         "min" in name or "cov" in name, len(name.split("-"))), default=None) or "py"


def _expand(text: str) -> list[str]:
    """Expand a tox environment name: `py3{11-12}-{a,b}` → py311-a …"""
    found = re.search(r"\{([^{}]*)\}", text)
    if found is None:
        return [text] if text else []
    choices: list[str] = []
    for part in found[1].split(","):
        numbers = re.fullmatch(r"\s*(\d+)-(\d+)\s*", part)
        choices += [str(number) for number in range(int(numbers[1]), min(int(numbers[2]), int(numbers[1]) + 50) + 1)] \
            if numbers else [part.strip()]
    # bounded here and above, since the input is untrusted: {1-999999999}
    return [name for choice in choices[:50] for name in _expand(text[:found.start()] + choice + text[found.end():])]


def _runs_tests(ini: Mapping[str, Mapping[str, str]], name: str) -> bool:
    """Return whether a tox environment runs a test runner, from the lines of `commands` for its factors."""
    own = next((section for section in ini if section.startswith("testenv:")
                and name in _expand(section.removeprefix("testenv:").strip())), "")
    commands = (ini[own].get("commands") if own else None) or (ini["testenv"].get("commands") if "testenv" in ini
                                                               else None) or ""
    factors = set(name.split("-"))
    for line in commands.splitlines():
        condition, colon, command = line.partition(": ")
        if not colon or not re.fullmatch(r"[\w.,!{}-]+", condition.strip()):
            condition, command = "", line
        alternatives = [set(each.split("-")) for each in _expand_condition(condition.strip())]
        holds = not condition or any(all((part[1:] not in factors) if part.startswith("!") else part in factors
                                         for part in parts) for parts in alternatives)
        if holds and (_RUNNER.search(command) or "{[testenv" in command or ".py" in command):
            return True
    return False


def _expand_condition(condition: str) -> list[str]:
    return [name for part in re.split(r",(?![^{]*})", condition) for name in _expand(part)]


# -------------------------------------------------------------------------------------------------------------- .venv


def _with_venv(project: _Project) -> Iterator[CommandPair]:
    """Yield a .venv with the project's test requirements, then with fewer, then the machine's Python."""
    pytest = " pytest" if project.uses_pytest else ""
    if not (project.is_installable or project.dependencies or _runtime(project)):
        yield _on_machine(project)
    sets, plain = list(_named_sets(project, pytest)), list(_plain_sets(project, pytest))
    for why, arguments in [*sets[:MAX_VENVS - len(plain)], *plain]:
        yield _venv(project, why, arguments)
    if project.is_installable and project.dependencies:
        yield _venv(project, "its dependencies, itself not installed",
                    f"{_quoted(project.dependencies)}{_group(project)}{pytest}", is_installed=False)
    if not plain:
        yield _venv(project, "pytest", " pytest", is_installed=False, with_pytest=True)
    elif not pytest:
        yield _venv(project, "the project and pytest", f"{plain[0][1]} pytest", with_pytest=True)
    yield _on_machine(project)


def _on_machine(project: _Project) -> CommandPair:
    runner = "python3 -m pytest -q" if project.uses_pytest else _unittest(project, "python3")
    return CommandPair(PYTHON, "pytest of the machine" if project.uses_pytest else "python3", _path(project) + runner)


def _itself(project: _Project) -> str:
    return " -e ." if project.is_installable else ""


def _runtime(project: _Project) -> str:
    if project.is_installable:
        return ""
    return " -r requirements.txt" if project.files.has("requirements.txt") else _quoted(project.dependencies)


def _named_sets(project: _Project, pytest: str) -> Iterator[tuple[str, str]]:
    """Yield places of test requirements with pip's arguments, most likely first."""
    itself, runtime = _itself(project), _runtime(project)

    def missing(requirements: Sequence[str]) -> str:
        return "" if _has_runner(requirements) else pytest

    groups = [(f"the dependency group {name}",
               f"{itself}{runtime} --group {shlex.quote(name)}{missing(project.groups[name])}")
              for name in _test_sets(project.groups)[:2]]
    extras = [(f"the extra {name}", f" -e {shlex.quote(f'.[{name}]')}{missing(project.extras[name])}")
              for name in (_test_sets(project.extras)[:2] if project.is_installable else ())]
    yield from [*groups, *extras] if any(map(_has_runner, project.groups.values())) else [*extras, *groups]
    for path in project.requirements[:2]:
        yield path, f"{itself}{runtime if path != 'requirements.txt' else ''} -r {shlex.quote(path)}{pytest}"
    for where, names in project.others.items():
        yield where, f"{itself}{runtime}{_quoted(names)}{missing(names)}"


def _plain_sets(project: _Project, pytest: str) -> Iterator[tuple[str, str]]:
    """Yield a project's runtime requirements, with pytest."""
    itself, runtime = _itself(project), _runtime(project)
    if itself or runtime:
        yield "pytest" if pytest else "the project", f"{itself}{runtime}{pytest}"
    if not itself:
        return
    features = [name for name in project.extras if not _is_for_tests(name) and not _OTHER_NAMES.search(name)]
    if features:
        every = shlex.quote(f".[{','.join([*features, *_test_sets(project.extras)[:1]])}]")
        yield "all extras", f" -e {every}{_group(project)}{pytest}"
    if project.files.has("requirements.txt") and "requirements.txt" not in project.requirements:
        yield "requirements.txt", f" -e . -r requirements.txt{pytest}"


def _group(project: _Project) -> str:
    return "".join(f" --group {shlex.quote(name)}" for name in _test_sets(project.groups)[:1])


def _venv(project: _Project, why: str, arguments: str, *, is_installed: bool = True,
          with_pytest: bool = False) -> CommandPair:
    # pip has --group since 25.1; a new .venv has the older pip of its Python
    newer = f"{PIP} -U 'pip>=25.1' && " if " --group " in arguments else ""
    runner = "python -m pytest -q" if project.uses_pytest or with_pytest else _unittest(project, "python")
    path = "" if is_installed and project.is_installable else _path(project)
    return CommandPair(PYTHON, f".venv with {why}", f"{path}{_ACTIVATE}.venv/bin/{runner}",
                       f"{VENV}{newer}{PIP}{arguments}", install=PIP)


def _path(project: _Project) -> str:
    return "PYTHONPATH=src " if any(re.match(r"^src/[^/]+(/__init__)?\.py$", path)
                                    for path in project.files.paths) else ""


def _quoted(names: Iterable[str]) -> str:
    return "".join(f" {name if name in ('-r', '-c') else shlex.quote(name)}" for name in names)


def _unittest(project: _Project, python: str) -> str:
    """Return the command of a project that does not use pytest."""
    files = project.files
    if files.has("manage.py"):
        return f"{python} manage.py test"
    common = posixpath.commonpath([posixpath.dirname(path) for path in files.paths if is_python_test(path)] or [""])
    folder = next((name for name in ("tests", "test") if any(path.startswith(f"{name}/") for path in files.paths)),
                  common)
    while folder and f"{folder}/__init__.py" in files.paths:  # a package's modules are imported from its parent folder
        folder = posixpath.dirname(folder)
    return f"{python} -m unittest discover -q -s {shlex.quote(folder)}" if folder else f"{python} -m unittest -q"


def _with_tox_in_venv(project: _Project, version: tuple[int, int]) -> Iterator[CommandPair]:
    environment = find_tox_environment(project.files, version)
    if environment is not None:
        tox = f".venv/bin/tox -q -e {environment}"
        yield CommandPair(PYTHON, f".venv with tox, its environment {environment}", tox,
                          f"{VENV}{PIP} tox && {tox} --notest", (".tox",), shows_tests=True)


def _without_tests(project: _Project) -> Iterator[CommandPair]:
    """Yield a check for a project without tests: that it compiles."""
    yield CommandPair(PYTHON, "python3, since no tests are tracked", "python3 -m compileall -q .", is_test=False)
    folders = sorted({match[1] for path in project.files.paths
                      if (match := re.match(r"^((?:src/)?[^/]+)/__init__\.py$", path))})
    if folders:
        yield CommandPair(PYTHON, "python3 on its packages, since no tests are tracked",
                          f"python3 -m compileall -q {' '.join(map(shlex.quote, folders))}", is_test=False)


# --------------------------------------------------------------------------------------------------- missing packages

_PLUGINS = {
    "--cov": "pytest-cov", "--cov-report": "pytest-cov", "--no-cov": "pytest-cov", "--cov-config": "pytest-cov",
    "-n": "pytest-xdist", "--dist": "pytest-xdist", "--numprocesses": "pytest-xdist", "--timeout": "pytest-timeout",
    "--asyncio-mode": "pytest-asyncio", "asyncio_mode": "pytest-asyncio", "--benchmark-skip": "pytest-benchmark",
    "--benchmark-disable": "pytest-benchmark", "--benchmark-columns": "pytest-benchmark", "--reruns":
    "pytest-rerunfailures", "--mypy": "pytest-mypy", "--flake8": "pytest-flake8", "--black": "pytest-black", "--ruff":
    "pytest-ruff", "--randomly-seed": "pytest-randomly", "--snapshot-update": "syrupy", "mocker": "pytest-mock",
    "httpx_mock": "pytest-httpx", "httpserver": "pytest-httpserver", "benchmark": "pytest-benchmark", "freezer":
    "pytest-freezer", "requests_mock": "requests-mock", "aiohttp_client": "pytest-aiohttp", "snapshot": "syrupy",
    "event_loop": "pytest-asyncio", "subtests": "pytest-subtests", "datadir": "pytest-datadir", "httpbin":
    "pytest-httpbin", "data_regression": "pytest-regressions", "lazy_fixture": "pytest-lazy-fixture", "faker": "faker",
    "env": "pytest-env", "timeout": "pytest-timeout",
}
"""Option, setting or fixture missing in pytest → its plug-in."""
_MODULES = {
    **{name: name for name in (
        "pytest", "hypothesis", "mock", "freezegun", "responses", "httpx", "trio", "anyio", "numpy", "requests",
        "click", "six", "cloudpickle", "pympler", "psutil", "pexpect", "coverage", "parameterized", "ddt", "tox",
        "nox", "virtualenv", "setuptools", "wheel", "packaging", "toml", "tomli", "pytz", "simplejson", "orjson",
        "msgpack", "cryptography", "jinja2", "flask", "aiohttp", "gevent", "eventlet", "twisted", "werkzeug",
        "pydantic", "sqlalchemy",
        "redis", "lxml", "chardet", "colorama", "docutils", "pygments", "sphinx", "mypy", "faker",
        "time_machine", "testfixtures", "sybil", "nose2", "zope.interface", "typing_extensions", "ujson", "pandas",
        "pytest_mock", "pytest_httpbin", "requests_mock", "pytest_cov", "pytest_asyncio", "pytest_timeout",
        "pytest_httpserver", "pytest_benchmark", "pytest_xdist", "syrupy", "inline_snapshot", "dirty_equals", "respx",
        "moto", "vcrpy", "django", "tornado", "uvloop", "yarl", "multidict", "ipython", "rich", "tqdm")},
    "yaml": "pyyaml", "dateutil": "python-dateutil", "attr": "attrs", "bs4": "beautifulsoup4", "PIL": "pillow",
    "xdist": "pytest-xdist", "OpenSSL": "pyopenssl", "google.protobuf": "protobuf", "jwt": "pyjwt", "IPython":
    "ipython", "serial": "pyserial", "dotenv": "python-dotenv", "pkg_resources": "setuptools<81", "distutils":
    "setuptools", "vcr": "vcrpy", "zope": "zope.interface", "nose": "pynose", "sklearn": "scikit-learn", "cv2":
    "opencv-python-headless", "docx": "python-docx", "trustme": "trustme", "brotli": "brotli", "h2": "h2",
}
"""Module → well-known package: a name that only appears in a log is never installed, since anybody may own it."""
_MISSING = (
    re.compile(r"(?:ModuleNotFoundError|ImportError): No module named '?([\w.]+)"),
    re.compile(r"/python[\d.]*: No module named ([\w.]+)"),
    re.compile(r'Error importing plugin "([\w.]+)"'),
)
_MISSING_PLUGIN = (
    re.compile(r"unrecognized arguments: (.*)"), re.compile(r"PytestConfigWarning: Unknown config option: (\w+)"),
    re.compile(r"fixture '(\w+)' not found"), re.compile(r"Missing required plugins: (.*)"),
)


def extend_python(files: ProjectFiles, candidate: CommandPair, log: str) -> CommandPair | None:
    """Return a candidate with the packages missing in a log; None if none may be added."""
    return candidate.with_packages([name for name in find_missing_packages(files, log)
                                    if name not in candidate.setup.split()])


def find_missing_packages(files: ProjectFiles, log: str) -> list[str]:
    """Return the packages missing in a test log: well-known ones, and those that the project names."""
    project = _read(files)
    named = _named_requirements(project) if project is not None else {}
    found: list[str] = []
    for module in [match for pattern in _MISSING for match in pattern.findall(log)]:
        top = module.partition(".")[0]
        if any(path.startswith((f"{top}/", f"src/{top}/", f"{top}.py")) for path in files.paths):
            continue  # its own module, which a package of that name would shadow
        package = _MODULES.get(module) or _MODULES.get(top) or named.get(_normalized(top))
        found += [package] if package else []
    for words in [match for pattern in _MISSING_PLUGIN for match in pattern.findall(log)]:
        for word in re.split(r"[\s,]+", words):
            name = word.partition("=")[0]
            package = _PLUGINS.get(name) or (name if re.fullmatch(r"pytest[-_][\w-]+", name) else "")
            found += [package] if package else []
    if "async def functions are not natively supported" in log:
        found.append("pytest-asyncio")
    return list(dict.fromkeys(found))


def _named_requirements(project: _Project) -> dict[str, str]:
    """Return module → package for all requirements named anywhere in a project."""
    texts = [text for sets in (project.extras, project.groups, project.others) for names in sets.values()
             for text in names]
    texts += [line for path in project.files.texts if path.endswith((".txt", ".in"))
              for line in project.files.texts[path].splitlines()]
    names = [match[0] for text in [*texts, *project.dependencies] if (match := _NAME.match(text.strip()))]
    return {_normalized(name): name for name in names}


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


