# shellcheck shell=sh
# Set-up shared by scripts/demo, scripts/test, scripts/chaos and scripts/lock. POSIX sh, sourced with $root set to the
# checkout. It only defines functions; `set_up LEVEL` does the work: a finished .venv in the checkout, from
# requirements.lock.
#
# A level is a section of that file and needs those before it: `base` runs garrison with its small extras, `claude` adds the
# SDK with the Claude CLI, `test` adds all that the checks need. A .venv of a higher level serves a lower one; one of a lower level is
# completed, and stays usable meanwhile and after a failure, since only packages are added.
#
# Only what the lock names is downloaded, and its hashes are checked; the lock is complete, so nothing is resolved again
# (a third of the time). No registry is named here: pip and uv read their own configuration. .venv has the level that its
# stamp, written last, names; a second run costs one Python start. System packages are installed only where
# `may_install_system` allows it.

say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
is_root() { [ "$(id -u)" = 0 ]; }

# `env -i scripts/test` has neither PATH nor HOME. Standard directories come last, so the caller's own take precedence.
sane_environment() {
    for place in /usr/local/bin /usr/bin /bin /usr/local/sbin /usr/sbin /sbin; do
        case ":${PATH:=$place}:" in
        *":$place:"*) ;;
        *) PATH="$PATH:$place" ;;
        esac
    done
    if [ -z "${HOME:-}" ]; then
        HOME=$(getent passwd "$(id -u)" 2>/dev/null | cut -d: -f6)
        [ -n "$HOME" ] || HOME=/
    fi
    export PATH HOME
    # The caller's Python settings would leak into the new environment. Bytecode makes commands start three times faster.
    unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX __PYVENV_LAUNCHER__
}

in_container() {
    [ -e /.dockerenv ] || [ -e /run/.containerenv ] ||
        tr '\0' '\n' 2>/dev/null </proc/1/environ | grep -q '^container=' ||
        grep -Eq 'docker|containerd|kubepods|libpod|lxc' /proc/1/cgroup 2>/dev/null
}

in_ci() { [ -n "${CI:-}" ] && [ "${CI:-}" != false ] && [ "${CI:-}" != 0 ]; }

may_install_system() { [ "${install_system:-no}" = yes ] || in_ci || { is_root && in_container; }; }

# install_command PACKAGE... : prints the command that installs packages on this machine.
install_command() {
    if have apt-get; then echo "sudo apt-get install -y --no-install-recommends $*"
    elif have dnf; then echo "sudo dnf install -y $*"
    elif have pacman; then echo "sudo pacman -S --needed $*"
    elif have apk; then echo "sudo apk add $*"
    elif have zypper; then echo "sudo zypper install -y $*"
    else echo "install with your package manager: $*"
    fi
}

as_root() {
    if is_root; then "$@"
    elif [ "${install_system:-no}" = yes ]; then sudo "$@"
    else sudo -n "$@"
    fi
}

apt_get() {
    # Without a network apt would retry for minutes; set-up continues without it instead. A new machine often updates
    # itself at first, so another apt is waited for.
    as_root env DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq \
        -o Acquire::Retries=1 -o Acquire::http::Timeout=20 \
        -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0 "$@" </dev/null >/dev/null
}

# install_alone PACKAGE... : one set-up at a time, so that none waits for the other's packages in vain.
install_alone() (
    if have flock; then flock 8; fi
    apt_get update && apt_get install -y --no-install-recommends "$@"
) 8<"$root/scripts/_setup.sh"

# try_install PACKAGE... : succeeds if they were installed; prints why not otherwise.
try_install() {
    if ! may_install_system; then return 1; fi
    if ! have apt-get; then say "set-up: no apt-get on this machine, so $* cannot be installed for you"; return 1; fi
    if ! is_root && ! have sudo; then say "set-up: installing $* needs root or sudo"; return 1; fi
    say "set-up: installing $* with apt-get"
    if install_alone "$@"; then return 0; fi
    say "set-up: apt-get could not install $*"
    return 1
}

system_packages() {
    if ! have git; then
        try_install git || die "set-up: git is missing; type: $(install_command git)"
    fi
    wanted=
    have tmux || wanted=tmux
    have bwrap || wanted="${wanted:+$wanted }bubblewrap"
    # shellcheck disable=SC2086  # a list of names
    [ -n "$wanted" ] && ! try_install $wanted || return 0
    have tmux || say "set-up: tmux is missing, plain processes serve instead; to have it: $(install_command tmux)"
    have bwrap || say "set-up: bubblewrap is missing; garrison asks at its first launch what shall hold agents instead (docs/security.md); to have it: $(install_command bubblewrap)"
}

# Packages that only tests need: without a browser, Graphviz, npm, Podman or a server, those tests are skipped.
test_packages() {
    wanted=
    have npm || wanted="nodejs npm"
    have dot || wanted="${wanted:+$wanted }graphviz"
    # Outside of a container, Debian's package would leave servers running that the user did not ask for.
    have podman || ! is_root || ! in_container || wanted="${wanted:+$wanted }podman runc mmdebstrap"
    have sshd || ! in_container || wanted="${wanted:+$wanted }openssh-server"
    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || ! in_container || wanted="${wanted:+$wanted }postgresql"
    have redis-server || ! in_container || wanted="${wanted:+$wanted }redis-server"
    # The headless build is half as large and uses half the CPU; older distributions have only the other one.
    browser=
    for name in chromium-headless-shell chromium chromium-browser google-chrome; do
        have "$name" && browser=$name
    done
    # shellcheck disable=SC2086  # a list of names
    if [ -z "$browser" ]; then
        if have apt-get && try_install chromium-headless-shell $wanted; then return; fi
        wanted="chromium${wanted:+ $wanted}"
    fi
    # shellcheck disable=SC2086
    [ -z "$wanted" ] || try_install $wanted ||
        say "set-up: some tests are skipped; to run them too: $(install_command $wanted)"
}

# An image for tests of containers, without any registry: a minute, once.
container_image() {
    have podman && have mmdebstrap && is_root || return 0
    name=localhost/garrison-test-place
    podman image exists "$name" 2>/dev/null && return 0
    # shellcheck disable=SC1091
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mmdebstrap --quiet --variant=minbase --include=git,python3 "$suite" - 2>/dev/null </dev/null |
        podman import --quiet - "$name" >/dev/null 2>&1 ||
        say "set-up: no image for containers could be made; their tests are skipped"
}

# Lint, format and types of the page need what package-lock.json names; without npm that check is skipped.
page_tools() {
    have npm || return 0
    [ "$root/node_modules/.package-lock.json" -nt "$root/package-lock.json" ] && return 0
    (cd "$root" && npm ci --silent --no-audit --no-fund </dev/null >/dev/null) ||
        say "set-up: npm ci failed; the page's code is not checked"
}

# find_python [MODULE...] : prints the path of the newest Python >= 3.11 that has these modules. Each candidate is run:
# a pyenv shim may exist for a version that is not installed. The base interpreter is printed, because the first
# `python3` on PATH may be in the .venv that is about to be replaced.
find_python() {
    for candidate in python3.13 python3.12 python3.11 python3 python; do
        if "$candidate" -I -c '
import importlib, sys
if sys.version_info < (3, 11):
    sys.exit(1)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(getattr(sys, "_base_executable", None) or sys.executable)' "$@" 2>/dev/null; then
            return 0
        fi
    done
    return 1
}

# fingerprint PYTHON : digest of everything .venv depends on. It includes the path: a copied checkout must not import
# the original.
fingerprint() {
    "$1" -I -S -c '
import hashlib, sys
digest = hashlib.sha256(sys.version.encode() + b"\0" + sys.argv[1].encode())
for name in ("requirements.lock", "pyproject.toml"):
    with open(sys.argv[1] + "/" + name, "rb") as file:
        digest.update(b"\0" + file.read())
print(digest.hexdigest())' "$root" 2>/dev/null
}

rank() {
    case "$1" in
    base) echo 1 ;;
    claude) echo 2 ;;
    test) echo 3 ;;
    *) echo 0 ;;
    esac
}

# venv_level : prints the level of the finished .venv, or `none`.
venv_level() {
    digest=
    level=
    [ ! -s "$stamp" ] || read -r digest level <"$stamp"
    if [ -n "$digest" ] && [ "$digest" = "$(fingerprint "$root/.venv/bin/python")" ]; then
        echo "${level:-none}"
    else
        echo none
    fi
}

# venv_has LEVEL
venv_has() { [ "$(rank "$(venv_level)")" -ge "$(rank "$1")" ]; }

# cost FROM TO : prints what a set-up takes: measured with pip, which takes more time and room than uv.
cost() {
    case "$1-$2" in
    none-base) echo "about 25 MB to download, 130 MB on disk, half a minute" ;;
    none-claude) echo "about 180 MB to download, 480 MB on disk, a minute" ;;
    base-claude) echo "about 160 MB to download, 370 MB on disk, a minute" ;;
    claude-test) echo "about 150 MB to download, 500 MB on disk, a minute" ;;
    base-test) echo "about 310 MB to download, 870 MB on disk, two minutes" ;;
    *) echo "about 320 MB to download, 980 MB on disk, two minutes" ;;
    esac
}

# requirements FROM TO : writes the sections of the lock after level FROM, up to level TO, to a file that pip and uv read.
requirements() {
    for section in base claude test; do
        [ "$(rank "$section")" -gt "$(rank "$1")" ] && [ "$(rank "$section")" -le "$(rank "$2")" ] || continue
        sed -n "/^# $section: /,/^# [a-z]*: /p" "$root/requirements.lock"
    done >"$root/.venv/garrison-requirements.txt"
}

too_old() {
    found=$(python3 -c 'import sys; print("python3 is %d.%d" % sys.version_info[:2])' 2>/dev/null) || found="there is no python3"
    die "set-up: garrison needs Python 3.11 or newer, $found; install one (for example: $(install_command python3.11 python3.11-venv))"
}

# make_with_uv PYTHON LEVEL
make_with_uv() {
    as_pip_trusts
    uv venv --quiet --no-python-downloads --python "$1" "$root/.venv" &&
        add_with_uv none "$2" &&
        uv pip install --quiet --python "$root/.venv/bin/python" --no-deps --no-build-isolation -e "$root"
}

# add_with_uv FROM TO : replaces what an interrupted one left, which may be half of a package.
add_with_uv() {
    as_pip_trusts
    requirements "$1" "$2" &&
        uv pip install --quiet --python "$root/.venv/bin/python" --no-deps --require-hashes --reinstall \
            -r "$root/.venv/garrison-requirements.txt"
}

# As pip does, trust the machine's certificates: a company's proxy may sit in front of the package index.
as_pip_trusts() {
    UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-true}
    export UV_SYSTEM_CERTS
}

# make_with_pip PYTHON LEVEL
make_with_pip() {
    "$1" -m venv "$root/.venv" &&
        add_with_pip none "$2" &&
        venv_pip --no-compile --no-deps --no-build-isolation -e "$root"
}

# add_with_pip FROM TO : as add_with_uv. A .venv that uv made has no pip.
add_with_pip() {
    { venv_python -m pip --version || venv_python -m ensurepip; } >/dev/null 2>&1 || :
    requirements "$1" "$2" &&
        venv_pip --no-compile --no-deps --require-hashes --ignore-installed -r "$root/.venv/garrison-requirements.txt"
}

# pip would compile on one core, and everything. Half of it is never imported by garrison, or only by tests, and is
# compiled on first import. Files that cannot be compiled (a package's templates) are no modules.
compile_all() {
    venv_python -m compileall -qq -j 0 \
        -x 'site-packages/(networkx|mypy|mypyc|playwright|hypothesis|coverage|pip|pygments/(lexers|styles))/' \
        "$root/.venv/lib" >/dev/null 2>&1 || :
}

venv_python() { "$root/.venv/bin/python" "$@"; }

venv_pip() {
    venv_python -m pip --disable-pip-version-check -qq install --no-user "$@"
}

python_with_venv() {
    find_python venv ensurepip && return
    version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    try_install "$version-venv" && find_python venv ensurepip && return
    die "set-up: $1 has no venv module; type: $(install_command "$version-venv") (or put uv on PATH)"
}

# make_venv LEVEL
make_venv() {
    python=$(find_python) || too_old
    rm -f "$stamp"
    rm -rf "$root/.venv"
    if have uv; then
        say "set-up: making .venv with uv from requirements.lock: $(cost none "$1")"
        if make_with_uv "$python" "$1"; then return; fi
        say "set-up: uv did not succeed, trying venv and pip"
        rm -rf "$root/.venv"
    fi
    python=$(python_with_venv "$python") || exit 1
    say "set-up: making .venv with venv and pip from requirements.lock: $(cost none "$1")"
    make_with_pip "$python" "$1" ||
        die "set-up: pip could not install requirements.lock (see above); run the same command again to retry"
}

# complete_venv FROM TO
complete_venv() {
    case "$2" in claude) what="the Claude SDK" ;; *) what="what tests need" ;; esac
    say "set-up: adding $what to .venv: $(cost "$1" "$2")"
    if have uv; then
        if add_with_uv "$1" "$2"; then return; fi
        say "set-up: uv did not succeed, trying pip"
    fi
    add_with_pip "$1" "$2" ||
        die "set-up: pip could not install requirements.lock (see above); run the same command again to retry"
}

# set_up LEVEL : afterwards $root/.venv is finished and has at least that level. Concurrent set-ups wait for each other.
# The lock is on an existing file, and pip or uv inherit it: when a set-up is killed, the next one waits for the processes
# it left running.
set_up() {
    sane_environment
    system_packages
    environment "$1"
}

# As set_up, with what only tests need; the packages come while .venv is made. Ctrl-C lets apt-get finish.
set_up_for_tests() {
    sane_environment
    (system_packages && test_packages && container_image && page_tools) &
    packages=$!
    environment test
    wait "$packages"
}

environment() {
    stamp="$root/.venv/garrison-stamp"
    if venv_has "$1"; then return; fi
    exec 9<"$root/requirements.lock"
    if have flock; then flock 9; fi
    if ! venv_has "$1"; then
        started=$(date +%s)
        level=$(venv_level)
        if [ "$level" = none ]; then make_venv "$1"; else complete_venv "$level" "$1"; fi
        compile_all
        digest=$(fingerprint "$root/.venv/bin/python")
        echo "$digest $1" >"$stamp.new" && mv "$stamp.new" "$stamp"
        say "set-up: done in $(($(date +%s) - started)) s"
    fi
    exec 9<&-
}
