"""Output to a terminal: one writer cleans everything that a command prints, whatever an agent put into it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

from garrison.cli.output import dumps

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "A\x1b]52;c;ZXZpbA==\x07\x9b31mB\u202eC\x1b[8mhid\x1b[31mred\x1b[0m\rD\x08"
WAYS = {
    "print": "print(H)", "stderr": "print(H, file=sys.stderr)", "echo": "click.echo(H)",
    "bytes": "sys.stdout.buffer.write(H.encode())", "binary echo": "click.echo(H.encode())",
    "table": "print_table(['x'], [[H]])", "json": "print_json({'a': H})",
    "lines": "print(json.dumps(H, ensure_ascii=False))",
    "style": "click.secho(H, fg='red', err=True)", "rich": "Console().print(H, markup=False)",
    "terminal": "terminal.write(H)", "frame": "terminal.show([raw(H)], terminal.stdout_terminal())",
    "confirm": "click.confirm(H)", "usage": "raise click.UsageError(H)", "refusal": "raise Refused(H)",
}
PROGRAM = """
import json, os, pty, sys
from contextlib import suppress
import click
from rich.console import Console
from garrison.cli import terminal
from garrison.cli.commands import run_command
from garrison.cli.output import print_json, print_table
from garrison.cli.render import raw
from garrison.errors import Refused

H, *ways = json.load(sys.stdin)

def be(way):
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open(number, "w" if number else "r", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    made = {**globals()}
    exec("@click.command()\\ndef command(): " + way, made)
    run_command(made["command"], [])
    sys.stdout.flush()
    os._exit(0)

def shown(way):
    pid, terminal = pty.fork()
    if pid == 0:
        be(way)
    got = b""
    with suppress(OSError):  # the terminal's end
        while block := os.read(terminal, 65536):
            got += block
            if b"[y/N]" in block:
                os.write(terminal, b"y\\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    return got.decode("latin-1")

print(json.dumps([shown(way) for way in ways]))
"""
"""Run each way in a process with a separate terminal, and print what that received."""
OBEYED = re.compile(rb"\x1b(?!\[[0-9;]*m)|\x1b\[8m|\xc2[\x80-\x9f]|\xe2\x80\xae|[\x00-\x08\x0b-\x0c\x0e-\x1a]"
                    rb"|\r(?!\r?\n)")


def test_json_can_contain_lone_surrogates() -> None:
    """Regression: `status --json` ended with an internal error."""
    value = {"reason": "a\ud800b", "file": "x\udcff.txt"}
    text = dumps(value)
    text.encode()
    assert json.loads(text) == value


def test_a_terminal_gets_no_escape_sequences_except_colours() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=json.dumps([HOSTILE, *WAYS.values()]), check=True,
                          capture_output=True, text=True)
    for way, text in zip(WAYS, json.loads(done.stdout), strict=True):
        got = text.encode("latin-1")
        assert OBEYED.findall(got) == [] and b"A" in got and b"red" in got, (way, got)


def test_no_command_bypasses_the_writer() -> None:
    """`trusted_stdout` is for garrison's own escape sequences."""
    trusted, raw = set(), set()
    for path in sorted((ROOT / "src/garrison/cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "trusted_stdout":
                trusted.add(path.stem)
            is_near = isinstance(node, ast.Attribute) and node.attr in ("__stdout__", "__stderr__", "write")
            is_near |= isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.write", "open")
            text = ast.unparse(node) if is_near else ""
            if text in ("sys.__stdout__", "sys.__stderr__") or re.match(r"os\.write\([12],|open\('/dev/tty'", text):
                raw.add(path.stem)
    assert (trusted, raw) == ({"logs", "terminal"}, set())
