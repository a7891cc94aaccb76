"""The rig appears whole or is begun anew, and says why it cannot be made."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import sglang_rig


class SglangRig(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        requirements = self.root / "requirements.txt"
        requirements.write_text("# complete\nsglang==1.2\ntorch==3\n")
        tests = self.root / "develop.txt"
        tests.write_text("pytest==9\n")
        for name, value in (("ROOT", self.root), ("REQUIREMENTS", requirements), ("TEST_REQUIREMENTS", tests)):
            patch = mock.patch.object(sglang_rig, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def make(self, status: int = 0) -> list[list[str]]:
        """The commands that making it runs, each of which ends with `status`."""
        commands: list[list[str]] = []
        original = subprocess.run

        def run(command: list[str], **more: object) -> object:
            if "--version" in command:
                return original(command, **more)
            commands.append(command)
            (self.root / ".venv-sglang-1.2" / "bin").mkdir(parents=True, exist_ok=True)
            return mock.Mock(returncode=status)

        with mock.patch.object(subprocess, "run", run), mock.patch("builtins.print"):
            sglang_rig.make()
        return commands

    def test_a_complete_environment_is_left_alone_and_another_one_is_begun_anew(self):
        commands = self.make()
        self.assertEqual(commands[0][1:3], ["-m", "venv"])
        self.assertIn("torch==3", commands[1], "torch alone, with what it depends on")
        self.assertNotIn("--no-deps", commands[1])
        self.assertIn("--no-deps", commands[2])
        self.assertEqual(self.make(), [])
        rest = self.root / ".venv-sglang-1.2" / "rest"
        rest.write_text("of before")
        sglang_rig.TEST_REQUIREMENTS.write_text("pytest==10\n")
        self.assertEqual(len(self.make()), len(commands))
        self.assertFalse(rest.exists())

    def test_one_that_was_not_finished_is_begun_anew(self):
        with self.assertRaisesRegex(SystemExit, "making the environment: exit status 2"):
            self.make(status=2)
        self.assertFalse(sglang_rig.complete(sglang_rig.folder()))
        self.assertEqual(len(self.make()), 4)

    def test_no_end_is_a_failure_too(self):
        late = mock.Mock(side_effect=subprocess.TimeoutExpired("pip", 1))
        with mock.patch.object(subprocess, "run", late), self.assertRaisesRegex(SystemExit, "installing: no end"):
            sglang_rig.run("installing", ["pip"], 1)

    def test_what_a_process_needs(self):
        with mock.patch.dict(os.environ, {"PYTHONPATH": "/own"}):
            values = sglang_rig.environment()
        self.assertEqual(values["PYTHONPATH"], f"{sglang_rig.SHIMS}:/own")
        self.assertEqual(values["TORCH_EXTENSIONS_DIR"], f"{self.root}/.venv-sglang-1.2/extensions")

    def test_a_list_without_the_engine_is_no_list(self):
        sglang_rig.REQUIREMENTS.write_text("torch==3\n")
        with self.assertRaisesRegex(SystemExit, "no line for sglang"):
            sglang_rig.folder()


if __name__ == "__main__":
    unittest.main()
