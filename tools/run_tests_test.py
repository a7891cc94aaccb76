"""The test runner counts what ran, and says failed whenever it cannot tell."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import run_tests
import sglang_rig
import vllm_rig
from run_tests import Outcome, Step
from vllm_rig import VARIANTS

JUNIT = """<testsuite tests="4"><testcase name="a"/><testcase name="b"><failure message="no"/></testcase>
<testcase name="c"><error/></testcase><testcase name="d"><skipped/></testcase></testsuite>"""


class RunTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.report = self.folder / "report.xml"

    def judge(self, status: int, text: str | None) -> Outcome:
        if text is not None:
            self.report.write_text(text)
        outcome = Outcome()
        good = run_tests.judge(Step("s", [], self.report), status, outcome)
        self.assertEqual(good, outcome.failed == 0)
        return outcome

    def test_counts(self):
        outcome = self.judge(1, JUNIT)
        self.assertEqual((outcome.passed, outcome.failed), (1, 2))
        self.assertEqual(outcome.notes, ["s: 1 skipped"])

    def test_no_test_ran(self):
        for text in (None, "<testsuite/>", "damaged"):
            self.assertEqual(self.judge(0, text).failed, 1)

    def test_bad_status_with_good_counts(self):
        self.assertEqual(self.judge(3, '<testsuite><testcase name="a"/></testsuite>').failed, 1)

    def test_step_without_report(self):
        outcome = Outcome()
        self.assertTrue(run_tests.judge(Step("s", []), 0, outcome))
        self.assertFalse(run_tests.judge(Step("s", []), 1, outcome))
        self.assertEqual((outcome.passed, outcome.failed), (0, 1))

    def test_run_step(self):
        log = self.folder / "log"
        self.assertEqual(run_tests.run_step(Step("s", [sys.executable, "-c", "print(6 * 7); exit(5)"]), log), 5)
        self.assertEqual(run_tests.last_line(log), "42")
        self.assertEqual(run_tests.run_step(Step("s", [str(self.folder / "nothing")]), log), 127)

    def test_every_vllm_is_tested_whole_in_the_long_form_and_in_part_in_the_short_one(self):
        for long in (False, True):
            steps = {step.name: step for step in run_tests.vllm_steps(long)}
            self.assertEqual(list(steps)[2:], ["make the other vLLMs", *(f"vllm {name}" for name in VARIANTS)])
            self.assertEqual("-m" in steps["vllm"].command[3:], not long)
            for name in VARIANTS:
                step = steps[f"vllm {name}"]
                self.assertEqual(step.environment[vllm_rig.SWITCH], name)
                self.assertEqual(step.command[-1], "tests/vllm" if long else "each_vllm and not long")

    def test_sglang_is_tested_in_its_own_environment(self):
        for long in (False, True):
            make, install, step = run_tests.sglang_steps(long)
            self.assertEqual((make.command[1], install.command), ("tools/sglang_rig.py", ["tools/install-python"]))
            self.assertEqual(step.command[0], str(sglang_rig.python()))
            self.assertEqual("-m" in step.command[3:], not long)

    def test_without_the_other_vllms_the_group_fails(self):
        ending = [sys.executable, "-c", "import sys; sys.exit('no download')"]
        made = [Step("make the other vLLMs", ending), Step("vllm other", ending, self.report)]
        with (
            mock.patch.object(run_tests, "GROUPS", {"vllm": lambda _long: made}),
            mock.patch.object(run_tests, "OUT", self.folder),
            mock.patch.object(run_tests, "ROOT", self.folder),
            mock.patch("builtins.print"),
        ):
            outcome = run_tests.run_group("vllm", True)
        self.assertEqual((outcome.passed, outcome.failed), (0, 2))
        self.assertEqual(outcome.notes, ["make the other vLLMs: exit status 1", "vllm other: no test ran"])


if __name__ == "__main__":
    unittest.main()
