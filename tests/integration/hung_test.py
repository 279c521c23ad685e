"""Processes that live but do nothing (SIGSTOP): at any time they are found and replaced, with the same bits.

A limit of a few seconds takes the place of the usual 30, so that a test does not last for minutes.
"""
import json
import os
import signal
import socket
import time
import unittest

import harness

DEVICES = "sim*2:mem=8MiB"
LIMIT = 3  # seconds
WORKER, SWAPPER, HOST, COORDINATOR = ("worker", 0), ("swapper", 0), ("host", 0), ("coordinator", 0)
# The others do not see of what kind devices are.
EVERYBODY = (WORKER, SWAPPER, HOST, COORDINATOR) if harness.DEVICE_KIND == "sim" else (WORKER, SWAPPER)


class HungTest(harness.Scratch):

    def setUp(self):
        super().setUp()
        self.env["HARMONY_HANG_SECONDS"] = str(LIMIT)
        self.stopped = []
        self.addCleanup(self.wake)

    def stop(self, pid):
        os.kill(pid, signal.SIGSTOP)
        self.stopped.append(pid)

    def wake(self):
        for pid in self.stopped:
            if self.alive(pid):
                os.kill(pid, signal.SIGCONT)
        self.stopped = []

    def undisturbed(self, **changes):
        job, out = self.job("calm", **changes)
        self.harmony("run", job, "--devices", DEVICES)
        return self.result(out)

    @staticmethod
    def result(out):
        return harness.losses(out), harness.weights_digest(out / "final")

    def replaced(self, who, pid, process=None):
        """Waits until another process has the place of `pid`."""
        def is_replaced():
            self.assertFalse(process is not None and process.poll() is not None, "the run has ended before")
            return self.processes().get(who, {}).get("pid", 0) not in (0, pid)
        harness.wait_for(is_replaced, f"{who} to be replaced")

    def coordinator_listens(self):
        with socket.socket(socket.AF_UNIX) as probe:
            return any(probe.connect_ex(str(path)) == 0 for path in self.runtime.rglob("coordinator.sock"))

    def wait_steps(self, process, out, count):
        path = out / "metrics.jsonl"
        harness.wait_for(lambda: process.poll() is not None or
                         (path.exists() and path.read_text().count("\n") >= count), f"{count} steps")
        self.assertIsNone(process.poll(), "the run has ended before")

    def submit(self, name, **changes):
        job, out = self.job(name, **changes)
        return json.loads(self.harmony("submit", job, "--json").stdout)["job_id"], out

    def state(self, job_id):
        return json.loads(self.harmony("status", job_id, "--json").stdout)["state"]

    def test_while_a_job_runs(self):
        expected = self.undisturbed(max_steps=150)
        for who in EVERYBODY:
            with self.subTest(who):
                job, out = self.job(f"hung-{who[0]}", max_steps=150)
                process = self.start("run", job, "--devices", DEVICES)
                self.wait_steps(process, out, 3)
                pid = self.processes()[who]["pid"]
                self.stop(pid)
                self.replaced(who, pid, process)
                self.wait_exit(process, 0)
                self.assertEqual(self.result(out), expected)
                self.assertIn(f"hangs: pid {pid}, ", (out / "logs" / "supervisor.log").read_text())

    def test_while_another_one_is_killed(self):
        expected = self.undisturbed(max_steps=150)
        job, out = self.job("pairs", max_steps=150)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 3)
        pids = {who: self.processes()[who]["pid"] for who in (WORKER, SWAPPER, HOST)}
        self.stop(pids[WORKER])
        self.stop(pids[SWAPPER])
        self.kill(pids[HOST])
        for who, pid in pids.items():
            self.replaced(who, pid, process)
        self.wait_exit(process, 0)
        self.assertEqual(self.result(out), expected)

    def test_before_it_is_ready(self):
        expected = self.undisturbed()
        for who in EVERYBODY:
            with self.subTest(who):
                job, out = self.job(f"early-{who[0]}")
                process = self.start("run", job, "--devices", DEVICES)
                # It is listed as soon as it is started, long before it has loaded its libraries.
                pid = harness.spin_until(lambda: self.processes().get(who, {}).get("pid"), f"{who} to be started")
                self.stop(pid)
                self.replaced(who, pid, process)
                self.wait_exit(process, 0)
                self.assertEqual(self.result(out), expected)

    def test_while_a_job_is_set_up(self):
        """Another process stands still until then, so that the set-up cannot end before."""
        expected = self.undisturbed()
        self.env["HARMONY_HANG_SECONDS"] = str(2 * LIMIT)  # on a busy machine the other one stands still for some seconds
        self.up("--devices", DEVICES)
        for who in EVERYBODY:
            other = WORKER if who == HOST else HOST
            with self.subTest(who):
                before = self.processes()
                os.kill(before[other]["pid"], signal.SIGSTOP)
                # Nothing is measured, so that it does not stand still for as long as what hangs.
                job, out = self.job(f"set-up-{who[0]}")
                job_id = json.loads(self.harmony("submit", job, "--json", "--no-calibrate").stdout)["job_id"]
                harness.wait_for(lambda: self.state(job_id) == "starting", "its set-up")
                self.stop(before[who]["pid"])
                self.assertFalse((out / "metrics.jsonl").exists() and harness.losses(out), "too late: a step has been done")
                os.kill(before[other]["pid"], signal.SIGCONT)
                self.replaced(who, before[who]["pid"])
                if who == COORDINATOR:
                    harness.wait_for(self.coordinator_listens, "the new coordinator to listen")
                self.harmony("watch", job_id)
                self.assertEqual(self.result(out), expected)

    @harness.whatever_the_devices
    def test_between_jobs(self):
        expected = self.undisturbed()
        self.up("--devices", DEVICES)
        for who in (WORKER, SWAPPER, HOST, COORDINATOR):
            job_id, out = self.submit(f"before-{who[0]}")
            self.harmony("watch", job_id)
            self.assertEqual(self.result(out), expected)
            pid = self.processes()[who]["pid"]
            self.stop(pid)
            if who == COORDINATOR:  # nobody could submit anything
                self.replaced(who, pid)
                harness.wait_for(self.coordinator_listens, "the new coordinator to listen")
            job_id, out = self.submit(f"after-{who[0]}")
            self.harmony("watch", job_id)
            self.assertEqual(self.result(out), expected)
            self.assertNotEqual(self.processes()[who]["pid"], pid)

    @harness.whatever_the_devices
    def test_while_the_coordinator_is_away(self):
        expected = self.undisturbed(max_steps=150)
        for who in (WORKER, SWAPPER, HOST):
            with self.subTest(who):
                job, out = self.job(f"away-{who[0]}", max_steps=150)
                process = self.start("run", job, "--devices", DEVICES)
                self.wait_steps(process, out, 3)
                # First the coordinator is stopped, so that nobody sees the other one stop.
                coordinator, pid = self.processes()[COORDINATOR]["pid"], self.processes()[who]["pid"]
                os.kill(coordinator, signal.SIGSTOP)
                self.stop(pid)
                self.kill(coordinator)
                self.replaced(COORDINATOR, coordinator, process)
                self.replaced(who, pid, process)
                self.wait_exit(process, 0)
                self.assertEqual(self.result(out), expected)

    @harness.whatever_the_devices
    def test_a_machine_that_slept_loses_no_process(self):
        expected = self.undisturbed(max_steps=150)
        job, out = self.job("slept", max_steps=150)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 3)
        supervisor = json.loads(next(self.runtime.rglob("processes.json")).read_text())["supervisor"]
        before = self.processes()
        for pid in [supervisor, *self.all_pids()]:
            self.stop(pid)
        morning = time.monotonic() + 2 * LIMIT
        harness.wait_for(lambda: time.monotonic() > morning, "twice the limit to pass")
        self.wake()
        self.wait_steps(process, out, 10)
        self.assertEqual(self.processes(), before)
        self.wait_exit(process, 0)
        self.assertEqual(self.result(out), expected)


if __name__ == "__main__":
    unittest.main(verbosity=2)
