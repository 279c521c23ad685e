"""kill -9 of any one process at random moments of a running job: it goes on by itself, with the same bits.

HARMONY_KILLS sets the number of kills per kind of process. Default 1: hundreds of them, on a few long runs, are what
tests/endurance is for.
HARMONY_SEED replays a failing run.
"""
import contextlib
import json
import os
import pathlib
import time
import unittest

import harness
import segment_view

KILLS = int(os.environ.get("HARMONY_KILLS", "1"))
DEVICES = "sim*2:mem=8MiB"


class ChaosTest(harness.Scratch):
    devices = DEVICES
    changes = {}

    def more_arguments(self, job):
        return []

    def undisturbed(self):
        job, out = self.job("calm", max_steps=10, **self.changes)
        self.harmony("run", job, "--devices", self.devices, *self.more_arguments(job))
        return harness.losses(out), harness.weights_digest(out / "final")

    def one_kill(self, index, who, expected):
        name = f"kill-{who[0]}{who[1]}-{index}"
        job, out = self.job(name, max_steps=10, **self.changes)
        process = self.start("run", job, "--devices", self.devices, *self.more_arguments(job))
        metrics = out / "metrics.jsonl"
        step = self.random.randrange(0, 9)
        harness.wait_for(lambda: process.poll() is not None or
                         (len(self.processes()) == 5 and lines(metrics) >= step), f"{name}: step {step}")
        # A random moment within about a step.
        time.sleep(self.random.random() * 0.05)
        victim = self.processes().get(who)
        self.assertIsNotNone(victim, f"{name}: no such process in {self.processes()}\n{self.replay}")
        landed = process.poll() is None and self.alive(victim["pid"])
        if landed:
            self.kill(victim["pid"])
        self.wait_exit(process, 0)
        self.wait_run_folder_gone()  # else the next one might find these processes, not its own
        self.assertEqual(harness.losses(out), expected[0], f"{name}: losses; {self.replay}")
        self.assertEqual(harness.weights_digest(out / "final"), expected[1], f"{name}: weights; {self.replay}")
        return landed

    def test_any_process_may_die_at_any_moment(self):
        print(f"\n{self.replay}")
        expected = self.undisturbed()
        for who in [("swapper", 0), ("host", 0), ("worker", 0), ("worker", 1), ("coordinator", 0)]:
            landed, attempts = 0, 0
            while landed < KILLS:
                attempts += 1
                self.assertLess(attempts, 2 * KILLS + 5, "kills come too late")
                landed += self.one_kill(attempts, who, expected)
            print(f"{type(self).__name__}: {landed} kills of {who[0]} {who[1]} landed, bits unchanged")


class ChaosWithClippingTest(ChaosTest):
    changes = {"max_grad_norm": 0.5}


class ChaosInMixedPrecisionTest(ChaosTest):
    changes = {"bf16": True, "gradient_dtype": "bf16", "layer_groups": [2, 2, 2]}


@harness.whatever_the_devices
class ChaosInsideUpdateTest(harness.Scratch):
    """The host worker dies while it overwrites parameters in place: the segment itself is watched for it."""

    def start_run(self, name):
        job, out = self.job(name, max_steps=6, global_batch_size=2, micro_batch_size=1, sequence_length=8)
        return self.start("run", job, "--devices", "sim*2:mem=64MiB"), out

    def kill_inside_update(self, name):
        """Kills the host worker in an update; how many chunks were half-written, None: it came too late."""
        process, out = self.start_run(name)
        step = self.random.randrange(1, 5)
        harness.wait_for(lambda: process.poll() is not None or lines(out / "metrics.jsonl") >= step, f"step {step}")
        host = self.processes().get(("host", 0))
        self.assertIsNotNone(host, f"{name}: no host worker; {self.replay}")
        with contextlib.closing(segment_view.SegmentView(host["pid"])) as view:
            self.assertGreater(view.parameters(), 0)
            harness.spin_until(lambda: view.update_under_way() or process.poll() is not None, "an update")
            if process.poll() is None:
                self.kill(host["pid"])
            harness.spin_until(lambda: not self.alive(host["pid"]), "its death")
            half_done = view.chunks_half_done() if view.update_under_way() else None
        self.wait_exit(process, 0)
        return half_done, (harness.losses(out), harness.weights_digest(out / "final"))

    def test_the_host_worker_may_die_inside_an_update(self):
        print(f"\n{self.replay}")
        self.model = self.make_model("wide", dict(harness.TINY_GPT2, n_embd=512, n_layer=2))
        process, out = self.start_run("calm")
        self.wait_exit(process, 0)
        expected = (harness.losses(out), harness.weights_digest(out / "final"))
        inside, half_written, attempts = 0, 0, 0
        while inside < KILLS:
            attempts += 1
            self.assertLess(attempts, 10 * KILLS + 10, "kills do not land inside an update")
            half_done, got = self.kill_inside_update(f"kill-{attempts}")
            self.assertEqual(got, expected, f"attempt {attempts}; {self.replay}")
            inside += half_done is not None
            half_written += (half_done or 0) > 0
        print(f"{inside} kills inside an update ({half_written} with chunks half-written), bits unchanged")


class SeveralAtOnceTest(harness.Scratch):

    def test_all_processes_or_some_may_die_at_once(self):
        print(f"\n{self.replay}")
        changes = {"max_steps": 150, "save_steps": 10}
        job, calm = self.job("calm", **changes)
        self.harmony("run", job, "--devices", DEVICES)
        job, out = self.job("several", **changes)
        process = self.start("run", job, "--devices", DEVICES)
        for count in (5, 2, 3):
            step = lines(out / "metrics.jsonl") + self.random.randrange(1, 10)
            harness.wait_for(lambda: process.poll() is not None or lines(out / "metrics.jsonl") >= step, f"step {step}")
            pids = harness.wait_for(lambda: [pid for pid in self.all_pids() if pid] if len(self.processes()) == 5 else [],
                                    "processes")
            for pid in self.random.sample(pids, count):
                self.kill(pid)
        self.assertIsNone(process.poll(), "the run has ended before")
        self.wait_exit(process, 0)
        self.assertEqual(harness.losses(out), harness.losses(calm), self.replay)
        self.assertEqual(harness.weights_digest(out / "final"), harness.weights_digest(calm / "final"), self.replay)

    @harness.whatever_the_devices
    def test_any_process_may_die_inside_a_save(self):
        print(f"\n{self.replay}")
        self.model = self.make_model("wide", dict(harness.TINY_GPT2, n_embd=256, n_layer=2))
        changes = {"max_steps": 60, "save_steps": 4, "global_batch_size": 2, "micro_batch_size": 1, "sequence_length": 8}
        job, calm = self.job("calm", **changes)
        self.harmony("run", job, "--devices", "sim*2:mem=64MiB")
        job, out = self.job("saves", **changes)
        process = self.start("run", job, "--devices", "sim*2:mem=64MiB")

        def partial():
            return {p.name for p in out.glob("checkpoint-*.partial-*")}
        inside = 0
        for who in [("host", 0), ("coordinator", 0), ("host", 0), ("swapper", 0)]:
            before = partial()
            found = harness.spin_until(lambda: partial() - before or process.poll() is not None, "a save")
            self.assertIsNone(process.poll(), "the run has ended before")
            victim = self.processes()[who]["pid"]
            self.kill(victim)
            harness.spin_until(lambda: not self.alive(victim), "its death")
            inside += bool(found & partial())
            harness.wait_for(lambda: self.processes()[who]["pid"] not in (0, victim), f"another {who[0]}")
        self.wait_exit(process, 0)
        print(f"{inside} of 4 kills landed inside a save")
        self.assertGreater(inside, 0)
        self.assertEqual(harness.losses(out), harness.losses(calm), self.replay)
        for name in ("final", "checkpoint-60"):
            self.assertEqual(harness.weights_digest(out / name), harness.weights_digest(calm / name), self.replay)
        self.assertEqual(partial(), set())


@harness.whatever_the_devices
class SummaryTest(harness.Scratch):

    def test_after_its_death_the_coordinator_sums_up_only_what_it_saw(self):
        job, out = self.job("summary", max_steps=150)
        process = self.start("run", job, "--devices", DEVICES)
        harness.wait_for(lambda: lines(out / "metrics.jsonl") >= 20, "20 steps")
        self.kill(self.processes()[("coordinator", 0)]["pid"])
        self.wait_exit(process, 0)
        self.assertEqual(lines(out / "metrics.jsonl"), 150)
        summary = json.loads((out / "summary.json").read_text())
        self.assertTrue(0 < summary["steps"] <= 130, summary)
        moved, least = summary["swap_bytes"]["weights"], summary["swap_minimum_per_step"]["weights"]
        self.assertGreater(moved, (summary["steps"] - 2) * least)
        self.assertIn("steps (since the restart or change of plan, ", (self.dir / "run.log").read_text())


class ChaosWithStashesOnDevicesTest(ChaosTest):
    changes = {"stash": "device", "layer_groups": [1, 1, 1, 1, 1, 1]}


class ChaosWithActivationsKeptTest(ChaosTest):
    changes = {"layer_groups": [1, 2, 2, 1]}

    def more_arguments(self, job):
        return ["--plan", self.kept_plan(job, DEVICES)]


class ChaosWithSharedLayersTest(ChaosTest):
    """Both devices run all layers and pass weights on; each sends its gradients in four parts. Links that are shared are
    of simulated devices in any case."""
    test_any_process_may_die_at_any_moment = harness.whatever_the_devices(ChaosTest.test_any_process_may_die_at_any_moment)
    parts = 8
    devices = "sim*2:mem=8MiB,h2d=1GB/s,d2h=1GB/s,root=a"
    changes = {"mode": "harmony-dp", "global_batch_size": 16, "micro_batch_size": 1, "max_grad_norm": 0.5,
               "layer_groups": [2, 2, 2]}

    def more_arguments(self, job):
        plan = json.loads(self.harmony("plan", job, "--devices", self.devices, "--json").stdout)["plan"]
        self.assertTrue(plan["pass_weights"])
        for group in plan["backward_groups"]:
            group["gradient_parts"] = self.parts
        path = self.dir / "parts.json"
        path.write_text(json.dumps(plan))
        return ["--plan", path]


class ChaosWithSumsBetweenDevicesTest(ChaosWithSharedLayersTest):
    """One device adds the other's gradients to its own."""
    parts = 1


def lines(path):
    try:
        return pathlib.Path(path).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    unittest.main(verbosity=2)
