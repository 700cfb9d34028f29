"""Record a real run of garrison in a terminal as an animated SVG: docs/pictures/run.svg of the README.

    .venv/bin/python scripts/recording.py [FILE]

A scripted agent does three tasks of a list in a project made for it. One agent's supervisor is killed with -9, and two
tasks change the same lines. What the terminal shows is what was printed, when it was printed, except that waits are cut
to LONGEST_WAIT and the folder is named ~. The SVG has text and CSS animations only: it loads nothing.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs/pictures/run.svg"
COLUMNS, ROWS = 92, 22
LONGEST_WAIT, TYPING, READING, LAST = 1.0, 0.035, 0.9, 6.0
"""Seconds: of a wait at most, of a typed character, before the next command, and at the end."""
CHAR, LINE, MARGIN = 8.43, 19, 16
"""Pixels of a character, a line, and around the text."""
COLOURS = {"32": "#7ee787", "31": "#ff7b72", "33": "#e3b341", "36": "#79c0ff", "34": "#79c0ff", "2": "#8b949e",
           "1": "#ffffff"}
"""SGR number → colour."""
_SGR = re.compile(r"\x1b\[([\d;]*)m")
_ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-ln-z]|\x1b[=>]|\x1b\][^\x07]*\x07")

AGENT = """\
sleep 4
case $GARRISON_NODE in
    *json*) printf '\\n\\ndef as_json(items):\\n    return __import__("json").dumps(items)\\n' >> shop.py ;;
    *mean*) printf '\\n\\ndef mean(items):\\n    return total(items) / len(items)\\n' >> shop.py ;;
    *) echo '# Shop' > README.md ;;
esac
git add -A && git commit -qm "$GARRISON_NODE"
"""
FILES = {
    "shop.py": "def total(items):\n    return sum(items)\n",
    "test_shop.py": "import unittest\n\nimport shop\n\n\nclass Shop(unittest.TestCase):\n    def test_total(self):\n"
                    "        self.assertEqual(shop.total([1, 2, 3]), 6)\n",
    "TODO.md": "- [ ] add a README\n- [ ] add a JSON export\n- [ ] add the mean\n",
}
COMMANDS = ("cat TODO.md", "garrison init --agent codex", "garrison run --tasks TODO.md --yes",
            "git log --oneline --first-parent")


@dataclass
class Line:
    """One line of the terminal: when it came, and its text with SGR codes."""

    at: float
    text: str
    typed: int = 0
    """Number of characters that were typed, after the prompt."""


@dataclass
class Recording:
    """What a terminal showed, and when: `now` is the time in it, in seconds."""

    home: str
    lines: list[Line] = field(default_factory=list)
    now: float = 0.6

    def run(self, command: str, folder: Path, env: dict[str, str]) -> None:
        """Type a command, and record what it prints into a terminal."""
        self.lines.append(Line(self.now, f"\x1b[32m$\x1b[0m {command}", len(command)))
        self.now += TYPING * len(command) + 0.3
        reading, writing = pty.openpty()
        child = subprocess.Popen(["/bin/sh", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                                 stdout=writing, stderr=writing, start_new_session=True)
        os.close(writing)
        rest, last, killed = "", time.monotonic(), False
        while block := self._read(reading):
            self.now += min(time.monotonic() - last, LONGEST_WAIT)
            last = time.monotonic()
            *whole, rest = (rest + block.decode(errors="replace")).replace("\r\n", "\n").split("\n")
            self.lines += [Line(self.now, self._shown(text)) for text in whole]
            if not killed and sum("working" in line.text for line in self.lines) >= 2:
                killed = kill_one(Path(env["GARRISON_HOME"]))
        os.close(reading)
        if code := child.wait():
            raise SystemExit(f"`{command}` exited with {code}:\n" + "\n".join(line.text for line in self.lines))
        self.now += READING

    def _shown(self, text: str) -> str:
        return _ESCAPE.sub("", text.rpartition("\r")[2]).replace(self.home, "~")

    @staticmethod
    def _read(descriptor: int) -> bytes:
        try:
            return os.read(descriptor, 65536)
        except OSError:  # EIO: no writer is left
            return b""


def kill_one(home: Path) -> bool:
    """Kill the supervisor of an agent at work with -9."""
    for path in sorted((home / "identities").glob("orchestrator-*.json")):
        identity = json.loads(path.read_text())
        if identity.get("pid") and identity.get("status") == "active":
            os.kill(identity["pid"], signal.SIGKILL)
            return True
    return False


def record() -> Recording:
    """Make the project, and record the commands."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        folder = home / "shop"
        folder.mkdir()
        for path, text in FILES.items():
            (folder / path).write_text(text)
        config = home / ".local/state/garrison/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(f'[agents.codex]\nargv = ["sh", "-c", {_toml(AGENT)}]\n')
        env = {"HOME": name, "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
               "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TZ": "UTC",
               "GARRISON_HOME": str(config.parent), "GIT_CONFIG_GLOBAL": str(home / ".gitconfig")}
        (home / ".gitconfig").write_text("[user]\nname = User\nemail = user@example.org\n[init]\ndefaultBranch = main\n"
                                         "[core]\npager = cat\n")
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "Begin the shop"]):
            subprocess.run(["git", *words], cwd=folder, env=env, check=True)
        recording = Recording(name)
        for command in COMMANDS:
            recording.run(command, folder, env)
        return recording


def _toml(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def render(recording: Recording) -> str:
    """Return the SVG: each line appears at its time, and the screen scrolls where the terminal would."""
    total = recording.now + LAST
    rows = [Line(line.at, part, line.typed if number == 0 else 0) for line in recording.lines
            for number, part in enumerate(_wrap(line.text))]
    width, height = COLUMNS * CHAR + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    styles = ["text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#e6edf3;white-space:pre}",
              f".l{{animation:{total:.2f}s step-end infinite;opacity:0}}"]
    body, scroll = [], []
    for number, row in enumerate(rows):
        percent = 100 * row.at / total
        styles.append(f"@keyframes k{number}{{0%{{opacity:0}}{percent:.2f}%,100%{{opacity:1}}}}")
        if number >= ROWS:
            scroll.append(f"{percent:.2f}%{{transform:translateY({(ROWS - 1 - number) * LINE}px)}}")
        body.append(f'<text class="l" style="animation-name:k{number}" y="{(number + 1) * LINE - 5}">'
                    f"{_spans(row.text)}</text>")
        if row.typed:  # a cover over the line that moves right by a character at a time
            end, moved = 100 * (row.at + TYPING * row.typed) / total, (row.typed + 1) * CHAR
            styles.append(f"@keyframes t{number}{{0%,{percent:.2f}%{{transform:none;animation-timing-function:"
                          f"steps({row.typed})}}{end:.2f}%,100%{{transform:translateX({moved:.0f}px)}}}}")
            body.append(f'<rect class="t" style="animation:t{number} {total:.2f}s infinite" x="{2 * CHAR:.0f}" '
                        f'y="{number * LINE}" width="{width:.0f}" height="{LINE}"/>')
    styles += [f"@keyframes s{{0%{{transform:none}}{''.join(_last_of_each(scroll))}"
               f"100%{{transform:translateY({min(0, (ROWS - len(rows)) * LINE)}px)}}}}",
               f".s{{animation:s {total:.2f}s step-end infinite}}", ".t,.b{fill:#0d1117}",
               "@media(prefers-reduced-motion:reduce){.l{animation:none;opacity:1}.t{display:none}.s{animation:none;"
               f"transform:translateY({min(0, (ROWS - len(rows)) * LINE)}px)}}}}"]
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
            f'height="{height}"><title>garrison init and garrison run in a terminal</title><style>{"".join(styles)}'
            f'</style><rect class="b" width="100%" height="100%" rx="8"/><svg x="{MARGIN}" y="{MARGIN}" '
            f'width="{width - 2 * MARGIN:.0f}" height="{ROWS * LINE}"><g class="s">{"".join(body)}</g></svg></svg>\n')


def _last_of_each(frames: list[str]) -> list[str]:
    """Keep the last of the frames that have the same time."""
    return list({frame.partition("%")[0]: frame for frame in frames}.values())


def _wrap(text: str) -> list[str]:
    """Break a line as a terminal does."""
    parts, plain, column = [], "", 0
    for piece in re.split(r"(\x1b\[[\d;]*m)", text):
        if piece.startswith("\x1b"):
            plain += piece
            continue
        for char in piece:
            if column == COLUMNS:
                parts.append(plain)
                plain, column = "", 0
            plain, column = plain + char, column + 1
    return [*parts, plain]


def _spans(text: str) -> str:
    """Return a line's text as SVG, coloured as its SGR codes say."""
    found, colour = [], ""
    for number, piece in enumerate(_SGR.split(text)):
        if number % 2:
            colour = next((COLOURS[code] for code in piece.split(";") if code in COLOURS), "")
        elif piece:
            escaped = html.escape(piece, quote=False)
            found.append(f'<tspan fill="{colour}">{escaped}</tspan>' if colour else escaped)
    return "".join(found)


def main() -> None:
    """Write the SVG."""
    parser = argparse.ArgumentParser(description="Record a real run of garrison in a terminal as an animated SVG.")
    parser.add_argument("file", type=Path, nargs="?", default=TARGET, help="what is written (default: the README's)")
    target = parser.parse_args().file
    text = render(record())
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}: {len(text):,} bytes")


if __name__ == "__main__":
    main()
