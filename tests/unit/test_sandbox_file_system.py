"""File system inside a sandbox: what is shown, hidden and writable on various machines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from garrison.ends import End
from garrison.errors import Refused
from garrison.sandbox import bubblewrap, landlock, private_files, probe
from garrison.sandbox.file_system import (
    AGENT_HOME,
    BuildStep,
    FileSystemStep,
    Surroundings,
    build,
    home_inside,
    is_within,
    readable,
    show_named_programs,
)
from garrison.sandbox.place import Abilities, Mode, Mount, Network, Place, Rights, Role
from garrison.values import replace

HOME = Path("/home/ada")
PLACE = Place(Role.AGENT, Rights(mode=Mode.BUBBLEWRAP), Path("/trees/node"), Path("/trees/.node.sandbox"))


class Paths:
    """A file system of folders, files and links."""

    def __init__(self, folders: Collection[str] = (), files: Collection[str] = (),
                 links: Mapping[str, str] | None = None, private: Collection[str] = ()) -> None:
        self.folders, self.files, self.links, self.private = folders, files, links or {}, private

    def exists(self, path: Path) -> bool:
        return str(path) in {*self.folders, *self.files, *self.links}

    def is_folder(self, path: Path) -> bool:
        return str(path) in self.folders

    def link(self, path: Path) -> str:
        return self.links.get(str(path), "")

    def resolve(self, path: Path) -> Path:
        return Path(self.links.get(str(path), str(path)))

    def own_entries(self, folder: Path) -> list[str]:
        return [Path(name).name for name in self.folders if Path(name).parent == folder]

    def link_targets(self, folder: Path) -> list[Path]:
        return [Path(target) for name, target in self.links.items() if Path(name).parent == folder]

    def private_below(self, folder: Path, *, is_system: bool = False) -> list[Path]:
        return [Path(name) for name in self.private if is_within(Path(name), folder)]


def targets(steps: list[FileSystemStep], *kinds: BuildStep) -> list[str]:
    return [str(step.target) for step in steps if step.step in kinds]


def test_only_system_folders_and_those_of_the_place_are_shown() -> None:
    machine = Paths(["/usr", "/etc", "/home/ada", "/home/ada/.ssh", "/srv", "/root"], ["/etc/shadow"],
                    {"/bin": "usr/bin"}, ["/etc/ssl-key"])
    steps = build(PLACE, Surroundings(HOME, ()), machine)
    assert targets(steps, BuildStep.READ) == ["/usr", "/etc"]
    assert targets(steps, BuildStep.WRITE) == ["/tmp", "/var/tmp", "/home/ada", "/trees/node"]
    assert ("/bin", "usr/bin") in [(str(step.target), step.source) for step in steps if step.step is BuildStep.LINK]
    assert targets(steps, BuildStep.HIDE_FILE) == ["/etc/shadow"]
    machine = Paths(["/etc", "/etc/vault"], ["/etc/key"], private=["/etc/vault", "/etc/key"])
    steps = build(PLACE, Surroundings(HOME, ()), machine)
    assert (targets(steps, BuildStep.HIDE_FOLDER), targets(steps, BuildStep.HIDE_FILE)) == (
        ["/etc/vault"], ["/etc/key"]), "what only root may read is hidden from root"


def test_toolchains_are_found_by_name_and_on_the_search_path() -> None:
    machine = Paths(["/home/ada/.pyenv", "/home/ada/tools/lib", "/home/ada/tools", "/home/ada/tools/bin",
                     "/home/ada/project/bin", "/home/ada/project", "/home/ada/project/lib", "/home/ada/project/.git",
                     "/home/ada/.local/bin", "/home/ada/.local/lib", "/home/ada/.local", "/home/ada", "/home/ada/bin"])
    search = [*map(Path, ["/usr/bin", "/home/ada/tools/bin", "/home/ada/project/bin", "/home/ada/.local/bin",
                          "/home/ada", "/", "bin", "/home/ada/bin"])]
    shown = targets(build(PLACE, Surroundings(HOME, tuple(search)), machine), BuildStep.READ)
    assert shown == ["/home/ada/.pyenv", "/home/ada/bin", "/home/ada/tools", "/home/ada/tools/bin",
                     "/home/ada/tools/lib", "/home/ada/.local/bin", "/home/ada/.local/lib", "/home/ada/project/bin"]


def test_a_tool_linked_into_the_search_path_is_shown_with_its_environment() -> None:
    venv, script, own = "/home/ada/.local/pipx/venvs/uv", "/home/ada/src/tools/run.sh", "/srv/repo/bin/x"
    machine = Paths(["/home/ada/.local/bin", venv, f"{venv}/bin", f"{venv}/lib", "/usr"], [script, own],
                    {"/home/ada/.local/bin/uv": f"{venv}/bin/uv", "/home/ada/.local/bin/run": script,
                     "/home/ada/.local/bin/x": own, "/home/ada/.local/bin/ls": "/usr/bin/ls"})
    around = Surroundings(HOME, (Path("/home/ada/.local/bin"),), secret=(Path("/srv/repo"),))
    assert targets(build(PLACE, around, machine), BuildStep.READ) == [
        "/usr", "/home/ada/.local/bin", script, venv, f"{venv}/bin", f"{venv}/lib"]


def test_the_search_path_shows_neither_garrisons_home_nor_the_repository() -> None:
    machine = Paths(["/srv/repo", "/srv/repo/bin", "/srv", "/srv/bin", "/srv/lib", "/srv/garrison/bin"])
    around = Surroundings(HOME, (Path("/srv/repo"), Path("/srv/bin")), secret=(Path("/srv/repo"),))
    assert targets(build(PLACE, around, machine), BuildStep.READ) == ["/srv/bin"]


def test_a_secret_below_a_system_folder_is_emptied_before_the_worktree_is_shown() -> None:
    place = Place(Role.AGENT, PLACE.rights, Path("/opt/trees/node"), Path("/opt/trees/.node.sandbox"))
    steps = build(place, Surroundings(HOME, (), secret=(Path("/opt/trees"), Path("/work"))),
                  Paths(["/opt", "/opt/trees", "/work"]))
    assert targets(steps, BuildStep.EMPTY) == ["/opt/trees", "/run"]
    assert [str(step.target) for step in steps][-1] == "/opt/trees/node"

    home, kept = "/opt/u", "/opt/u/.local/state/garrison"
    machine = Paths(["/opt", home, "/opt/u/.local", kept, "/opt/x"], private=["/opt/u/.local", "/opt/x"])
    steps = build(PLACE, Surroundings(Path(home), (), secret=(Path(kept),)), machine)
    assert targets(steps, BuildStep.HIDE_FOLDER) == ["/opt/x"], "nothing can be mounted in a hidden folder of the home"
    assert targets(steps, BuildStep.EMPTY) == [kept, home, "/run"]


def test_the_place_is_mounted_over_settings_and_hiding_over_all() -> None:
    rights = Rights(Mode.BUBBLEWRAP, read=(Path("/data"),), write=(Path("/cache"), Path("/missing")),
                    hide=(Path("/data/secret"), Path("/trees/node/.env")))
    place = Place(Role.VALIDATOR, rights, PLACE.worktree, PLACE.private,
                  (Mount(Path("/private/git"), Path("/repo/.git"), writable=True),), worktree_writable=False)
    machine = Paths(["/data", "/cache", "/data/secret"], ["/trees/node/.env"])
    steps = build(place, Surroundings(HOME, ()), machine)
    assert [(step.step, str(step.target)) for step in steps][-6:] == [
        (BuildStep.READ, "/data"), (BuildStep.WRITE, "/cache"), (BuildStep.READ, "/trees/node"),
        (BuildStep.WRITE, "/repo/.git"),
        (BuildStep.HIDE_FOLDER, "/data/secret"), (BuildStep.HIDE_FILE, "/trees/node/.env")]


def test_the_worktree_is_mounted_at_the_checkout_with_the_users_environment_if_it_has_none() -> None:
    checkout = HOME / "project"
    place = Place(Role.AGENT, PLACE.rights, PLACE.worktree, PLACE.private, checkout=checkout, secret=(checkout,),
                  under_worktree=(Path("/kept"),))
    around = Surroundings(HOME, (checkout / ".venv/bin", checkout / "tools/bin"), secret=(checkout,))
    machine = Paths(["/home/ada/project/.venv", "/home/ada/project/.venv/bin", "/home/ada/project/.venv/lib",
                     "/home/ada/project/tools/bin", "/kept/tools/bin"])
    steps = build(place, around, machine)
    environment = "/home/ada/project/.venv"
    assert [(step.step, str(step.target), step.source) for step in steps][-5:] == [
        (BuildStep.WRITE, "/home/ada/project", "/trees/node"), (BuildStep.READ, environment, environment),
        (BuildStep.EMPTY, environment, ""), *((BuildStep.READ, f"{environment}/{part}", f"{environment}/{part}")
                                              for part in ("bin", "lib"))]
    rights = Rights(Mode.BUBBLEWRAP, read=(checkout / "gate.sh", checkout / "data"))
    named = Paths(["/home/ada/project/data", "/trees/node/data"], ["/home/ada/project/gate.sh", "/trees/node/gate.sh"])
    steps = build(replace(place, rights=rights), around, named)
    assert [(step.step, str(step.target)) for step in steps][-2:] == [
        (BuildStep.WRITE, "/home/ada/project"), (BuildStep.READ, "/home/ada/project/gate.sh")]
    assert place.translate(PLACE.worktree / "a/b") == checkout / "a/b"
    assert place.translate(Path("/trees/node2")) == Path("/trees/node2")


def test_only_programs_of_a_command_are_shown_of_its_files(tmp_path: Path) -> None:
    for name in ("my gate.sh", "check", "secret"):
        (tmp_path / name).write_text("true")
    gate, check, secret = (tmp_path / name for name in ("my gate.sh", "check", "secret"))
    for command, shown in ((f"sh -e '{gate}' {secret}", [gate]), (f"A=1 {check} && cat {secret}", [check]),
                           (f"cd x; python3.11 {check} | tee {secret}", [check]), (f"cat {secret}", []),
                           (f"test ! -e {secret}", []),
                           (f"! {check} {secret}", [check]),
                           (f"exec {tmp_path}", []), ("echo 'open", []), ("pytest -q", []), ("", []),
                           (f"({check}) || bash {tmp_path}/missing", [check])):
        assert list(show_named_programs(Rights(), command).programs) == shown, command
    assert show_named_programs(Rights(programs=(Path("/x"),)), str(check)).programs == (Path("/x"), check)


@pytest.mark.parametrize(("home", "inside"), [
    ("/home/ada", HOME), ("/root", Path("/root")), ("/", AGENT_HOME), ("/usr", AGENT_HOME), ("/tmp", AGENT_HOME),
    ("", AGENT_HOME), ("/opt/ci", Path("/opt/ci")), ("/var/lib/jenkins", Path("/var/lib/jenkins"))])
def test_the_home_inside_has_its_path_unless_that_is_a_system_folder(home: str, inside: Path) -> None:
    assert home_inside(Path(home)) == inside


def test_the_file_of_the_resolver_is_shown_below_run() -> None:
    machine = Paths(["/etc"], ["/run/systemd/resolve/stub-resolv.conf"],
                    {"/etc/resolv.conf": "/run/systemd/resolve/stub-resolv.conf"})
    shown = targets(build(PLACE, Surroundings(HOME, ()), machine), BuildStep.READ, BuildStep.EMPTY)
    assert shown.index("/run") < shown.index("/run/systemd/resolve/stub-resolv.conf")


@pytest.mark.parametrize(("path", "folder", "expected"), [
    ("/a/b", "/a", True), ("/a", "/a", True), ("/ab", "/a", False), ("/a", "/", True), ("/", "/a", False)])
def test_is_within(path: str, folder: str, expected: bool) -> None:
    assert is_within(Path(path), Path(folder)) is expected


@pytest.mark.parametrize("makes_network", [True, False])
def test_the_command_line_of_bubblewrap(makes_network: bool) -> None:
    words = bubblewrap.command_line(["true"], [], Abilities("/usr/bin/bwrap"), makes_network=makes_network)
    assert ("--unshare-net" in words) is makes_network
    assert {"--die-with-parent", "--new-session", "--unshare-pid", "--unshare-user", "--disable-userns"} <= {*words}
    assert words[-4:] == [*bubblewrap.RUN, "true"]
    assert words[words.index("--cap-drop") + 1] == "ALL"
    for path in ("/proc/sys", "/proc/sysrq-trigger"):  # regression: as root inside, an agent wrote kernel.core_pattern
        at = words.index(path)
        assert at > words.index("--proc")
        assert words[at - 1:at + 2] == ["--ro-bind-try", path, path]
    words = bubblewrap.command_line(["/bin/sh", "-c", "true"], [], Abilities("bwrap"), makes_network=makes_network)
    assert words[words.index("--"):] == ["--", "/bin/sh", "-c", "true"], "a shell is started directly"


def test_a_container_that_refuses_a_new_proc_shares_the_outer_one_read_only() -> None:
    words = bubblewrap.command_line(["true"], [], Abilities("bwrap", "", False, False, False), makes_network=False)
    assert not {"--proc", "--disable-userns", "--hostname"} & {*words}
    assert words[words.index("/proc") - 1] == "--ro-bind"


def test_landlock_gets_the_writable_paths_and_no_ports_without_a_network() -> None:
    rights = Rights(Mode.LANDLOCK, Network.NONE, write=(Path("/cache"),))
    place = Place(Role.AGENT, rights, PLACE.worktree, PLACE.private,
                  (Mount(Path("/x"), Path("/x"), writable=True), Mount(Path("/y"), Path("/y"))))
    words = landlock.command_line(["true"], place, ["/usr"], ["start"])
    assert words[0] == "start"
    written = [words[at + 1] for at, word in enumerate(words) if word == "--write"]
    assert written[:5] == ["/trees/.node.sandbox/home", "/trees/.node.sandbox/tmp", "/trees/node", "/cache", "/x"]
    assert "/y" not in words
    assert [words[at + 1] for at, word in enumerate(words) if word == "--read"] == ["/usr", "/proc"]
    assert words[words.index("--ports") + 1] == ""
    assert "--ports" not in landlock.command_line(["true"], replace(place, rights=Rights(network=Network.OPEN)), (), [])
    own = replace(PLACE, rights=Rights(network=Network.ALLOW), entry=("nsenter",), ports=(61280,))
    assert "--ports" not in landlock.command_line(["true"], own, (), []), "its own server is harmless"
    assert landlock.command_line(["true"], replace(own, entry=()), (), []).count("61280") == 1


def test_landlock_may_read_only_what_bubblewrap_shows() -> None:
    machine = Paths(["/usr", "/etc", "/etc/ssl", "/etc/ssl/certs", "/etc/ssl/private", "/home/ada", "/home/ada/.ssh",
                     "/home/ada/.nvm", "/tools"], ["/etc/shadow", "/etc/passwd"], {"/bin": "usr/bin"})
    machine.own_entries = lambda folder: sorted(
        Path(name).name for name in (*machine.folders, *machine.files) if Path(name).parent == folder)
    place = replace(PLACE, rights=Rights(Mode.LANDLOCK, read=(Path("/tools"),)),
                    mounts=(Mount(Path("/repo/.git"), Path("/repo/.git")),))
    assert readable(place, Surroundings(HOME, ()), machine) == [
        "/usr", "/etc/passwd", "/etc/ssl/certs", "/trees/.node.sandbox/tmp", "/trees/.node.sandbox/home",
        "/home/ada/.nvm", "/tools", "/trees/node", "/repo/.git"]


@pytest.mark.parametrize(("abi", "text"), [
    (1, "files outside can be truncated"), (3, "\"none\" and \"allow\" are not enforced"), (5, "can be signalled")])
def test_the_gaps_of_an_older_landlock_are_listed(abi: int, text: str) -> None:
    assert any(text in gap for gap in landlock.gaps(abi))
    assert not any(text in gap for gap in landlock.gaps(7))


BOTH, ONLY_LANDLOCK = Abilities("/usr/bin/bwrap", landlock=7), Abilities(
    refusal="bubblewrap is not installed", landlock=4, is_installed=False)
NEITHER = Abilities(refusal="bubblewrap does not work here (no permission)")


@pytest.mark.parametrize(("wanted", "machine", "mode"), [
    (Mode.AUTO, BOTH, Mode.BUBBLEWRAP), (Mode.LANDLOCK, ONLY_LANDLOCK, Mode.LANDLOCK),
    (Mode.LANDLOCK, BOTH, Mode.LANDLOCK), (Mode.NONE, NEITHER, Mode.NONE), (Mode.NONE, BOTH, Mode.NONE)])
def test_the_mode_is_chosen(wanted: Mode, machine: Abilities, mode: Mode) -> None:
    assert probe.choose_mode(wanted, machine) is mode


@pytest.mark.parametrize(("wanted", "machine", "message"), [
    (Mode.BUBBLEWRAP, ONLY_LANDLOCK, r"is not installed; install it with `.*bubblewrap`, or set mode = \"none"),
    (Mode.LANDLOCK, NEITHER, "Landlock is not enabled in this kernel; "),
    (Mode.AUTO, NEITHER, r"here \(no permission\); allow user namespaces.*, or set mode = \"none\" in"),
    (Mode.AUTO, ONLY_LANDLOCK, r"install it with `.*, or pass `--sandbox landlock`, which leaves gaps .* \"none\""),
])
def test_an_impossible_mode_is_refused_with_a_remedy(wanted: Mode, machine: Abilities, message: str) -> None:
    with pytest.raises(Refused, match=message):
        probe.choose_mode(wanted, machine)


def test_the_line_of_launch_and_status_names_modes_and_gaps() -> None:
    describe = probe.describe_modes
    assert describe({"agent a": Mode.BUBBLEWRAP, "the gate": Mode.BUBBLEWRAP}, BOTH) == "bubblewrap"
    assert describe({"agent a": Mode.NONE, "agent b": Mode.BUBBLEWRAP, "the gate": Mode.BUBBLEWRAP}, BOTH) == (
        "bubblewrap; agent a: none (it can do whatever you can)")
    assert describe({"agent a": Mode.NONE}, None) == "none (it can do whatever you can)"
    line = describe({"agent a": Mode.LANDLOCK}, ONLY_LANDLOCK)
    assert line.startswith("landlock 4, which leaves gaps (`garrison doctor --sandbox` lists them); "
                           "bubblewrap is not installed: install it with `")
    assert len(line) < 200
    assert "not installed" not in describe({"agent a": Mode.LANDLOCK}, BOTH)
    assert "/proc is shared" in describe({"agent a": Mode.BUBBLEWRAP}, Abilities("bwrap", "", False, False))


@pytest.mark.parametrize(("mode", "code", "tail", "is_told"), [
    (Mode.AUTO, 2, "sh: 0: cannot open /etc/hosts: No such file or directory", True), (Mode.AUTO, 127, "", True),
    (Mode.AUTO, 1, "FileNotFoundError: [Errno 2] No such file or directory: '/etc/hosts'", True),
    (Mode.AUTO, 127, "/bin/sh: 1: git: not found", True), (Mode.AUTO, 126, "sh: 1: x: Permission denied", True),
    (Mode.AUTO, 1, "1 failed", False), (Mode.AUTO, 1, "KeyError: nowhere: not found", False),
    (Mode.AUTO, 7, "Failed to connect to localhost port 5432: Couldn't connect", False),
    (Mode.AUTO, 0, "No such file or directory", False), (Mode.NONE, 127, "", False),
    (Mode.AUTO, 2, "sh: 0: cannot open /nowhere/x: No such file or directory", False),
    (Mode.AUTO, 1, "FileNotFoundError: [Errno 2] No such file or directory: 'data.txt'", False)])
def test_a_missing_file_is_explained(mode: Mode, code: int, tail: str, is_told: bool) -> None:
    hint = probe.explain_missing_file(Rights(mode=mode), "sandbox.gate", End(code), tail, "/usr/bin:/bin")
    assert ("read = [...] in [sandbox.gate]" in hint) is is_told


@pytest.mark.parametrize(("tail", "is_told"), [
    ("curl: (7) Failed to connect to localhost port 5432 after 0 ms: Couldn't connect to server", True),
    ('psql: connection to server at "127.0.0.1", port 5432 failed: Connection refused', True),
    ("Error: connect ECONNREFUSED ::1:6379", True), ("10.0.0.1: Connection refused", False)])
def test_an_unreachable_service_of_the_machine_is_explained(tail: str, is_told: bool) -> None:
    for network, told in ((Network.ALLOW, is_told), (Network.OPEN, False)):
        hint = probe.explain_missing_file(Rights(network=network), "sandbox.gate", End(1), tail, "/usr/bin:/bin")
        assert ("host_ports = [PORT] in [sandbox.gate]" in hint) is told


@pytest.mark.parametrize(("code", "tail", "command"), [
    (127, "sh: 1: nowhere: not found", ""), (127, "bash: line 1: nowhere: command not found", ""),
    (1, "> tape test\nsh: 1: nowhere: not found\nnpm error code 127", ""), (127, "", "cd a && X=1 nowhere -q"),
    (127, "/usr/bin/env: \u2018nowhere\u2019: No such file or directory", ""),
    (2, "make: nowhere: No such file or directory\nmake: *** [Makefile:2: test] Error 127", ""),
    (127, "pyenv: nowhere: command not found", ""), (1, "./check: line 3: nowhere: command not found", ""),
    (1, "zsh: command not found: nowhere", ""), (123, "xargs: nowhere: No such file or directory", ""),
    (1, "timeout: failed to run command \u2018nowhere\u2019: No such file or directory", "")])
@pytest.mark.parametrize("mode", [Mode.AUTO, Mode.NONE])
def test_a_program_that_is_not_installed_is_not_blamed_on_the_sandbox(mode: Mode, code: int, tail: str,
                                                                      command: str) -> None:
    hint = probe.explain_missing_file(Rights(mode=mode), "sandbox.gate", End(code), tail, "/usr/bin:/bin", command)
    assert hint == "; nowhere is not on your PATH, and no set-up installed it"


def test_without_confinement_the_machine_is_not_probed(tmp_path: Path) -> None:
    summary = probe.summarize_sandbox(tmp_path, {"command"}, {"GARRISON_SANDBOX": "none"})
    assert summary.line == "sandbox: none (it can do whatever you can)"


def test_a_path_that_does_not_exist_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[sandbox]\nmode = "auto"\nread = ["/usr", "/misspelt"]\n'
                                          '[sandbox.tool]\nmode = "none"\nwrite = ["/ignored"]\n')
    assert list(probe.missing_path_notes(tmp_path, {"a"}, {})) == [
        "read = [...] of agent a, set-up, acceptance, the gate names /misspelt, which does not exist: it is missing in "
        "the sandbox; create it, or correct config.toml"]


def test_a_virtual_environment_that_a_command_names_is_shown_whole(tmp_path: Path) -> None:
    """Its interpreter is a link: mounted alone, it would not find the environment."""
    base, environment = tmp_path / "python3", tmp_path / "venv"
    for folder in (base / "bin", base / "lib", environment / "bin"):
        folder.mkdir(parents=True)
    (base / "bin/python3").write_text("")
    (environment / "pyvenv.cfg").write_text("")
    (environment / "bin/python").symlink_to(base / "bin/python3")
    command = f"{environment}/bin/python -m pytest -q"
    assert show_named_programs(Rights(), command).programs == (environment, base)
    steps = build(replace(PLACE, rights=show_named_programs(Rights(), command)),
                  Surroundings(HOME, (environment / "bin",)), Paths([str(environment), str(base)]))
    assert targets(steps, BuildStep.READ).count(str(environment)) == 1


def test_a_folder_is_walked_once_per_launch_and_when_its_top_has_changed(tmp_path: Path,
                                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    deep = tmp_path / "tools/lib/site"
    deep.mkdir(parents=True)

    def add(path: Path) -> Path:
        path.write_text("secret")
        return path

    first = add(deep / ".npmrc")
    assert private_files.private_below(tmp_path / "tools") == [first]
    second = add(deep / ".netrc")
    assert private_files.private_below(tmp_path / "tools") == [first], "as it was found"
    with private_files.walk_again():
        assert private_files.private_below(tmp_path / "tools") == [second, first], "a concurrent caller waits"
    third = add(tmp_path / "tools/.env")
    assert private_files.private_below(tmp_path / "tools") == [third, second, first]
    for number in range(private_files.MANY):
        add(deep / f".env.{number}")
    with private_files.walk_again():
        pass
    assert private_files.private_below(tmp_path / "tools") == [third, deep], "each would be a mount"
    assert private_files.private_below(tmp_path / "nowhere") == private_files.private_below(third) == []


LAUNCH = """
import os, sys, threading
from pathlib import Path
from garrison.sandbox import private_files

end, tools = sys.argv[1], Path(sys.argv[2])
tools.mkdir()
assert private_files.private_below(tools) == []
looked = tools.stat()
(tools / ".npmrc").touch()
os.utime(tools, ns=(looked.st_atime_ns, looked.st_mtime_ns))
assert private_files.private_below(tools) == [], "the folder looks as before"
done = threading.Event()
if end == "threads":
    threading.Thread(target=done.wait).start()
try:
    with private_files.walk_again(0 if end == "late" else 60):
        assert end != "refused"
except AssertionError:
    assert end == "refused"
done.set()
walked = private_files.file_of_walks().read_text()
is_kept = ".npmrc" in walked
assert is_kept == (end == "walked") or end in ("late", "refused"), walked  # a quick child is read in any case
assert private_files.private_below(tools) == [tools / ".npmrc"]
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child is left")
"""


@pytest.mark.parametrize("end", ["walked", "late", "refused", "threads"])
def test_a_child_of_the_launch_walks_folders_unless_it_is_late(end: str, tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-P", "-c", LAUNCH, end, str(tmp_path / "tools")], capture_output=True,
                          text=True, env=environment, check=False)
    assert done.stdout == "no child is left\n", done.stderr
