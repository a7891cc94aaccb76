"""Tests of the process that answers JSON lines: order of the answers, and what else it prints."""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

SCRIPT = """
import os
from harness.json_lines import JsonLines
lines = JsonLines()
print("noise of a library", flush=True)
os.system("echo noise of a process")
lines.serve({"add": lambda a, b: lines.setup["base"] + a + b, "name": lambda: "x"})
print("the end", flush=True)
"""


class Lines(unittest.TestCase):
    def test_the_setup_and_each_command_have_one_answer_and_noise_is_no_answer(self):
        asked = [{"base": 10}, ["add", {"a": 1, "b": 2}], ["name", {}]]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input="".join(json.dumps(line) + "\n" for line in asked),
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            check=True,
        )
        self.assertEqual([json.loads(line) for line in done.stdout.splitlines()], [{"ready": 1}, 13, "x"])
        for noise in ("noise of a library", "noise of a process", "the end"):
            self.assertIn(noise, done.stderr)


if __name__ == "__main__":
    unittest.main()
