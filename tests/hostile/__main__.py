"""`python -m tests.hostile [--in CONFINEMENT] [--case WORD] [--traps]`: try the hostile cases and print how each went.

CONFINEMENT is none, bubblewrap (the default), unprivileged, nested or landlock. Exit code 1 if a case went otherwise
than expected: without a sandbox each succeeds, inside one none does except the stated gaps of Landlock.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile import enclosure
from hostile.aftermath import TRAPS, spring, wrong
from hostile.cases import CASES, SMALL
from hostile.tables import PAGE, fill
from hostile.trial import objections, opened, run
from hostile.world import Confinement, why_impossible


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--in", dest="confinement", choices=[one.name.lower() for one in Confinement],
                        default="bubblewrap")
    parser.add_argument("--case", default="", metavar="WORD", help="only cases whose name contains it")
    parser.add_argument("--part", choices=("small", "rest"), help="only one case of each kind, or all the others")
    parser.add_argument("--obey", action="store_true",
                        help="have the agent run the scripts on standard input, as JSON lines [SCRIPT, SECONDS]")
    parser.add_argument("--output", action="store_true", help="print what each case printed")
    parser.add_argument("--traps", action="store_true", help="what agents leave behind, rather than what they do")
    parser.add_argument("--tables", action="store_true", help="write the tables of docs/security.md, and try nothing")
    given = parser.parse_args()
    if given.tables:
        PAGE.write_text(fill(PAGE.read_text()))
        return 0
    confinement = Confinement[given.confinement.upper()]
    enclosure.enter(as_container=confinement is Confinement.NESTED)
    if reason := why_impossible(confinement):
        print(f"not tried: {reason}", file=sys.stderr)
        return 1
    if given.obey:
        return obey(confinement)
    if given.traps:
        return spring_traps(confinement, given.case)
    began, tried = time.monotonic(), []
    for one in run(confinement, [case for case in CASES if given.case in case.name
                                 and (given.part is None or (case.name in SMALL) == (given.part == "small"))]):
        tried.append(one)
        word = {None: "–", True: "SUCCEEDED", False: "refused"}[one.succeeded]
        print(f"{word:10} {one.case.group.name.lower():10} {one.case.name}", flush=True)
        if given.output:
            print(one.output)
    wrong = objections(tried, confinement)
    counts = f"{sum(one.succeeded is True for one in tried)} of {len(tried)} succeeded"
    print(f"{confinement}: {counts}, {len(wrong)} otherwise than they should, {time.monotonic() - began:.0f} s")
    for line in wrong:
        print(f"  {line}")
    return bool(wrong)


def obey(confinement: Confinement) -> int:
    """Have the agent of one world run scripts until the input ends; print as JSON what each printed."""
    with opened(confinement, GARRISON_ORDER_SECONDS="200") as world:
        for line in sys.stdin:
            print(json.dumps(world.attack(*json.loads(line))), flush=True)
    return 0


def spring_traps(confinement: Confinement, word: str) -> int:
    """Spring the traps whose name contains a word; print how each went."""
    sprung = []
    for trap, closed in spring(confinement, [trap for trap in TRAPS if word in trap.name]):
        print(f"{'CLOSED' if closed else 'held':10} {trap.name}", flush=True)
        sprung.append((trap, closed))
    objections = wrong(sprung, confinement)
    print("\n".join([f"{confinement}: {len(objections)} otherwise than they should", *objections]))
    return bool(objections)


if __name__ == "__main__":
    sys.exit(main())
