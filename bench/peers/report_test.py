"""Tests of the rows and tables: medians, who is first, and that a peer without a value keeps its cell."""

import unittest

import report
from report import CEILING, Cell, Record, Row, RowKind

FAST = RowKind("A", "load", "GB/s", "higher", "load")
SLOW = RowKind("A", "wait", "ms", "lower", "wait")
SHOWN = RowKind("A", "threads", "threads", "", "threads")


def row_of(kind, **medians):
    return Row(
        kind, {peer: Cell([value]) if value is not None else Cell(why="broken") for peer, value in medians.items()}
    )


class Rows(unittest.TestCase):
    def test_a_cell_is_the_median_of_the_passes(self):
        records = [Record("load", "orbitkv", number, value) for number, value in enumerate((5.0, 1.0, 3.0))]
        (row,) = report.rows([FAST], records, ["orbitkv"], {})
        self.assertEqual(row.cells["orbitkv"].median, 3.0)
        self.assertEqual(row.cells["orbitkv"].values, [5.0, 1.0, 3.0])

    def test_a_peer_that_is_not_run_keeps_its_cell_with_the_reason(self):
        records = [Record("load", "orbitkv", 0, 1.0)]
        (row,) = report.rows([FAST], records, ["other", "orbitkv"], {"other": "no wheel"})
        self.assertIsNone(row.cells["other"].median)
        self.assertEqual(row.cells["other"].why, "not run: no wheel")

    def test_a_peer_without_a_record_is_said_to_be_not_measured(self):
        (row,) = report.rows([FAST], [Record("load", "orbitkv", 0, 1.0)], ["other", "orbitkv"], {})
        self.assertEqual(row.cells["other"].why, "not measured")

    def test_a_failed_pass_leaves_the_values_of_the_others_and_its_reason(self):
        records = [Record("load", "other", 0, 2.0), Record("load", "other", 1, None, "failed: timeout")]
        (row,) = report.rows([FAST], records, ["other"], {})
        self.assertEqual((row.cells["other"].values, row.cells["other"].why), ([2.0], "failed: timeout"))

    def test_a_remark_on_a_value_is_kept(self):
        records = [Record("load", "other", 0, 2.0, "computed"), Record("load", "other", 1, 3.0)]
        (row,) = report.rows([FAST], records, ["other"], {})
        self.assertEqual((row.cells["other"].values, row.cells["other"].why), ([2.0, 3.0], "computed"))

    def test_a_median_is_a_bound_when_it_comes_from_passes_that_were_given_up(self):
        for values, bound in (((9.0,), True), ((1.0, 2.0, 9.0), False), ((1.0, 9.0, 9.0), True), ((1.0, 9.0), True)):
            records = [Record("wait", "other", n, value, at_least=value == 9) for n, value in enumerate(values)]
            (row,) = report.rows([SLOW], records, ["other"], {})
            self.assertEqual(row.cells["other"].at_least, bound, values)

    def test_kinds_without_any_record_make_no_row(self):
        self.assertEqual(report.rows([SLOW], [Record("load", "orbitkv", 0, 1.0)], ["orbitkv"], {}), [])


class First(unittest.TestCase):
    def test_the_largest_is_first_where_higher_is_better(self):
        self.assertEqual(row_of(FAST, a=1.0, b=2.0).first(), ["b"])

    def test_the_smallest_is_first_where_lower_is_better(self):
        self.assertEqual(row_of(SLOW, a=1.0, b=2.0).first(), ["a"])

    def test_nearly_equal_ones_share_the_first_place(self):
        self.assertEqual(row_of(SLOW, a=100.0, b=102.0, c=104.0).first(), ["a", "b"])

    def test_zero_is_first_alone(self):
        self.assertEqual(row_of(SLOW, a=0.0, b=0.01).first(), ["a"])

    def test_nobody_is_first_where_nothing_is_compared(self):
        self.assertEqual(row_of(SHOWN, a=1.0).first(), [])

    def test_one_without_a_value_is_never_first(self):
        self.assertEqual(row_of(SLOW, a=None, b=7.0).first(), ["b"])

    def test_what_was_given_up_is_never_first(self):
        row = Row(SLOW, {"a": Cell([1.0], given_up=[1.0]), "b": Cell([2.0])})
        self.assertEqual(row.first(), ["b"])

    def test_the_ceiling_is_not_compared(self):
        self.assertEqual(row_of(FAST, **{CEILING: 20.0, "a": 2.0}).first(), ["a"])


class Behind(unittest.TestCase):
    def test_a_row_that_another_one_wins_is_listed(self):
        made = [row_of(FAST, orbitkv=1.0, other=2.0), row_of(SLOW, orbitkv=1.0, other=2.0)]
        self.assertEqual(report.behind(made), ["load"])

    def test_a_row_without_a_value_of_ours_is_not(self):
        self.assertEqual(report.behind([row_of(FAST, orbitkv=None, other=2.0)]), [])


class Tables(unittest.TestCase):
    def test_the_first_is_bold_and_a_reason_becomes_a_note(self):
        text = report.suite_table("T", [row_of(FAST, orbitkv=2.0, other=None)], {"orbitkv": "OrbitKV"})
        self.assertIn("|load|GB/s|**2**|- (1)|", text)
        self.assertIn("1. broken", text)
        self.assertIn("|OrbitKV|other|", text)

    def test_a_range_is_given_for_several_passes(self):
        row = Row(SLOW, {"a": Cell([3.0, 1.0, 2.0])})
        self.assertIn("|wait|ms|**2 [1 to 3]**|", report.suite_table("T", [row], {}))

    def test_equal_reasons_share_a_note(self):
        text = report.suite_table("T", [row_of(FAST, a=None, b=None)], {})
        self.assertIn("|load|GB/s|- (1)|- (1)|", text)
        self.assertNotIn("2. ", text)

    def test_a_remark_on_a_value_is_a_note_too(self):
        row = Row(SLOW, {"a": Cell([3.0], "computed")})
        text = report.suite_table("T", [row], {})
        self.assertIn("|wait|ms|**3** (1)|", text)
        self.assertIn("1. computed", text)

    def test_what_was_given_up_is_a_bound_for_people_and_programs(self):
        row = Row(SLOW, {"a": Cell([180_000.0], "gave up", [180_000.0]), "b": Cell([1.0])})
        text = report.suite_table("T", [row], {})
        self.assertIn("|wait|ms|> 180,000 (1)|**1**|", text)
        (made,) = report.as_json([row])
        self.assertEqual(
            made["peers"]["a"], {"median": 180_000, "values": [180_000], "at_least": True, "why": "gave up"}
        )
        self.assertNotIn("at_least", made["peers"]["b"])

    def test_numbers_have_as_many_digits_as_they_deserve(self):
        self.assertEqual([report.number_text(v) for v in (1234.5, 12.345, 1.2345, 2.0)], ["1,234", "12.3", "1.23", "2"])


if __name__ == "__main__":
    unittest.main()
