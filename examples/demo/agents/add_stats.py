"""A command that counts what is in the journal. It touches the same places as add_csv_export, which lands first."""

from __future__ import annotations

import sys

from steps import Create, Edit, Step, run

STATS = '''\
"""What is in a journal, counted."""

from __future__ import annotations

from ledger.model import Journal
from ledger.report import table


def stats_report(journal: Journal) -> str:
    """One line a figure."""
    days = sorted(each.date for each in journal.transactions)
    counts = {
        "transactions": len(journal.transactions),
        "cleared": sum(each.cleared for each in journal.transactions),
        "postings": sum(len(each.postings) for each in journal.transactions),
        "accounts": len(journal.accounts()),
        "days": (days[-1] - days[0]).days + 1 if days else 0,
    }
    return table([(str(count), name) for name, count in counts.items()])
'''

TESTS = '''\
import contextlib
import io
import unittest
from pathlib import Path

from ledger.cli import main
from ledger.parser import parse
from ledger.stats import stats_report

SAMPLE = Path(__file__).resolve().parent.parent / "sample.journal"


class StatsTest(unittest.TestCase):
    def test_empty(self) -> None:
        self.assertEqual({line.split()[0] for line in stats_report(parse("")).splitlines()}, {"0"})

    def test_command(self) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["-f", str(SAMPLE), "stats"]), 0)
        counts = dict(reversed(line.split()) for line in out.getvalue().splitlines())
        self.assertEqual(counts, {"transactions": "5", "cleared": "4", "postings": "12", "accounts": "7", "days": "15"})
'''

STEPS = [
    Step("Count what is in a journal", [Create("ledger/stats.py", STATS)]),
    Step(
        "Command stats",
        [
            Edit(
                "ledger/cli.py",
                "from ledger.report import balance_report, register_report\n",
                "from ledger.report import balance_report, register_report\nfrom ledger.stats import stats_report\n",
            ),
            Edit(
                "ledger/cli.py",
                "    check.set_defaults(run=run_check)\n",
                "    check.set_defaults(run=run_check)\n\n"
                '    stats = commands.add_parser("stats", help="what is in the journal, counted")\n'
                "    stats.set_defaults(run=run_stats)\n",
            ),
            Edit(
                "ledger/cli.py",
                "def read_text(",
                "def run_stats(journal: Journal, _options: argparse.Namespace) -> str:\n"
                '    """`ledger stats`."""\n'
                "    return stats_report(journal)\n\n\n"
                "def read_text(",
            ),
        ],
    ),
    Step(
        "Test the figures",
        [
            Create("tests/test_stats.py", TESTS),
            Edit(
                "README.md",
                "python3 -m ledger -f sample.journal check\n",
                "python3 -m ledger -f sample.journal check\npython3 -m ledger -f sample.journal stats\n",
            ),
        ],
    ),
]

if __name__ == "__main__":
    sys.exit(run("add_stats", STEPS, sys.argv[1:]))
