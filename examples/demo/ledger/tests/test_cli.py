import contextlib
import io
import unittest
from pathlib import Path

from ledger.cli import main

SAMPLE = str(Path(__file__).resolve().parent.parent / "sample.journal")


def run(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(arguments))
    return code, out.getvalue(), err.getvalue()


class CommandTest(unittest.TestCase):
    def test_check(self):
        self.assertEqual(run("-f", SAMPLE, "check"), (0, "5 transactions balance\n", ""))

    def test_balance(self):
        code, out, _ = run("-f", SAMPLE, "balance")
        self.assertEqual(code, 0)
        self.assertIn("    70.55  expenses:food", out)

    def test_dates(self):
        _, out, _ = run("-f", SAMPLE, "--from", "2024-03-02", "--to", "2024-03-04", "check")
        self.assertEqual(out, "2 transactions balance\n")

    def test_register_and_accounts(self):
        self.assertIn("Landlord", run("-f", SAMPLE, "register", "assets:bank")[1])
        self.assertIn("income:salary\n", run("-f", SAMPLE, "accounts")[1])

    def test_missing_file_is_one_line(self):
        code, out, err = run("-f", "/nowhere.journal", "check")
        self.assertEqual((code, out, err.count("\n")), (1, "", 1))
