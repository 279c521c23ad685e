"""The examples of deploy/models with their jobs of deploy/jobs, small: exported, trained, killed, planned anew, on fake
GPUs.

Runs in the environment of deploy/setup.sh --with-tests.
"""
import contextlib
import io
import json
import math
import pathlib
import shutil
import sys
import unittest
from unittest import mock

import harness
import standing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy" / "models"))
import examples  # noqa: E402

DEVICES = "sim*2:mem=512MiB"
PACED = "sim*2:mem=512MiB,flops=8M"


class ExamplesTest(standing.Standing):
    """Folders as in the repository: jobs name models and results by paths beside their own."""

    def export(self, name):
        models, jobs = self.dir / "build" / "models", self.dir / "deploy" / "jobs"
        models.mkdir(parents=True, exist_ok=True)
        jobs.mkdir(parents=True, exist_ok=True)
        command = [examples.__file__, name, "--tiny", "--samples", "32", "--out", str(models / name)]
        # Not in a process of its own, which would have to load PyTorch.
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(io.StringIO()) as printed:
            examples.main()
        self.assertIn("as eager PyTorch", printed.getvalue())
        return pathlib.Path(shutil.copy(ROOT / "deploy" / "jobs" / f"{name}.yaml", jobs))

    def train(self, job, devices, *args, env=None):
        out = self.dir / "build" / job.stem
        shutil.rmtree(out, ignore_errors=True)
        with mock.patch.dict(self.env, env or {}):
            self.run_standing(job, devices, "--no-calibrate", *args)
        return harness.losses(out), harness.weights_digest(out / "final")

    def test_each_trains_by_its_job_and_with_the_same_bits_on_fake_gpus(self):
        gpus = "cuda:0,mem=512MiB;cuda:1,mem=512MiB"
        for name in examples.EXAMPLES:
            with self.subTest(name):
                job = self.export(name)
                losses, weights = self.train(job, DEVICES, "--set", "max_steps=3")
                self.assertEqual(len(losses), 3)
                self.assertTrue(all(0 < loss < 100 and math.isfinite(loss) for loss in losses), losses)
                if (harness.BUILD / "fake_cuda").exists():
                    found = self.train(job, gpus, "--set", "max_steps=3", env=harness.fake_gpus(self.random.randrange(999)))
                    self.assertEqual(found, (losses, weights))

    def test_every_process_may_die_and_a_device_may_go(self):
        job = self.export("sequential")
        expected = self.train(job, DEVICES)
        shutil.rmtree(self.dir / "build" / "sequential")
        run = self.start("run", job, "--devices", PACED, "--no-calibrate", "--set", "save_steps=2")
        out = self.dir / "build" / "sequential"
        harness.wait_for(lambda: harness.steps_done(out) >= 1, "the first step")
        killed = list(self.processes())
        self.random.shuffle(killed)
        self.kill_one_by_one(run, out, killed)
        self.kill_all(run)
        self.wait_run_folder_gone()
        self.harmony("run", job, "--devices", "sim:mem=512MiB", "--no-calibrate", "--set", "save_steps=2")
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)
        self.assertGreaterEqual({role for role, _ in killed}, {"coordinator", "swapper", "worker"})

    def test_a_plan_that_a_wrong_profile_made_is_changed_with_the_same_bits(self):
        self.env["XDG_CACHE_HOME"] = str(self.dir / "cache")
        job = self.export("sequential")
        short = ("--set", "max_steps=20")
        expected = self.train(job, DEVICES, *short)
        devices = [f"sim:mem=8MiB,flops=20M,h2d={rate}KB/s,d2h={rate}KB/s,p2p={rate}KB/s" for rate in (4000, 200)]
        self.harmony("profile", job, "--quick", "--devices", ";".join(devices), "-o", self.dir / "P.json")
        wrong = json.loads((self.dir / "P.json").read_text())
        harness.give_links_of_the_first(wrong)
        (self.dir / "P.json").write_text(json.dumps(wrong))
        out = self.dir / "build" / "sequential"
        shutil.rmtree(out)
        done = self.harmony("run", job, "--devices", ";".join(devices), "--profile", self.dir / "P.json",
                            "--set", "replan=auto", *short)
        self.assertIn("replan: going on with the other plan after step", done.stdout + done.stderr)
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
