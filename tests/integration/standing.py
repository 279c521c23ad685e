"""Processes that stay up for all tests of a class, which send them their jobs one after the other.

Most of what a run of a few steps takes is to load LibTorch into its processes. This is for tests of what jobs compute; how
processes start, die and end is for those that use `run` and `up` themselves.
"""
import json
import pathlib
import subprocess
import tempfile

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

    @classmethod
    def end_all(cls):
        while cls.systems:
            cls.end_system(next(iter(cls.systems)))

    @classmethod
    def end_system(cls, devices):
        done = subprocess.run([harness.HARMONY, "down"], env=cls.systems.pop(devices), text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=cls.limit)
        if done.returncode != 0:
            raise AssertionError(f"harmony down: exit {done.returncode}\n{done.stdout}\n{done.stderr}")

    def system(self, devices):
        """The environment of programs that are to find the processes of these devices."""
        found = self.systems.pop(devices, None)
        if not found:
            if len(self.systems) == KEPT:
                self.end_system(next(iter(self.systems)))
            cls = type(self)
            cls.started += 1
            home = self.systems_dir / str(cls.started)
            runtime = home / "r"
            runtime.mkdir(parents=True, mode=0o700)
            found = dict(self.env, XDG_RUNTIME_DIR=str(runtime), TMPDIR=str(runtime), HOME=str(home),
                         XDG_STATE_HOME=str(home / "s"))
            self.harmony("up", "--detach", "--devices", devices, env=found)
        self.systems[devices] = found
        return found

    def run_standing(self, job, devices, *args):
        """What `harmony run` does, but for starting and ending processes."""
        env = self.system(devices)
        job_id = json.loads(self.harmony("submit", job, *args, "--json", env=env).stdout)["job_id"]
        done = self.harmony("watch", job_id, env=env, check=None)
        if done.returncode != 0:
            logs = self.harmony("logs", job_id, env=env, check=None).stdout
            self.fail(f"{job} on {devices}: exit {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr}\n{logs[-4000:]}"
                      f"\n{self.replay}")
