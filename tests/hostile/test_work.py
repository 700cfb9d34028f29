"""Tools of honest agents work inside: package managers, compilers, servers, tests. git has separate tests."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hostile import enclosure
from hostile.world import HERE, RUN, Confinement, World, why_impossible
from support import DEADLINE, Node

WHEEL = """$PY - <<'END'
import zipfile
with zipfile.ZipFile("hello-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("hello.py", "print('works')\\n")
    wheel.writestr("hello-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: hello\\nVersion: 1.0\\n")
    wheel.writestr("hello-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr("hello-1.0.dist-info/RECORD", "")
END
"""
WORK = {
    "a virtual environment and pip": ("python3", WHEEL + "$PY -m venv v && v/bin/pip install -q --no-index ./hello-1.0-"
                                      "py3-none-any.whl && v/bin/python -c 'import hello'"),
    "npm install": ("npm", "mkdir -p p && echo '{\"name\": \"p\", \"version\": \"1.0.0\", \"main\": \"i.js\"}' "
                    "> p/package.json && echo \"console.log('works')\" > p/i.js && echo '{\"name\": \"q\"}' "
                    "> package.json && npm install --offline --no-audit ./p > npm.log 2>&1 && "
                    "node -e \"require('p')\""),
    "pytest -n 4": ("python3", "mkdir -p t && printf 'import pytest\\n@pytest.mark.parametrize(\"n\", range(8))\\n"
                    "def test_it(n, tmp_path):\\n    (tmp_path / \"x\").write_text(\"x\")\\n' > t/test_it.py && "
                    "$PY -m pytest -q -n 4 -p no:cacheprovider --rootdir t t && echo works"),
    "cargo": ("cargo", "cargo init -q --vcs none --name hello rust && cd rust && cargo run -q --offline && echo works"),
    "go": ("go", "mkdir -p g && cd g && printf 'package main\\nfunc main() { println(\"works\") }\\n' > main.go && "
           "go run main.go"),
    "javac and java": ("javac", "printf 'class A { public static void main(String[] a) "
                       "{ System.out.println(\"works\"); } }' > A.java && javac A.java && java -XX:+UseSerialGC A"),
    "make and cc": ("cc", "printf '#include <stdio.h>\\nint main() { puts(\"works\"); }\\n' > a.c && "
                    "printf 'a: a.c\\n\\tcc -o a a.c\\n' > Makefile && make -s && ./a"),
    "a pseudo terminal": ("script", "script -qec 'test -t 1 && echo works' /dev/null"),
    "a lock, a pipe and a temporary file": ("flock", "mkfifo q && (echo works > q &) && flock lock cat q && "
                                            "t=$(mktemp) && test -w $t && rm q"),
    "a database file": ("python3", "$PY -c \"import sqlite3; c = sqlite3.connect('x.db'); "
                        "c.execute('pragma journal_mode=wal'); c.execute('create table t(x)'); print('works')\""),
    "multiprocessing with shared memory": ("python3", "$PY -c \"import multiprocessing as m; "
                                           "import multiprocessing.shared_memory as s; "
                                           "x = s.SharedMemory(create=True, size=9); "
                                           "x.close(); x.unlink(); "
                                           "m.Queue(); print('works')\""),
    "a debugger on its own child": ("strace", "strace -f -o trace true && echo works"),
}
"""Kind of work → (program that it needs, shell that prints `works`)."""
Attack = Callable[[str], str]


@pytest.fixture(scope="module")
def agent() -> Iterator[Attack]:
    """Yield a function that has an agent inside run a script and returns its output."""
    if reason := why_impossible(Confinement.BUBBLEWRAP):
        pytest.skip(reason)
    with subprocess.Popen([sys.executable, "-m", "tests.hostile", "--obey"], cwd=HERE.parents[1], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        orders, answers = child.stdin, child.stdout

        def run(script: str) -> str:
            print(json.dumps([script, 220]), file=orders, flush=True)
            return str(json.loads(answers.readline()))

        yield run
        orders.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORK)
def test_tools_work_inside(agent: Attack, kind: str) -> None:
    program, script = WORK[kind]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    output = agent(f"mkdir -p work && cd work && {script}")
    assert output.strip().endswith("works"), output


@pytest.mark.slow
def test_three_agents_can_each_serve_on_the_same_port(request: pytest.FixtureRequest) -> None:
    if reason := why_impossible(Confinement.BUBBLEWRAP):
        pytest.skip(reason)
    if not enclosure.is_inside():  # the same test, where its world ends with it
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", request.node.nodeid]
        done = subprocess.run([*enclosure.words(), *words], cwd=request.config.rootpath, capture_output=True,
                              text=True, check=False)
        assert done.returncode == 0, done.stdout
        return
    serve = ("{ python3 -m http.server --bind 127.0.0.1 3000 > /dev/null 2>&1 & }; echo NAME > name.txt; "
             "for n in $(seq 50); do sleep 0.2; python3 -c \"import urllib.request as u; print(u.urlopen("
             "'http://127.0.0.1:3000/name.txt').read().decode())\" > got && break; done; sleep 4; "
             "test \"$(head -1 got)\" = NAME; rm name.txt got")
    with tempfile.TemporaryDirectory(prefix="hostile-", ignore_cleanup_errors=True) as folder:
        world = World(Path(folder), Confinement.BUBBLEWRAP)
        try:
            nodes = [Node(name, command=f"set -e; {serve.replace('NAME', name)}; echo {name} > {name}.txt")
                     for name in ("one", "two", "three")]
            child = world.open(nodes=nodes)
            assert child.wait(DEADLINE) == 0, world.logs()
            assert {node["status"] for node in world.nodes(RUN).values()} == {"validated"}
        finally:
            world.close()
