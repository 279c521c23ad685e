"""CUDA devices by the driver made for tests (tests/fake_cuda): what only they have, and what is refused."""
import json
import pathlib
import re
import subprocess
import unittest

import harness

TWO = "cuda:0,mem=8MiB;cuda:1,mem=8MiB"


class CudaTest(harness.Scratch):

    def setUp(self):
        super().setUp()
        self.seed = self.random.randrange(1000)
        self.gpus()

    def gpus(self, **keys):
        self.env |= harness.fake_gpus(self.seed, **keys)

    def run_job(self, name, devices, *args, **changes):
        job, out = self.job(name, **changes)
        done = self.harmony("run", job, "--devices", devices, *args)
        return done, out, (harness.losses(out), harness.weights_digest(out / "final"))

    def expected(self):
        job, out = self.job("plain")
        self.plain(job, out)
        return harness.losses(out), harness.weights_digest(out / "final")

    def test_gpus_that_reach_one_another_or_not_and_one_that_is_several_devices_give_the_same_bits(self):
        expected = self.expected()
        for peers in (0, 1):
            self.gpus(peers=peers)
            _, out, got = self.run_job(f"peers{peers}", TWO, mode="harmony-pp")
            self.assertEqual(got, expected, self.replay)
            moved = re.findall("moved so far: (.*)", (out / "logs" / "swapper.log").read_text())[-1]
            # What goes by way of the host takes both links to it.
            self.assertEqual("p2p boundary" in moved, peers == 1, moved)
            self.assertEqual("d2h boundary " in moved, peers == 0, moved)
        self.gpus(devices=1)
        self.assertEqual(self.run_job("one", ";".join(["cuda:0,mem=8MiB"] * 3))[2], expected, self.replay)

    def test_a_device_that_is_lost_to_the_swapper_costs_no_bit(self):
        expected = self.expected()
        self.gpus(fail="MemcpyDtoHAsync:40:719")
        done, _, got = self.run_job("lost", TWO)
        self.assertEqual(got, expected, self.replay)
        self.assertIn("recovered from", done.stdout)

    def test_a_device_that_is_lost_between_jobs_ends_the_process_and_not_the_next_job(self):
        expected = self.expected()
        # The device does not let go of the first job's memory: only the end of the process makes it.
        self.gpus(fail="MemHostUnregister:1:201")
        self.up("--devices", TWO)
        before = self.processes()["swapper", 0]["pid"]
        for name in ("first", "second"):
            job, out = self.job(name)
            self.harmony("submit", job)
            harness.wait_for((out / "final").exists, f"{name} to end")
            self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected, self.replay)
        self.assertNotEqual(self.processes()["swapper", 0]["pid"], before)

    def test_without_pinned_memory_copies_work_and_it_is_said(self):
        expected = self.expected()
        for peers in (0, 1):
            self.gpus(fail="MemHostRegister:0:801", pageable="stage", peers=peers)
            _, out, got = self.run_job(f"unpinned{peers}", TWO)
            self.assertEqual(got, expected, self.replay)
            self.assertIn("copies of the rest are slower", (out / "logs" / "swapper.log").read_text())

    def test_jobs_one_after_the_other(self):
        expected = self.expected()
        self.up("--devices", TWO)
        for name in ("first", "second"):
            job, out = self.job(name)
            self.harmony("submit", job)
            harness.wait_for((out / "final").exists, f"{name} to end")
            self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected, self.replay)

    def test_profile_and_plan_by_it(self):
        job, _ = self.job("profiled")
        self.harmony("profile", job, "--devices", TWO, "-o", self.dir / "P.json", "--quick")
        profile = json.loads((self.dir / "P.json").read_text())
        self.assertGreater(profile["devices"][1]["h2d"]["together_bytes_per_s"]["median"], 0)
        self.harmony("plan", job, "--devices", TWO, "--profile", self.dir / "P.json")

    def test_without_a_profile_a_plan_measures_the_gpus(self):
        job, _ = self.job("measured")
        for words in ("measured each distinct layer", ""):
            done = self.harmony("plan", job, "--devices", TWO)
            self.assertEqual("measured each" in done.stdout + done.stderr, bool(words), done.stdout + done.stderr)
            self.assertIn("measured", done.stdout)

    def test_all_gpus_are_found(self):
        job, _ = self.job("found", layer_groups=[3, 3], mode="harmony-pp")  # little to search

        def found(*args):
            return json.loads(self.harmony("plan", job, *args, "--no-calibrate", "--json").stdout)["plan"]["devices"]

        self.assertEqual(found("--devices", "cuda"), harness.FAKE_GPUS)
        # They are what is used where nobody names devices.
        self.assertEqual(found(), harness.FAKE_GPUS)
        # One that somebody else has filled, say, is left out; and is no hindrance to another.
        self.gpus(fail="CtxCreate:1:2")
        self.assertEqual(found("--devices", "cuda"), harness.FAKE_GPUS - 1)

    def test_doctor_names_gpus_that_only_the_driver_knows_of(self):
        if pathlib.Path("/proc/driver/nvidia/gpus").exists():
            self.skipTest("this machine has GPUs of its own")
        found = "GPUs: Fake GPU, Fake GPU"
        self.assertIn(found, re.sub(" +", " ", self.harmony("doctor", check=None).stdout))
        del self.env["LD_LIBRARY_PATH"]
        self.assertNotIn("Fake GPU", self.harmony("doctor", check=None).stdout)

    def test_what_gpus_tell_of_themselves_is_watched_and_kept_with_the_steps(self):
        self.env["FAKE_NVML"] = "nvmlDeviceGetClockInfo"
        job, out = self.job("told", max_steps=1_000_000)
        process = self.start("run", job, "--devices", TWO, "--json", "--no-calibrate")
        metrics = out / "metrics.jsonl"
        harness.wait_for(lambda: metrics.exists() and any("gpus" in line for line in harness.read_metrics(out)), "readings")
        watched = harness.wait_for(lambda: [line for line in (self.dir / "run.log").read_text().splitlines()
                                            if "memory_used_bytes" in line], "readings in a snapshot")
        self.end(process)
        self.assertEqual([device["gpu"]["temperature_celsius"] for device in json.loads(watched[0])["devices"]], [41, 42])
        told = harness.read_metrics(out)[-1]["gpus"]
        self.assertEqual([gpu["temperature_celsius"] for gpu in told], [41, 42])
        self.assertEqual(told[1], {"temperature_celsius": 42, "memory_used_bytes": 3 << 30, "memory_bytes": 8 << 30,
                                   "pcie_in_bytes_per_second": 25_100_000_000, "pcie_out_bytes_per_second": 3_000_000})
        self.env["FAKE_NVML"] = "nvmlInit_v2"
        _, out, _ = self.run_job("untold", TWO)
        self.assertIn("GPUs are not shown", (out / "logs" / "swapper.log").read_text())

    def refused(self, devices, *parts, command="run"):
        job, _ = self.job("refused")
        done = self.harmony(command, job, "--devices", devices, check=2)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_what_cannot_be_is_refused_in_one_line(self):
        self.refused("cuda:7,mem=8MiB", "no cuda:7", "cuda:0 (Fake GPU)")
        self.refused("cuda:0,mem=8GiB", "8.00 GiB free", "mem=")
        self.refused("cuda:0,mem=8MiB;sim:mem=8MiB", "all sim or all cuda")
        self.refused("cuda:0,mem=8MiB,flops=1G", "known of a cuda device: mem, copies")
        self.refused("cuda:0,mem=1MiB", "at least 2MiB")
        self.gpus(fail="CtxCreate:1:2")
        self.refused("cuda:0,mem=8MiB", "cuda:0 cannot be used", "out of memory")
        self.gpus()
        self.env["HARMONY_CUDA_PLUGIN"] = str(self.dir / "nowhere.so")
        self.refused("cuda:0,mem=8MiB", "nothing that computes on GPUs", "nowhere.so")
        job, _ = self.job("without")
        self.assertIn("sim:mem=", self.harmony("plan", job).stderr)
        self.gpus(driver=12040)
        self.refused("cuda:0,mem=8MiB", "for CUDA 12.4", "13.0")
        self.gpus(devices=0)
        self.refused("cuda", "no GPU")
        self.gpus(lacks="MemExportToShareableHandle")
        self.refused("cuda", "lacks cuMemExportToShareableHandle")

    def test_without_a_driver_plans_are_made_and_runs_refused(self):
        del self.env["LD_LIBRARY_PATH"]
        self.refused("cuda:0,mem=8MiB", "no CUDA driver")
        self.refused("cuda", "no CUDA driver", command="plan")
        job, _ = self.job("elsewhere")
        done = self.harmony("plan", job, "--devices", TWO)
        self.assertIn("cuda:1", done.stdout)
        self.assertIn("planning by guesses, since nothing could be measured", done.stdout + done.stderr)

    def test_what_computes_on_gpus_is_loaded_for_a_worker_and_says_what_it_lacks(self):
        if not (harness.BUILD / "lib" / "harmony" / "libharmony_cuda.so").exists():
            self.skipTest("libharmony_cuda.so is built where nvcc is, which this machine lacks")
        del self.env["HARMONY_CUDA_PLUGIN"]
        job, _ = self.job("loaded")
        done = self.harmony("run", job, "--devices", "cuda:0,mem=8MiB", check=2)
        # CUDA's other libraries are not where the loader looks, or the driver for tests lacks kernels.
        self.assertRegex(done.stderr, "cannot compute on GPUs: lib|cuda:0: CUDA driver version is insufficient")

    def test_no_program_links_a_cuda_library(self):
        for program in ("harmony", "harmony-coordinator", "harmony-swapper", "harmony-worker", "harmony-cuda"):
            linked = subprocess.run(["ldd", harness.BUILD / "bin" / program], text=True, capture_output=True,
                                    check=True).stdout
            self.assertNotRegex(linked, r"libcuda\.|libtorch_cuda|libc10_cuda")


if __name__ == "__main__":
    unittest.main(verbosity=2)
