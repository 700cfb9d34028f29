import datetime
import unittest

from ledger.amounts import Amount
from ledger.parser import ParseError, parse

BAKERY = """\
; spring
2024-03-02 * Bakery | bread
    expenses:food     12.40  ; still warm
    assets:cash
"""


class ParseTest(unittest.TestCase):
    def test_transaction(self):
        (bakery,) = parse(BAKERY).transactions
        self.assertEqual(bakery.date, datetime.date(2024, 3, 2))
        self.assertEqual((bakery.payee, bakery.note, bakery.cleared), ("Bakery", "bread", True))
        self.assertEqual(bakery.line, 2)

    def test_missing_amount_takes_the_rest(self):
        (bakery,) = parse(BAKERY).transactions
        self.assertEqual([each.amount for each in bakery.postings], [Amount(1240), Amount(-1240)])

    def test_paragraphs(self):
        self.assertEqual(len(parse(BAKERY + "\n\n" + BAKERY).transactions), 2)
        self.assertEqual(parse("; nothing\n\n").transactions, [])

    def test_comment_does_not_end_a_transaction(self):
        text = BAKERY.replace("    assets", "    ; paid in coins\n    assets")
        self.assertEqual(len(parse(text).transactions), 1)


class ParseErrorTest(unittest.TestCase):
    def assert_error(self, text, line, words):
        with self.assertRaises(ParseError) as caught:
            parse(text)
        self.assertEqual(caught.exception.line, line)
        self.assertIn(words, str(caught.exception))

    def test_heading(self):
        self.assert_error("Bakery\n  a  1\n  b\n", 1, "expected a date")
        self.assert_error("2024-02-30 Bakery\n  a  1\n  b\n", 1, "day")

    def test_posting(self):
        self.assert_error("2024-03-02 Bakery\n  a  one\n  b\n", 2, "not an amount: 'one'")
        self.assert_error("2024-03-02 Bakery\n  a  1\nb\n", 3, "indented")

    def test_balance(self):
        self.assert_error("2024-03-02 Bakery\n  a  3\n  b  -2\n", 1, "1.00 is left over")
        self.assert_error("2024-03-02 Bakery\n  a\n  b\n", 1, "at most one")
        self.assert_error("2024-03-02 Bakery\n  a  0\n", 1, "two postings")
