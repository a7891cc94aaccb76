"""The rig keeps what runs on a CPU, appears whole or not at all, and says why it cannot be made."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path
from unittest import mock

import vllm_rig
from vllm_rig import OWN, VARIANTS


class VllmRig(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        library = self.root / "cpu" / "_C.abi3.so"
        library.parent.mkdir()
        library.write_text("native")
        requirements = self.root / "requirements.txt"
        requirements.write_text("vllm==1\n")
        for name, value in (
            ("ROOT", self.root),
            ("REQUIREMENTS", requirements),
            ("native_code", lambda: [library]),
            ("metadata", mock.Mock(version=lambda _name: "0.32.0")),
        ):
            patch = mock.patch.object(vllm_rig, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def wheel(self, target: Path) -> list[Path]:
        target.mkdir()
        path = target / "vllm-1-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in ("vllm/a.py", "vllm/b.json", "vllm/_C.abi3.so", "vllm/cuda.so", "vllm-1.dist-info/METADATA"):
                archive.writestr(name, "of the wheel")
        return [path]

    def test_a_complete_folder_is_left_alone(self):
        with mock.patch.object(vllm_rig, "download", self.wheel), mock.patch("builtins.print"):
            made = vllm_rig.make("1")
        self.assertEqual(
            sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()),
            [".orbitkv-rig", "vllm-1.dist-info/METADATA", "vllm/_C.abi3.so", "vllm/a.py", "vllm/b.json"],
        )
        self.assertEqual((made / "vllm/_C.abi3.so").read_text(), "native")
        with mock.patch.object(vllm_rig, "download", side_effect=AssertionError):
            self.assertEqual(vllm_rig.make("1"), made)
        vllm_rig.REQUIREMENTS.write_text("vllm==1.1\n")
        self.assertFalse(vllm_rig.complete(made, "1"))

    def test_a_failed_download_says_so_and_leaves_nothing(self):
        for outcome in (
            {"return_value": mock.Mock(returncode=1)},
            {"side_effect": subprocess.TimeoutExpired("pip", 1)},
        ):
            before = sorted(self.root.iterdir())
            with (
                mock.patch.object(subprocess, "run", **outcome),
                mock.patch("builtins.print"),
                self.assertRaisesRegex(SystemExit, "could not be downloaded"),
            ):
                vllm_rig.make("1")
            self.assertEqual(sorted(self.root.iterdir()), before)

    def test_what_a_process_needs(self):
        with mock.patch.dict(os.environ, {"PYTHONPATH": "/own"}):
            self.assertEqual(vllm_rig.environment(OWN), {"VLLM_USE_V2_MODEL_RUNNER": "0"})
            values = vllm_rig.environment(VARIANTS["0.33-v2"])
        self.assertEqual(values["PYTHONPATH"], f"{self.root}/.venv-vllm-0.33.0:/own")
        self.assertEqual(values["PYTHONDONTWRITEBYTECODE"], "", "vLLM's source is not compiled in every process")
        self.assertEqual((values["VLLM_USE_V2_MODEL_RUNNER"], values["TRITON_INTERPRET"]), ("1", "1"))

    def test_one_that_is_not_made_or_of_another_time_is_not_entered(self):
        modules = {name: module for name, module in sys.modules.items() if name != "vllm"}
        with (
            mock.patch.dict(sys.modules, modules, clear=True),
            mock.patch.dict(os.environ),
            mock.patch.object(sys, "path", list(sys.path)),
            mock.patch.object(sys, "dont_write_bytecode", True),
        ):
            with self.assertRaisesRegex(SystemExit, r"0\.33\.0 is missing"):
                vllm_rig.enter(VARIANTS["0.33-v1"])
            with mock.patch.object(vllm_rig, "download", self.wheel), mock.patch("builtins.print"):
                made = vllm_rig.make("0.33.0")
            vllm_rig.enter(VARIANTS["0.33-v1"])
            self.assertEqual(sys.path[0], str(made))
            self.assertFalse(sys.dont_write_bytecode)

    def test_a_name_that_nobody_knows_is_refused(self):
        with mock.patch.dict(os.environ, {vllm_rig.SWITCH: "0.34"}), self.assertRaisesRegex(SystemExit, r"0\.33-v1"):
            vllm_rig.chosen()
        with mock.patch.dict(os.environ, {vllm_rig.SWITCH: ""}):
            self.assertEqual(vllm_rig.chosen(), OWN)


if __name__ == "__main__":
    unittest.main()
