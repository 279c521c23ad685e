"""The package as a whole: its types, and that it can be installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2] / "client" / "export"


class Package(unittest.TestCase):
    def test_types(self) -> None:
        if importlib.util.find_spec("mypy") is None:
            self.skipTest("mypy is not installed: tests/export/requirements.txt names it")
        done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", PROJECT / "pyproject.toml", "--cache-dir",
                               os.devnull, PROJECT / "harmony_export"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_installed(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="harmony-export-test-"))
        self.addCleanup(shutil.rmtree, folder)
        # Building leaves files beside the sources.
        shutil.copytree(PROJECT, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
        target = folder / "target"
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                               "--no-index", "--no-deps", "--no-build-isolation", "--target", target, folder / "source"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        files = {path.name for path in (PROJECT / "harmony_export").iterdir() if path.is_file()}
        self.assertEqual({path.name for path in (target / "harmony_export").iterdir() if path.is_file()}, files)
        done = subprocess.run([sys.executable, target / "bin" / "harmony-export", "--help"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(target)}, cwd=folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("usage: harmony-export", done.stdout)


if __name__ == "__main__":
    unittest.main()
