"""Node projects: ways to test them, from `npm test` down to the part of it that needs no linter. Pure.

The `test` script of a published package often needs more than the tests: the configuration of a linter, an audit over
the network. So parts of the script are candidates as well.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

from garrison.project.ecosystems import NODE, CommandPair
from garrison.project.files import ProjectFiles, read_json, strings, table
from garrison.values import Value

# the placeholder of `npm init` without tests, and the like
_NO_TEST = re.compile(r"no tests? (specified|yet|available)|^\s*(exit 0|true|:|echo [^&|;]*)\s*$", re.IGNORECASE)
_TEST_SCRIPTS = ("tests-only", "test-only", "test:only", "tests:only", "test:unit", "test-unit", "unit", "unit-test",
                 "test:node", "test:js", "test:ci", "test-ci", "test:run", "mocha", "jest", "vitest", "ava", "tap",
                 "tape", "tests", "test:all", "ci")
"""Scripts that run little more than tests, most likely first."""
_NOT_TESTS = re.compile(r"^((npm|pnpm|yarn|bun)( run)?(-script)?( -s| --silent)? )?(npx )?"
                        r"([\w:@/-]*lint[\w:-]*|xo|standard|ts-standard|semistandard|prettier|tsd|aud|audit|npm audit|"
                        r"publint|attw|size-limit|[\w-]*format[\w:-]*|[\w:-]*typecheck[\w:-]*|check-[\w-]+|depcheck|"
                        r"codecov|c8 report|nyc report|biome|dtslint|bundlewatch|jshint|jscs|flow)\b")
_NO_TEST_TOOL = re.compile(r"lint|prettier|^xo$|^standard$|^aud$|changelog|npmignore|publish|^husky$|release|"
                           r"size-limit|typedoc|^np$|^tsd$|conventional|commitizen")
"""Packages for style and releases, not for tests."""
_TEST_FILE = re.compile(r"(^|/)(tests?|__tests__|spec|specs)(/.*)?\.([cm]?[jt]sx?|coffee)$"
                        r"|(^|/)(tests?|__tests__|spec|specs)/.*\.([cm]?[jt]sx?)$"
                        r"|(^|/)[^/]*[._-](test|spec)\.[cm]?[jt]sx?$|(^|/)test[-_.][^/]*\.[cm]?[jt]sx?$")
_WATCHES = re.compile(r"\b(react-scripts|vitest|ng test|karma|vue-cli-service)\b")
_BINARIES = re.compile(r"^(npx |node_modules/\.bin/|\./node_modules/\.bin/)")
NODE_MODULES = ("node_modules",)


class _Manager(Value):
    """Package manager: its commands to install from a lock file and to run a script."""

    program: str
    install: str
    run: str
    test: str
    each: str
    """Runs the script `test` of each workspace."""
    by_npx: str = ""
    """Package that npx fetches if the program is absent."""


def propose_node(files: ProjectFiles) -> list[CommandPair]:
    """Return candidates for testing a Node project in the order of trial; empty for other projects."""
    if not files.has("package.json"):
        return []
    package = read_json(files.text("package.json"))
    scripts = {name: text for name, text in table(package, "scripts").items() if isinstance(text, str)}
    gates = list(_gates(scripts, package, files))
    has_tests = any(_TEST_FILE.search(path) for path in files.paths) or _is_self_contained(scripts)
    tests = [candidate for gate, why in gates for candidate in _install(files, package, gate, why)] if has_tests \
        else []
    # the first gate with each way to install, then the other gates with the first way
    ways = len(list(_install(files, package, "", "")))
    ordered = [*tests[:1], *(each for at, each in enumerate(tests) if at and at % ways == 0),
               *(each for at, each in enumerate(tests) if at % ways)]
    return ordered or list(_without_tests(files, package, scripts))


def _is_self_contained(scripts: Mapping[str, str]) -> bool:
    """Return whether the test script needs no file with the name of a test, like `make` or `node check.js`."""
    return bool(re.match(r"^(node (?!--test)|make |sh |bash |\./|tsc\b|deno |cargo |go )", scripts.get("test", "")))


def _gates(scripts: Mapping[str, str], package: Mapping[str, object], files: ProjectFiles) -> Iterator[tuple[str, str]]:
    """Yield commands in npm's words, with why; `MANAGER` stands for the manager's program."""
    test = scripts.get("test", "")
    is_real = bool(test) and not _NO_TEST.search(test)
    # without CI these watch for file changes, and the gate would never end
    quiet = "CI=true " if any(map(_WATCHES.search, scripts.values())) else ""
    if is_real:
        yield f"{quiet}@test", "its test script"
    if _has_workspaces(package, files) and not is_real:
        yield f"{quiet}@each", "the test scripts of its workspaces"
    for name in _TEST_SCRIPTS:
        if name in scripts and not _NO_TEST.search(scripts[name]):
            yield f"{quiet}@run {shlex.quote(name)}", f"its script {name}"
    if "build" in scripts and is_real:
        yield f"{quiet}@run build && {quiet}@test", "its test script after a build"
    parts = [part.strip() for part in test.split("&&")]
    kept = [part for part in parts if part and not _NOT_TESTS.match(part)]
    if kept and (len(kept) < len(parts) or {"pretest", "posttest"} & set(scripts)) and is_real:
        yield (quiet + " && ".join(_with_npx(part) for part in kept),
               "its test script without " + ("its linters" if len(kept) < len(parts) else "pretest and posttest"))
    yield from _runners_without_script(package, files) if not is_real else ()


def _runners_without_script(package: Mapping[str, object], files: ProjectFiles) -> Iterator[tuple[str, str]]:
    """Yield the test runners that a package installs, then Node's own."""
    for runner in ("vitest run", "jest", "mocha", "ava", "tap", "tape 'test/**/*.js'"):
        if runner.partition(" ")[0] in {**table(package, "devDependencies"), **table(package, "dependencies")}:
            yield f"npx --no-install {runner}", runner.partition(" ")[0]
    if any(_TEST_FILE.search(path) for path in files.paths):
        yield "node --test", "Node's own test runner"


def _with_npx(part: str) -> str:
    """Return a command of a script in a form that works outside of scripts."""
    word = part.partition(" ")[0]
    if _BINARIES.match(part) or word in ("node", "npm", "npx", "pnpm", "yarn", "bun", "make", "sh", "bash") \
            or "=" in word or "/" in word:
        return part
    return f"npx --no-install {part}"


def _has_workspaces(package: Mapping[str, object], files: ProjectFiles) -> bool:
    return bool(package.get("workspaces")) or files.has("pnpm-workspace.yaml")


def _managers(files: ProjectFiles, package: Mapping[str, object]) -> Iterator[tuple[_Manager, str]]:
    """Yield the package managers to use and why, the one of the lock file first."""
    stated = str(package.get("packageManager") or "").partition("+")[0]
    version = stated.partition("@")[2]
    if files.has("pnpm-lock.yaml") or stated.startswith("pnpm@"):
        frozen_lock = " --frozen-lockfile" if files.has("pnpm-lock.yaml") else " --no-lockfile"
        yield _Manager("pnpm", f"pnpm install{frozen_lock}", "pnpm run", "pnpm test", "pnpm -r --if-present test",
                       f"pnpm@{version or _pnpm_for(files.text('pnpm-lock.yaml'))}"), "pnpm-lock.yaml"
    elif files.has("yarn.lock") or stated.startswith("yarn@"):
        # Yarn 2 and later differ: --immutable instead of --frozen-lockfile, and foreach for workspaces
        if files.has(".yarnrc.yml") or re.match(r"[2-9]", version):
            frozen_lock = " --immutable" if files.has("yarn.lock") else ""
            yield _Manager("yarn", f"yarn install{frozen_lock}", "yarn run", "yarn test",
                           "yarn workspaces foreach -A run test", f"@yarnpkg/cli-dist@{version or 4}"), "yarn.lock"
        else:
            frozen_lock = "--frozen-lockfile" if files.has("yarn.lock") else "--no-lockfile"
            yield _Manager("yarn", f"yarn install {frozen_lock}", "yarn -s run", "yarn -s test",
                           "yarn -s workspaces run test", "yarn@1"), "yarn.lock"
    elif files.has("bun.lock", "bun.lockb"):
        yield _Manager("bun", "bun install --frozen-lockfile", "bun run", "bun run test", "bun --filter '*' test",
                       "bun"), "bun.lock"
    if files.has("package-lock.json", "npm-shrinkwrap.json"):
        yield _npm("npm ci"), "package-lock.json"
    # a lock file written by npm would look like the agent's work
    yield _npm("npm install --no-package-lock"), "package.json"


def _npm(install: str) -> _Manager:
    return _Manager("npm", install, "npm run -s", "npm test", "npm test --workspaces --if-present")


def _pnpm_for(lock: str) -> str:
    found = re.search(r"^lockfileVersion:\s*'?(\d+)", lock, re.MULTILINE)
    # pnpm up to 7 writes format 5, 8 writes 6, 9 and 10 write 9: a frozen lock needs its own version
    return {"5": "7", "6": "8", "9": "10"}.get(found[1], "latest") if found else "10"


def _install(files: ProjectFiles, package: Mapping[str, object], gate: str, why: str) -> Iterator[CommandPair]:
    """Yield a gate with each way to install its dependencies, even if there are none yet."""
    for manager, lock in _managers(files, package):
        yield _candidate(gate, f"{lock}, {why}", manager, manager.install)
        if manager.by_npx:
            # npm runs scripts in any manager's node_modules
            fetched = manager.install.replace(manager.program, f"npx --yes {manager.by_npx}", 1)
            yield _candidate(gate, f"{lock} with {manager.program} fetched by npx, {why}", _npm(fetched), fetched)
        elif _has_own_scripts(package):
            # a package's install script may need a compiler or the network, while the tests need none of its output
            yield _candidate(gate, f"{lock} without the scripts of packages, {why}", manager,
                             f"{manager.install} --ignore-scripts")
    if unneeded := [name for name in table(package, "devDependencies") if _NO_TEST_TOOL.search(name)]:
        yield _candidate(gate, f"package.json without its linters, {why}", _npm("npm install"), _without(unneeded))


def _without(names: Iterable[str], any_version: Iterable[str] = ()) -> str:
    """Return a set-up that installs all except these development dependencies, and any version of others.

    npm resolves everything in package.json, even what it omits: an unavailable version would make it fail.
    """
    removed = " ".join(shlex.quote(f"devDependencies[{name}]") for name in names)
    relaxed = " ".join(shlex.quote(f"devDependencies[{name}]=*") for name in any_version)
    changes = "".join(f"npm pkg {verb} {words} && " for verb, words in (("delete", removed), ("set", relaxed)) if words)
    # restore package.json however npm ends: the gate must test the committed one
    return (f"(cp package.json .package.json.orig && {changes}npm install --no-package-lock --ignore-scripts; code=$?; "
            "mv -f .package.json.orig package.json; exit $code)")


def _has_own_scripts(package: Mapping[str, object]) -> bool:
    return bool({"prepare", "prepublish", "preinstall", "install", "postinstall"} & set(table(package, "scripts"))
                or table(package, "dependencies") or table(package, "devDependencies"))


def _candidate(gate: str, why: str, manager: _Manager, setup: str) -> CommandPair:
    line = gate.replace("@each", manager.each).replace("@test", manager.test).replace("@run", manager.run)
    return CommandPair(NODE, why, line, setup, NODE_MODULES if setup else (),
                       install="npm install --no-save --no-package-lock" if manager.program == "npm" and setup else "")


def _without_tests(files: ProjectFiles, package: Mapping[str, object],
                   scripts: Mapping[str, str]) -> Iterator[CommandPair]:
    """Yield checks for a project without tests: its build, then its syntax."""
    for name in ("build", "typecheck", "type-check", "compile"):
        if name in scripts:
            first = next(_install(files, package, f"@run {shlex.quote(name)}", f"its script {name}"))
            yield CommandPair(first.ecosystem, f"{first.why}, since no tests are tracked", first.gate, first.setup,
                              first.makes, is_test=False)
    if any(re.search(r"\.[cm]?js$", path) for path in files.paths):
        yield CommandPair(NODE, "node on each file, since no tests are tracked",
                          "git ls-files -z '*.js' '*.cjs' '*.mjs' | xargs -0 -r -n 1 node --check", is_test=False)
    else:
        yield CommandPair(NODE, "package.json, since no tests are tracked",
                          "node -e 'JSON.parse(require(\"fs\").readFileSync(\"package.json\"))'", is_test=False)


_MISSING = re.compile(r"Cannot find (?:module|package) '((?:@[\w.-]+/)?[\w.-]+)(?:/[^']*)?'"
                      r"|sh: (?:\d+: |line \d+: )?([\w.-]+): (?:command )?not found")
_UNKNOWN = re.compile(r"'((?:@[\w.-]+/)?[\w.-]+)@[^']*' is not in this registry")
_NO_VERSION = re.compile(r"No matching version found for ((?:@[\w.-]+/)?[\w.-]+)@")


def extend_node(files: ProjectFiles, candidate: CommandPair, log: str) -> CommandPair | None:
    """Return a candidate with the packages missing in a log; None if no set-up could help.

    Peer and optional dependencies are added. A development dependency that is not in the registry is left out; if only
    its version is missing, any version is used.
    """
    package = read_json(files.text("package.json"))
    named = {**table(package, "peerDependencies"), **table(package, "optionalDependencies"),
             **dict.fromkeys(strings(package.get("bundleDependencies")), "")}
    missing = dict.fromkeys(name for found in _MISSING.findall(log) for name in found if name in named)
    if missing:
        return candidate.with_packages([name for name in missing if name not in candidate.setup.split()])
    tools = table(package, "devDependencies")
    changed = set(re.findall(r"devDependencies\[([^\]]+)\]", candidate.setup))
    unknown = [name for name in _UNKNOWN.findall(log) if name in tools]
    relaxed = [name for name in _NO_VERSION.findall(log) if name in tools]
    if not {*unknown, *relaxed} - changed:
        return None
    scripts = {name: text for name, text in table(package, "scripts").items() if isinstance(text, str)}
    gates = list(_gates(scripts, package, files))
    gate, why = next((each for each in gates[1:] if "@run build" not in each[0]), gates[0])
    relaxed = [*re.findall(r"devDependencies\[([^\]]+)\]=", candidate.setup), *relaxed]
    removed = [name for name in tools if _NO_TEST_TOOL.search(name) or name in unknown
               or name in changed - set(relaxed)]
    relaxed = [name for name in dict.fromkeys(relaxed) if name not in removed]
    what = f"any version of {', '.join(relaxed)}" if relaxed else f"without {', '.join(unknown) or 'its linters'}"
    return _candidate(gate, f"package.json, {what}, {why}", _npm("npm install"), _without(removed, relaxed))
