"""Devices whose workers carry out their copies, in place of the swapper: the bits of the plain in-process trainer, with deaths."""
import unittest

import harness

JOB = {"global_batch_size": 16, "micro_batch_size": 1, "max_grad_norm": 0.5}


class WorkerCopiesTest(harness.Scratch):

    def trained_by_plain(self, **changes):
        job, out = self.job("plain", **JOB, **changes)
        self.plain(job, out)
        return harness.losses(out), harness.weights_digest(out / "final")

    def check(self, out, expected):
        self.assertEqual(harness.losses(out), expected[0], self.replay)
        self.assertEqual(harness.weights_digest(out / "final"), expected[1], self.replay)

    def test_in_a_pipeline_in_data_parallelism_and_beside_the_swapper(self):
        expected = self.trained_by_plain()
        for number, (devices, mode) in enumerate((("sim:mem=8MiB,copies=worker", "auto"),
                                                  ("sim*3:mem=8MiB,copies=worker", "harmony-pp"),
                                                  ("sim*2:mem=8MiB,copies=worker", "harmony-dp"),
                                                  ("sim:mem=8MiB sim:mem=8MiB,copies=worker", "harmony-pp"))):
            with self.subTest(devices=devices, mode=mode):
                job, out = self.job(f"copies-{number}", mode=mode, **JOB)
                self.harmony("run", job, "--devices", devices)
                self.check(out, expected)

    def test_every_process_may_die(self):
        print(f"\n{self.replay}")
        steps = 300  # enough for all deaths to come in time
        expected = self.trained_by_plain(max_steps=steps)
        job, out = self.job("killed", save_steps=20, mode="harmony-pp", max_steps=steps, **JOB)
        run = self.start("run", job, "--devices", "sim*3:mem=8MiB,copies=worker")
        harness.wait_for(lambda: harness.steps_done(out) > 0 or run.poll() is not None, "a step")
        whom = sorted(self.processes())
        self.random.shuffle(whom)
        self.kill_one_by_one(run, out, whom)
        logs = {path.name: path.read_text() for path in self.runtime_files(".log")}
        self.assertIn("moved so far", logs["worker-1.log"])
        self.assertNotIn("moved so far", logs["swapper.log"])
        self.wait_exit(run, 0)
        self.check(out, expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
