"""Processes that stay up for all tests of a class, which send them their jobs one after the other.

Most of what a run of a few steps takes is to load LibTorch into its processes. This is for tests of what jobs compute; how
processes start, die and end is for those that use `run` and `up` themselves.
"""
import json
import os
import pathlib
import random
import subprocess
import tempfile
from unittest import mock

import harness

KEPT = 6  # as many systems at once; the one that was used least recently makes room


class Standing(harness.Scratch):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        holder = tempfile.TemporaryDirectory(prefix="hm-")
        cls.addClassCleanup(holder.cleanup)
        cls.systems_dir, cls.systems, cls.started = pathlib.Path(holder.name), {}, 0
        cls.addClassCleanup(cls.end_all)
        # One for all tests, whose processes are the same: what one of them prints replays it.
        cls.seed = os.environ.get("HARMONY_SEED", str(random.SystemRandom().randrange(1 << 31)))

    def setUp(self):
        with mock.patch.dict(os.environ, HARMONY_SEED=self.seed):
            super().setUp()

    @classmethod
    def end_all(cls):
        errors = []
        while cls.systems:
            try:
                cls.end_system(next(iter(cls.systems)))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                errors.append(str(error))
        if errors:
            raise AssertionError("\n".join(errors))

    @classmethod
    def end_system(cls, key):
        done = subprocess.run([harness.HARMONY, "down"], env=cls.systems.pop(key), text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=cls.limit)
        if done.returncode != 0:
            raise AssertionError(f"harmony down: exit {done.returncode}\n{done.stdout}\n{done.stderr}")

    def system(self, devices):
        """The environment of programs that are to find the processes of these devices, on GPUs as in self.env."""
        key = (devices, self.env.get("FAKE_CUDA"))
        found = self.systems.pop(key, None)
        if not found:
            if len(self.systems) == KEPT:
                self.end_system(next(iter(self.systems)))
            cls = type(self)
            cls.started += 1
            home = self.systems_dir / str(cls.started)
            runtime = home / "r"
            runtime.mkdir(parents=True, mode=0o700)
            found = dict(self.env, XDG_RUNTIME_DIR=str(runtime), TMPDIR=str(runtime), HOME=str(home),
                         XDG_STATE_HOME=str(home / "s"), XDG_CACHE_HOME=str(home / "cache"))
            self.harmony("up", "--detach", "--devices", devices, env=found)
        self.systems[key] = found
        return found

    def logs(self):
        paths = sorted(self.systems_dir.rglob("*.log"))
        return "\n".join([super().logs()] + [f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in paths])

    def run_standing(self, job, devices, *args):
        """What `harmony run` does, but for starting and ending processes."""
        env = self.system(devices)
        job_id = json.loads(self.harmony("submit", job, *args, "--json", env=env).stdout)["job_id"]
        done = self.harmony("watch", job_id, env=env, check=None)
        if done.returncode != 0:
            logs = self.harmony("logs", job_id, env=env, check=None).stdout
            self.fail(f"{job} on {devices}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr}\n{logs[-4000:]}"
                      f"\n{self.logs()}\n{self.replay}")
