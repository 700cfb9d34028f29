"""`garrison new`: write a pipeline from a template."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import click

from garrison.cli.commands import Command
from garrison.cli.init import read_files, write_new
from garrison.cli.options import json_option
from garrison.cli.output import print_json, print_table
from garrison.directories import find_home
from garrison.errors import NotFound, Refused
from garrison.project.files import ProjectFiles
from garrison.project.survey import propose_gate, survey
from garrison.project.templates import TEMPLATES, Template, fill
from garrison.run.request import read_defaults, read_project
from garrison.spelling import correction
from garrison.system.git import Git, validate_repository

MAX_MODULES = 200
_HIDDEN = (".", "_")


@click.command(cls=Command, examples=(
    ("garrison new", "the templates"),
    ('garrison new fix-until-green --goal "Make the tests pass on Python 3.14"', "writes fix-until-green.dot"),
    ('garrison new codemod --goal "Replace os.path by pathlib" --each src/app --each src/lib', "one agent per module"),
))
@click.argument("template", required=False, metavar="[TEMPLATE]")
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path),
              help="File to write (default: TEMPLATE.dot).")
@click.option("--goal", default="", metavar="TEXT", help="Goal of the agents.")
@click.option("--each", "modules", multiple=True, metavar="PATH",
              help="Module of a codemod (repeatable; default: the directories with source files).")
@click.option("--gate", metavar="CMD", help="Command that tests (default: garrison.toml's, else detected).")
@json_option
def new(template: str | None, output: Path | None, goal: str, modules: tuple[str, ...], gate: str | None, *,
        as_json: bool) -> None:
    """Write a pipeline from TEMPLATE for the repository you are in; without TEMPLATE, list the templates."""
    if template is None:
        rows = [(each.name, each.about) for each in TEMPLATES]
        if as_json:
            print_json([{"name": name, "about": about} for name, about in rows])
        else:
            print_table(("TEMPLATE", "WHAT IT DOES"), rows)
        return
    chosen = find_template(template)
    file = output or Path(f"{chosen.name}.dot")
    if file.exists():
        raise Refused(f"{file} exists; name another file with -o")
    repo = validate_repository(Path.cwd())
    files = read_files(repo, Git(repo, home=find_home()))
    needs_gate, needs_modules = "@gate@" in chosen.text, "@module@" in chosen.text
    proposed = propose_gate(survey(files))
    gate = gate or read_project(repo).gate or (proposed.gate if proposed is not None else None)
    if needs_gate and gate is None:
        raise Refused("no test command is known: pass --gate CMD, or set gate in garrison.toml")
    names = list(modules) or modules_of(files)
    if needs_modules and not names:
        raise Refused("this repository has no directory with source files; name the modules with --each PATH")
    write_new(file, fill(chosen, goal=goal, gate=gate or "", modules=names))
    if as_json:
        print_json({"file": str(file), "template": chosen.name, "modules": names if needs_modules else []})
        return
    click.echo(f"wrote {file}" + (f" for {len(names)} module{'s' * (len(names) != 1)}: {', '.join(names[:5])}"
                                  + (", …" if len(names) > 5 else "") if needs_modules else ""))
    if not goal:
        click.echo(f"its goal: {chosen.goal} (change goal= in the file)")
    agent = "" if read_defaults(find_home(), repo).agent else " --agent NAME"
    click.echo(f"next: garrison launch {file}{agent}")


def find_template(name: str) -> Template:
    """Return the template with that name; NotFound suggests the nearest."""
    by_name = {template.name: template for template in TEMPLATES}
    if name in by_name:
        return by_name[name]
    raise NotFound(f"no template {name!r}; " + correction(name, by_name, f"there are {', '.join(by_name)}"))


def modules_of(files: ProjectFiles) -> list[str]:
    """Return the directories with source files for a codemod: the top ones, or those in the only one. Pure.
    """
    code = [path for path in files.paths if PurePosixPath(path).suffix in _CODE]
    inside = ""
    while len(folders := _folders(inside, code)) == 1:
        inside = f"{folders[0]}/"
        if any("/" not in path.removeprefix(inside) for path in code if path.startswith(inside)):
            return folders  # a package: its files belong together
    return folders[:MAX_MODULES] or ([inside.rstrip("/")] if inside else [])


def _folders(inside: str, code: list[str]) -> list[str]:
    parts = [path.removeprefix(inside).split("/") for path in code if path.startswith(inside)]
    return sorted({inside + part[0] for part in parts if len(part) > 1 and not part[0].startswith(_HIDDEN)})


_CODE = frozenset({
    ".py", ".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".rs", ".go", ".java", ".kt", ".scala", ".rb", ".php", ".cs",
    ".fs", ".c", ".h", ".cc", ".cpp", ".hpp", ".swift", ".ex", ".exs", ".erl", ".hs", ".ml", ".clj", ".lua", ".sh",
    ".vue", ".svelte", ".dart", ".zig"})
"""Suffixes of source files."""
