"""`harmony plan --compare`: a job's plan beside what people do today, in one table, whatever fits or does not."""
import json
import unittest

import harness

DEVICES = "sim*2:mem=8MiB,flops=1G,h2d=100MB/s,d2h=100MB/s,p2p=100MB/s,host=100MB/s"
OTHERS = ["dp-swap", "dp-swap, recompute", "gpipe-swap", "gpipe-swap, recompute", "1f1b-swap", "1f1b-swap, recompute",
          "1f1b-flush-swap", "1f1b-flush-swap, recompute", "zero-offload", "zero-offload, delayed update", "zero-infinity",
          "super-offload", "fsdp-offload"]
DATA_PARALLEL = {"dp-swap", "dp-swap, recompute", "zero-offload", "zero-offload, delayed update", "zero-infinity",
                 "super-offload", "fsdp-offload"}


class CompareTest(harness.Scratch):

    def compare(self, job, *args, devices=DEVICES, **kw):
        return self.harmony("plan", job, "--devices", devices, "--compare", *args, **kw)

    def rows(self, job, *args, **kw):
        answer = json.loads(self.compare(job, "--json", *args, **kw).stdout)
        rows = {row["name"]: row for row in answer["rows"]}
        self.assertEqual(list(rows)[1:], OTHERS)
        return answer, rows

    def test_every_system_has_a_row_with_its_figures(self):
        job, out = self.job("job")
        answer, rows = self.rows(job)
        self.assertEqual((answer["global_batch_size"], answer["sequence_length"]), (8, 32))
        self.assertIn("modelled", answer["basis"])
        ours = answer["rows"][0]
        planned = json.loads(self.harmony("plan", job, "--devices", DEVICES, "--json").stdout)["time_estimate"]
        self.assertAlmostEqual(ours["step_seconds"], planned["step_seconds"], delta=0.02 * planned["step_seconds"])
        for name, row in rows.items():
            self.assertTrue(row["fits"], row)
            self.assertGreater(row["step_seconds"], 0)
            self.assertAlmostEqual(row["tokens_per_second"] * row["step_seconds"], 8 * 32, delta=0.01)
            self.assertAlmostEqual(row["harmony_speedup"], row["step_seconds"] / ours["step_seconds"], places=6)
            self.assertEqual(sum(row["bytes"].values()), row["host_link_bytes"], name)
            self.assertLessEqual(row["peak_device_bytes"], 8 << 20, name)
            self.assertTrue(0 < row["busiest_share"] <= 1.0001, row)
        text = self.compare(job).stdout
        for name in rows:
            self.assertIn(name + " ", text)
        self.assertIn("weights are one step old", text)
        self.assertFalse(out.exists(), "nothing was run")

    def test_the_same_twice(self):
        job, _ = self.job("job")
        self.assertEqual(self.compare(job, "--json").stdout, self.compare(job, "--json").stdout)

    def test_a_plan_that_is_given_is_the_one_compared(self):
        job, _ = self.job("job")
        plan = json.loads(self.harmony("plan", job, "--devices", DEVICES, "--json",
                                       "--set", "layer_groups=[1,1,1,1,1,1]").stdout)
        (self.dir / "plan.json").write_text(json.dumps(plan["plan"]))
        answer, _ = self.rows(job, "--plan", self.dir / "plan.json")
        self.assertAlmostEqual(answer["rows"][0]["step_seconds"], plan["time_estimate"]["step_seconds"], places=6)

    def test_a_plan_of_no_mode_is_named_as_ours(self):
        job, _ = self.job("job")
        plan = json.loads(self.harmony("plan", job, "--devices", DEVICES, "--json", "--set", "mode=harmony-dp").stdout)["plan"]
        plan["backward_groups"][-1]["devices"] = [0]
        (self.dir / "plan.json").write_text(json.dumps(plan))
        answer, _ = self.rows(job, "--plan", self.dir / "plan.json")
        self.assertEqual(answer["rows"][0]["name"], "harmony, mixed")

    def test_what_does_not_divide_is_said_in_its_row(self):
        job, _ = self.job("odd", global_batch_size=7, micro_batch_size=1)
        _, rows = self.rows(job)
        self.assertTrue(rows["harmony-pp"]["fits"])
        for name in OTHERS:
            self.assertEqual(rows[name]["fits"], name not in DATA_PARALLEL, name)
        self.assertEqual(rows["dp-swap"]["obstacle"], "batch")
        self.assertIn("dp-swap                        does not run: a batch of 7 does not divide over 2 devices",
                      self.compare(job).stdout)
        job, _ = self.job("micro", micro_batch_size=8)  # of the whole batch; a device's share is 4
        _, rows = self.rows(job)
        self.assertIn("share of 4 does not divide into microbatches of 8", rows["zero-infinity"]["reason"])

    def test_what_does_not_fit_says_by_how_much_and_where(self):
        # A layer's weights are 0.8 MB, and all 3.2 MB.
        self.model = self.make_model("wide", dict(harness.TINY_GPT2, n_embd=128))
        job, _ = self.job("wide")
        tiny = DEVICES.replace("8MiB", "1MiB")  # less than a layer with its gradient takes
        answer, rows = self.rows(job, devices=tiny)
        self.assertEqual(answer["basis"], "")
        self.assertFalse(rows["harmony"]["fits"])
        self.assertIn("missing", rows["harmony"]["reason"])
        for name in OTHERS:
            self.assertEqual(rows[name]["obstacle"], "device_memory", name)
            self.assertGreater(rows[name]["missing_bytes"], 0, name)
            self.assertRegex(rows[name]["reason"], r"device \d lacks .* needs .* of 1.00 MiB")
        self.assertIn("does not fit", self.compare(job, devices=tiny).stdout)
        # Weights of all layers do not fit: who streams or swaps them goes on.
        _, rows = self.rows(job, devices=DEVICES.replace("8MiB", "7MB"))
        self.assertEqual(rows["zero-offload"].get("obstacle"), "device_memory", rows["zero-offload"])
        self.assertTrue(rows["zero-infinity"]["fits"], rows["zero-infinity"])
        self.assertTrue(next(iter(rows.values()))["fits"], rows)

    def test_host_memory_counts(self):
        self.model = self.make_model("wide", dict(harness.TINY_GPT2, n_embd=128))
        job, _ = self.job("wide")
        roomy = DEVICES.replace("8MiB", "64MiB")
        _, rows = self.rows(job, "--host-memory", "4MiB", devices=roomy)  # weights, gradients and moments are 13 MB
        self.assertEqual(rows["zero-offload"]["obstacle"], "host_memory")
        self.assertIn("the host lacks", rows["zero-offload"]["reason"])
        self.assertEqual(rows["harmony"]["obstacle"], "host_memory")

    def test_bad_input(self):
        job, _ = self.job("job")
        cases = [
            ((job, "--compare", "--explain", "--devices", DEVICES), "--explain"),
            ((job, "--compare", "--devices", "sim*2:mem=lots"), "lots"),
            ((self.dir / "none.yaml", "--compare", "--devices", DEVICES), "none.yaml"),
            ((job, "--compare", "--devices", DEVICES, "--set", "learning_rte=1"), "learning_rate"),
            ((job, "--compare", "--devices", DEVICES, "--set", "micro_batch_size=3"), "micro_batch_size"),
        ]
        for args, word in cases:
            with self.subTest(word):
                done = self.harmony("plan", *args, check=2)
                self.assertIn(word, done.stderr)
                self.assertEqual(done.stdout, "")
        done = self.compare(job, "--json", "--set", "learning_rte=1", check=2)
        self.assertIn("learning_rate", json.loads(done.stderr)["error"]["message"])

    def test_a_coordinator_that_is_up_is_not_asked(self):
        job, _ = self.job("job")
        self.up("--devices", "sim*2:mem=8MiB")
        done = self.harmony("plan", job, "--compare", check=None)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--devices", done.stderr)
        self.assertIn("zero-infinity", self.compare(job).stdout)

    def test_a_missing_program_is_named(self):
        job, _ = self.job("job")
        done = self.harmony("--bin-dir", self.dir, "plan", job, "--devices", DEVICES, "--compare", check=None)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("harmony-compare", done.stderr)


if __name__ == "__main__":
    unittest.main()
