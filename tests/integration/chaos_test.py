"""kill -9 of any one process at random moments of a running job: it goes on by itself, with the same bits.

HARMONY_KILLS sets the number of kills per kind of process (default 3; the full proof uses 20).
HARMONY_SEED replays a failing run.
"""
import os
import pathlib
import time
import unittest

import harness

KILLS = int(os.environ.get("HARMONY_KILLS", "3"))
DEVICES = "sim*2:mem=8MiB"


class ChaosTest(harness.Scratch):
    changes = {}

    def undisturbed(self):
        job, out = self.job("calm", max_steps=10, **self.changes)
        self.harmony("run", job, "--devices", DEVICES)
        return harness.losses(out), harness.weights_digest(out / "final")

    def one_kill(self, index, who, expected):
        name = f"kill-{who[0]}{who[1]}-{index}"
        job, out = self.job(name, max_steps=10, **self.changes)
        process = self.start("run", job, "--devices", DEVICES)
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
        self.assertEqual(harness.losses(out), expected[0], f"{name}: losses; {self.replay}")
        self.assertEqual(harness.weights_digest(out / "final"), expected[1], f"{name}: weights; {self.replay}")
        return landed

    def test_any_process_may_die_at_any_moment(self):
        print(f"\n{self.replay}")
        expected = self.undisturbed()
        for who in [("swapper", 0), ("host", 0), ("worker", 0), ("worker", 1), ("coordinator", 0)]:
            landed = sum(self.one_kill(i, who, expected) for i in range(KILLS))
            print(f"{type(self).__name__}: {landed} kills of {who[0]} {who[1]} landed, bits unchanged")
            self.assertGreater(landed, 0)


class ChaosWithClippingTest(ChaosTest):
    changes = {"max_grad_norm": 0.5}


def lines(path):
    try:
        return pathlib.Path(path).read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


if __name__ == "__main__":
    unittest.main(verbosity=2)
