"""Traces of real runs: what ran, what the plan says beside it, and how long devices waited for commands."""
import collections
import json
import pathlib
import subprocess
import sys
import unittest

import harness

DEVICES = "sim*2:mem=8MiB"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def rows(path):
    """{(device or host, row): [(step, name), ...] in order} of a trace."""
    events = json.loads(pathlib.Path(path).read_text())["traceEvents"]
    names = {(e["pid"], e["tid"], e["name"]): e["args"]["name"] for e in events
             if e["name"] in ("process_name", "thread_name")}
    found = collections.defaultdict(list)
    for e in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        if e["name"] == "waiting for commands":
            continue
        row = names[e["pid"], 0, "process_name"], names[e["pid"], e["tid"], "thread_name"]
        found[row].append((int(e["args"]["step"]), e["name"]))
    return found


class TraceTest(harness.Scratch):

    def check(self, path, first, last):
        """Measured and planned rows are there and hold the same commands, of these steps."""
        found = rows(path)
        measured = {row for _, row in found if row.endswith(", measured")}
        for queue in ("compute", "h2d weights", "h2d activations", "d2h", "p2p out", "updates"):
            self.assertIn(queue + ", measured", measured)
        for (place, row), commands in found.items():
            if not row.endswith(", measured") or row.startswith("data"):
                continue
            with self.subTest(place=place, row=row):
                planned = found[place, row.replace("measured", "planned")]
                self.assertEqual([c for c in commands if first <= c[0] <= last],
                                 [c for c in planned if first <= c[0] <= last])
                self.assertEqual({c[0] for c in commands} & set(range(first, last + 1)),
                                 set(range(first, last + 1)))

    def test_of_a_one_shot_run(self):
        job, _ = self.job("once", mode="harmony-pp")
        trace = self.dir / "new" / "folder" / "t.json"
        done = self.harmony("run", job, "--devices", DEVICES, "--trace", trace)
        self.assertIn(str(trace), done.stdout)
        self.check(trace, 1, 6)
        tool = [sys.executable, "-B", str(ROOT / "bench" / "control_plane.py"), str(trace)]
        done = subprocess.run([*tool, "--min-step-ms", "0", "--max-share", "1"], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("5 steps, 1 to 5", done.stdout)
        done = subprocess.run([*tool, "--min-step-ms", "1e9"], text=True, capture_output=True)
        self.assertEqual(done.returncode, 1)
        again = self.harmony("run", job, "--devices", DEVICES, "--trace", trace)
        self.assertIn("nothing was run", again.stdout)

    def test_steps_that_are_not_as_the_plan_says_are_reported(self):
        # Modelled far faster than this machine: every step is late.
        fast = "sim*2:mem=8MiB,flops=900T,h2d=900GB/s,d2h=900GB/s,p2p=900GB/s"
        job, out = self.job("drift", max_steps=12)
        done = self.harmony("run", job, "--devices", fast)
        self.assertIn("steps drift from what the plan says", done.stdout)
        self.assertEqual(done.stdout.count("drift from"), 1)
        self.assertIn("a plan by the times that this run measures: replan: suggest in the job", done.stdout)
        self.assertIn("2 devices are ready", (out / "logs" / "coordinator.log").read_text())
        for line in harness.read_metrics(out):
            self.assertGreater(line["predicted_seconds"], 0)
            self.assertGreater(line["seconds"], line["predicted_seconds"])
        predicted = json.loads((out / "summary.json").read_text())["predicted"]
        self.assertEqual(predicted["swap_bytes_per_step"], harness.read_metrics(out)[5]["swap_bytes"])

    def test_of_running_and_of_finished_jobs(self):
        self.up("--devices", DEVICES)
        first, _ = self.job("first", mode="harmony-pp")
        first_id = json.loads(self.harmony("submit", first, "--json").stdout)["job_id"]
        self.harmony("watch", first_id)
        # Something on every lane, whatever the speeds: submit measures them for a job as long as this.
        long, out = self.job("long", max_steps=100000, logging_steps=1, layer_groups=[2, 2, 2], stash="host",
                             mode="harmony-pp")
        long_id = json.loads(self.harmony("submit", long, "--json").stdout)["job_id"]
        harness.wait_for(lambda: (out / "metrics.jsonl").exists() and
                         len((out / "metrics.jsonl").read_text().splitlines()) >= 30, "30 steps")
        trace = self.dir / "t.json"
        done = self.harmony("trace", long_id, "-o", trace, "--last-steps", 4, "--json")
        saved = json.loads(done.stdout)
        self.assertGreater(saved["first_step"], 20)
        self.assertGreater(saved["planned_events"], 0)
        self.check(trace, saved["first_step"], saved["first_step"] + 3)
        self.harmony("trace", first_id, "-o", trace)
        self.check(trace, 1, 6)
        self.assertIn("job-99", self.harmony("trace", "job-99", "-o", trace, check=2).stderr)
        self.assertIn("directory", self.harmony("trace", long_id, "-o", self.dir, check=2).stderr)
        self.harmony("down")


if __name__ == "__main__":
    unittest.main(verbosity=2)
