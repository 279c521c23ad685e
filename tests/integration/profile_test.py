"""`harmony profile` measures a tiny model; plans and runs go by what it wrote."""
import json
import math
import pathlib
import unittest

import harness

DEVICES = "sim*2:mem=8MiB"


class ProfileTest(harness.Scratch):

    def setUp(self):
        super().setUp()
        self.env["XDG_CACHE_HOME"] = str(self.dir / "cache")

    def profile(self, job, *args, name="P.json", **kw):
        done = self.harmony("profile", job, "--devices", DEVICES, "-o", self.dir / name, *args, **kw)
        return done, json.loads((self.dir / name).read_text()) if done.returncode == 0 else None

    def test_every_distinct_layer_link_and_the_host_are_measured(self):
        job, _ = self.job("p", micro_batch_size="auto")
        done, p = self.profile(job)
        self.assertIn("measured in", done.stdout)
        self.assertEqual(p["schema"], "harmony-profile/1")
        self.assertEqual(p["model"]["sequence_length"], 32)
        self.assertEqual(p["versions"]["cores"] > 0 and p["versions"]["torch"][:2], "2.")
        self.assertEqual(len(p["devices"]), 2)
        for device in p["devices"]:
            self.assertEqual([(layer["kind"], layer["layers"]) for layer in device["layers"]],
                             [("embedding", [0]), ("block", [1, 2, 3, 4]), ("head", [5])])
            for layer in device["layers"]:
                self.assertEqual([s["samples"] for s in layer["sizes"]], [1, 2, 4, 8])
                for size in layer["sizes"]:
                    for time in (size.get("forward_s"), size["backward_s"]):
                        if time:
                            self.assertTrue(0 < time["least"] <= time["median"] <= time["most"] < 5, time)
            block = device["layers"][1]["sizes"]
            # Eight sequences are more work and more memory than one.
            self.assertGreater(block[3]["backward_s"]["median"], block[0]["backward_s"]["median"])
            self.assertGreater(block[3]["backward_workspace_bytes"], block[0]["backward_workspace_bytes"])
            self.assertGreater(block[0]["activation_bytes"], 0)
            for link in ("h2d", "d2h", "p2p"):
                self.assertGreater(device[link]["together_bytes_per_s"]["median"], 0)
            self.assertGreater(device["together"], 0)
        self.assertGreater(p["host"]["update_bytes_per_s"]["median"], 1e6)
        self.assertEqual(list(self.runtime.rglob("*")), [], "processes leave nothing behind")

    def test_a_second_run_takes_the_cached_profile_and_says_so(self):
        job, _ = self.job("p")
        _, first = self.profile(job, "--quick")
        done, second = self.profile(job, "--quick", name="Q.json")
        self.assertIn("measured before", done.stdout)
        self.assertEqual(first, second)
        done, third = self.profile(job, "--quick", "--recalibrate", name="R.json")
        self.assertIn("measured in", done.stdout)
        self.assertNotEqual(first, third)
        # Another model, sequence length or device is another profile.
        for change in (("--set", "sequence_length=16"), ("--set", "micro_batch_size=4")):
            done, _ = self.profile(job, "--quick", *change, name="S.json")
            self.assertIn("measured in", done.stdout, change)
        # A damaged one is as good as none.
        for cached in (self.dir / "cache").rglob("*.json"):
            cached.write_text(cached.read_text()[:-40])
        done, _ = self.profile(job, "--quick")
        self.assertIn("measured in", done.stdout)
        answer = json.loads(self.profile(job, "--quick", "--json")[0].stdout)
        self.assertTrue(answer["cached"])

    def test_paced_devices_are_measured_at_their_modelled_rates(self):
        job, _ = self.job("p")
        done = self.harmony("profile", job, "--quick", "-o", self.dir / "P.json", "--devices",
                            "sim:mem=8MiB,flops=50M,h2d=20MB/s,d2h=10MB/s,host=10MB/s")
        p = json.loads((self.dir / "P.json").read_text())
        device = p["devices"][0]
        # Never faster than modelled; how much slower depends on what else the machine does.
        for link, rate in (("h2d", 20e6), ("d2h", 10e6)):
            measured = device[link]["alone_bytes_per_s"]["median"] / rate
            self.assertTrue(0.2 < measured < 1.1, done.stdout)
        size = device["layers"][1]["sizes"][0]
        rows, width, tokens = size["samples"] * 32, 32, 32
        modelled = rows * (2 * 12 * width * width + 2 * tokens * width) / 50e6
        self.assertTrue(0.95 < size["forward_s"]["median"] / modelled < 3, done.stdout)
        self.assertTrue(0.95 < size["backward_s"]["median"] / (3 * modelled) < 3, done.stdout)
        self.assertNotIn("p2p", device)
        for rate in ("update_bytes_per_s", "norm_bytes_per_s"):
            self.assertTrue(2e6 < p["host"][rate]["median"] <= 10e6, done.stdout)

    def test_paced_devices_keep_their_pace_whatever_a_profile_says(self):
        devices = "sim:mem=8MiB,flops=200M,h2d=200MB/s,d2h=200MB/s"
        job, out = self.job("p", max_steps=4)
        self.harmony("profile", job, "--quick", "-o", self.dir / "P.json", "--devices", devices)
        p = json.loads((self.dir / "P.json").read_text())
        for layer in p["devices"][0]["layers"]:
            for size in layer["sizes"]:
                for key, value in size.items():
                    if key.endswith("_s") and isinstance(value, dict):
                        size[key] = {k: v / 10 for k, v in value.items()}
        (self.dir / "P.json").write_text(json.dumps(p))
        self.harmony("run", job, "--devices", devices, "--profile", self.dir / "P.json")
        rows, width = harness.BASE_JOB["global_batch_size"] * 32, 32
        least = 3 * 4 * rows * 2 * 12 * width * width / 200e6  # products of four blocks, forward and backward
        for line in harness.read_metrics(out):
            self.assertGreater(line["seconds"], least)

    def test_plans_and_runs_go_by_it_with_the_same_bits(self):
        job, out = self.job("p")
        self.profile(job, "--quick")
        self.harmony("plan", job, "--devices", DEVICES, "--profile", self.dir / "P.json")
        self.harmony("run", job, "--devices", DEVICES, "--profile", self.dir / "P.json")
        expected, reference = self.job("reference")
        self.harmony("run", expected, "--devices", DEVICES)
        self.assertEqual(harness.losses(out), harness.losses(reference))
        self.assertEqual(harness.weights_digest(out / "final"), harness.weights_digest(reference / "final"))

    def test_without_a_profile_speeds_are_calibrated_once(self):
        job, out = self.job("c", micro_batch_size="auto")

        def plan(*args, devices=DEVICES):
            done = self.harmony("plan", job, "--devices", devices, "--json", *args)
            return json.loads(done.stdout), done.stderr

        blind, said = plan("--no-calibrate")
        self.assertIn("guesses", blind["time_estimate"]["basis"])
        self.assertEqual(said, "")
        first, said = plan()
        self.assertIn("measured how fast", said)
        self.assertIn("GFLOP/s (calibrated)", first["time_estimate"]["basis"])
        # The microbatch size is part of what fixes the result.
        self.assertEqual(first["micro_batch_size"], blind["micro_batch_size"])
        # Other memory, the same speeds; what is given counts.
        again, said = plan(devices="sim*2:mem=16MiB,h2d=1GB/s")
        self.assertNotIn("measured how fast", said)
        self.assertIn("copies in 1 GB/s (modelled), out", again["time_estimate"]["basis"])
        self.assertIn("GFLOP/s (calibrated)", again["time_estimate"]["basis"])
        # A run uses what is there, and would not measure for a job as short as this.
        self.harmony("run", job, "--devices", DEVICES)
        calibrated = harness.read_metrics(out)
        self.assertGreater(calibrated[-1]["predicted_seconds"], 0)
        self.harmony("run", job, "--devices", DEVICES, "--overwrite", "--no-calibrate")
        self.assertNotIn("predicted_seconds", harness.read_metrics(out)[-1])
        self.assertEqual([m["loss"] for m in calibrated], harness.losses(out))
        for cached in (self.dir / "cache").rglob("*.json"):
            cached.unlink()
        self.harmony("run", job, "--devices", DEVICES, "--overwrite")
        self.assertEqual(list((self.dir / "cache").rglob("*.json")), [])
        self.assertEqual(list(self.runtime.rglob("*")), [], "processes leave nothing behind")

    def test_speeds_measured_under_load_say_so_and_can_be_measured_again(self):
        job, _ = self.job("c", layer_groups=[3, 3], mode="harmony-pp")  # little to search

        def plan(*args, **kw):
            return self.harmony("plan", job, "--devices", DEVICES, *args, **kw).stderr

        self.assertIn("measured how fast", plan())
        # As if something else had run: each repeat but the best took ten times as long.
        cached = next((self.dir / "cache").rglob("speeds-*.json"))
        p = json.loads(cached.read_text())
        for device in p["devices"]:
            for link in ("h2d", "d2h", "p2p"):
                for key in [k for k in device[link] if k.endswith("_per_s")]:
                    rate = device[link][key]["median"]
                    device[link][key].update(least=rate / 10, most=rate)
        cached.write_text(json.dumps(p))
        said = plan()
        self.assertNotIn("measured how fast", said)
        self.assertIn("measured while something else ran", said)
        self.assertIn("--recalibrate", said)
        before = cached.read_text()
        self.assertIn("measured how fast", plan("--recalibrate"))
        self.assertNotEqual(before, cached.read_text())
        self.assertIn("excludes", plan("--recalibrate", "--no-calibrate", check=2))
        file = json.loads(self.profile(job, "--quick", "--json")[0].stdout)["cache_file"]
        measured = json.loads(pathlib.Path(file).read_text())
        for slowest, phrase in ((1, None), (12, "some repeats took 12 times as long for a layer as others\n")):
            # As if the machine had been quiet, and busy; nobody knows how busy this one was.
            for device in measured["devices"]:
                for link in ("h2d", "d2h", "p2p"):
                    for key in [k for k in device[link] if k.endswith("_per_s")]:
                        device[link][key].update(least=1e9, median=1e9, most=1e9)
                for size in [s for layer in device["layers"] for s in layer["sizes"]]:
                    for times in [t for t in size.values() if isinstance(t, dict)]:
                        times.update(least=1e-4, median=1e-4, most=slowest * 1e-4)
            pathlib.Path(file).write_text(json.dumps(measured))
            said = self.profile(job, "--quick")[0].stdout
            self.assertIn("measured before, taken from", said)
            if phrase:
                self.assertIn(phrase + "something else ran meanwhile", said)
            else:
                self.assertNotIn("repeats", said)
                self.assertNotIn("something else ran", said)
        self.assertIn("`harmony profile --recalibrate`", plan("--recalibrate", "--profile", self.dir / "P.json"))
        slow = json.loads((self.dir / "P.json").read_text())
        for device in slow["devices"]:
            device.update({link: p["devices"][0][link] for link in ("h2d", "d2h", "p2p")})
        (self.dir / "slow.json").write_text(json.dumps(slow))
        shown = self.harmony("plan", job, "--devices", DEVICES, "--profile", self.dir / "slow.json").stdout
        self.assertIn("measured while something else ran", shown)
        answer = json.loads(self.profile(job, "--quick", "--recalibrate", "--json")[0].stdout)
        self.assertFalse(answer["cached"])
        self.assertGreaterEqual(min(answer["spread"]["layers"], answer["spread"]["links"]), 1)

    def test_a_long_job_that_is_submitted_is_calibrated_where_nothing_else_runs(self):
        self.up("--devices", DEVICES)
        little_to_search = {"max_steps": 1_000_000, "layer_groups": [3, 3], "mode": "harmony-pp"}
        job, out = self.job("first", **little_to_search)
        self.assertIn("measured how fast", self.harmony("submit", job).stderr)
        harness.wait_for(lambda: (out / "metrics.jsonl").exists() and harness.read_metrics(out), "a step")
        self.assertGreater(harness.read_metrics(out)[0]["predicted_seconds"], 0)
        for cached in (self.dir / "cache").rglob("*.json"):
            cached.unlink()
        job, _ = self.job("second", **little_to_search)
        self.assertNotIn("measured how fast", self.harmony("submit", job).stderr)
        self.assertEqual(list((self.dir / "cache").rglob("*.json")), [])

    def test_a_profile_that_does_not_fit_is_refused_by_file_and_field(self):
        job, out = self.job("p")
        _, p = self.profile(job, "--quick")

        def refused(text, *expected, devices=DEVICES, settings=()):
            (self.dir / "bad.json").write_text(text)
            for command in ("plan", "run"):
                done = self.harmony(command, job, "--devices", devices, "--profile", self.dir / "bad.json",
                                    *settings, check=2)
                for part in ("bad.json: ",) + expected:
                    self.assertIn(part, done.stderr, command)
            self.assertFalse(out.exists())

        def changed(change):
            copy = json.loads(json.dumps(p))
            change(copy)
            return json.dumps(copy)

        def set_time(copy, value):
            copy["devices"][0]["layers"][1]["sizes"][0]["backward_s"]["median"] = value

        field = "devices[0].layers[1].sizes[0].backward_s.median: "
        refused(changed(lambda c: set_time(c, -1)), field, "above 0")
        refused(changed(lambda c: set_time(c, math.nan)), field, "finite", "NaN")
        refused(changed(lambda c: set_time(c, math.inf)), field, "finite", "Infinity")
        refused(changed(lambda c: c["devices"][1]["h2d"].pop("latency_s")), "devices[1].h2d.latency_s: is missing")
        refused(changed(lambda c: c["devices"][0]["d2h"]["together_bytes_per_s"].update(median=0)),
                "devices[0].d2h.together_bytes_per_s.median: must be above 0")
        refused(changed(lambda c: c.update(schema="harmony-profile/99")), "schema: ", "harmony-profile/99")
        refused(changed(lambda c: c["devices"][0].update(memory_bytes=0)), "devices[0].memory_bytes: ")
        refused("{", "JSON")
        refused(json.dumps(p), "devices[0].spec: ", devices="sim*2:mem=16MiB")
        refused(json.dumps(p), "devices: ", devices="sim:mem=8MiB")
        refused(json.dumps(p), "model.sequence_length: ", settings=("--set", "sequence_length=16"))
        self.model = self.make_model("wider", dict(harness.TINY_GPT2, n_embd=64))
        refused(json.dumps(p), "model.fingerprint: ", settings=("--set", f"model_name_or_path={self.model}"))

    def test_bad_input_is_named_before_anything_is_measured(self):
        job, _ = self.job("p")
        wide = self.make_model("wide", dict(harness.TINY_GPT2, n_embd=256))
        cases = (
            (("--devices", "sim:mem=1MiB", "--set", f"model_name_or_path={wide}"), "layer 1 (block) does not fit"),
            (("--devices", "sim:flops=1G"), "mem="),
            (("--devices", DEVICES, "--set", "model_name_or_path=nowhere"), "nowhere"),
        )
        for args, expected in cases:
            done = self.harmony("profile", job, "-o", self.dir / "P.json", *args, check=2)
            self.assertIn(expected, done.stderr)
        done = self.harmony("profile", job, "-o", self.dir / "no" / "P.json", "--devices", DEVICES, check=2)
        self.assertIn("no such folder", done.stderr)
        self.assertEqual(list(self.runtime.rglob("*")), [])


if __name__ == "__main__":
    unittest.main()
