"""`replan`: a job whose modelled speeds are wrong finds another plan, and changes to it, with the same bits."""
import json
import re
import unittest

import harness

# The second device's link is slow, and the profile (made below) does not know it.
FAST = "sim:mem=8MiB,flops=500M,h2d=100MB/s,d2h=100MB/s,p2p=100MB/s"
SLOW = "sim:mem=8MiB,flops=500M,h2d=1MB/s,d2h=1MB/s,p2p=1MB/s"
DEVICES = f"{FAST};{SLOW}"
STEPS = 40


class Replan(harness.Scratch):
    profile = expected = None  # the same for all tests; made by the first

    def setUp(self):
        super().setUp()
        self.env["XDG_CACHE_HOME"] = str(self.dir / "cache")

    def wrong_profile(self, job):
        """As measured, but with the first device's links for both."""
        path = self.dir / "wrong.json"
        if not self.profile:
            self.harmony("profile", job, "--quick", "--devices", DEVICES, "-o", path)
            profile = json.loads(path.read_text())
            harness.give_links_of_the_first(profile)
            type(self).profile = json.dumps(profile)
        path.write_text(self.profile)
        return path

    def reference(self):
        """Without devices, plan and profile: the bits are the same."""
        if not self.expected:
            job, out = self.job("reference", max_steps=STEPS)
            self.plain(job, out)
            type(self).expected = harness.losses(out), harness.weights_digest(out / "final")
        return self.expected

    def check_result(self, out, expected):
        metrics = harness.read_metrics(out)
        self.assertEqual([m["step"] for m in metrics], list(range(1, STEPS + 1)))
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)
        return metrics


class ReplanTest(Replan):

    def test_auto_changes_the_plan_and_no_bit(self):
        job, out = self.job("auto", replan="auto", max_steps=STEPS)
        done = self.harmony("run", job, "--devices", DEVICES, "--profile", self.wrong_profile(job))
        self.assertIn("steps drift", done.stdout + done.stderr)
        after = int(re.search(r"going on with the other plan after step (\d+)", done.stdout + done.stderr).group(1))
        self.assertTrue(5 < after < STEPS - 5, after)
        metrics = self.check_result(out, self.reference())
        before = sorted(m["seconds"] for m in metrics[2:after - 1])
        later = sorted(m["seconds"] for m in metrics[after + 2:-1])
        self.assertLess(later[len(later) // 2], 0.95 * before[len(before) // 2])
        # Its prediction is that of the plan in force, by measured times, and it holds (roughly: other work
        # on the machine makes steps longer).
        self.assertNotEqual(metrics[0]["predicted_seconds"], metrics[-1]["predicted_seconds"])
        self.assertLess(abs(later[len(later) // 2] / metrics[-1]["predicted_seconds"] - 1), 0.5)
        summary = json.loads((out / "summary.json").read_text())
        self.assertEqual(summary["replanned_after_step"], after)
        self.assertNotIn("recovered", done.stdout)
        # The plan that is kept is the one that was changed to.
        planned = self.harmony("plan", job, "--devices", DEVICES, "--profile", self.dir / "wrong.json", "--json")
        self.assertNotEqual(json.loads((out / "plan.json").read_text()), json.loads(planned.stdout)["plan"])

    def test_suggest_says_what_would_be_faster_and_goes_on(self):
        job, out = self.job("suggest", replan="suggest", max_steps=STEPS)
        profile = self.wrong_profile(job)
        done = self.harmony("run", job, "--devices", DEVICES, "--profile", profile)
        self.assertIn("a faster plan is known", done.stdout + done.stderr)
        metrics = self.check_result(out, self.reference())
        suggestion = metrics[-1]["replan"]
        self.assertLess(suggestion["predicted_seconds"], 0.95 * suggestion["instead_of"])
        # What it says can be run.
        again, _ = self.job("again", replan="auto", max_steps=3)
        done = self.harmony("run", again, "--devices", DEVICES, "--profile", profile,
                            "--plan", out / "suggested-plan.json")
        self.assertIn("only suggests", done.stdout + done.stderr)

    def test_off_and_a_true_profile_change_nothing(self):
        job, out = self.job("off", max_steps=12)
        done = self.harmony("run", job, "--devices", DEVICES, "--profile", self.wrong_profile(job))
        self.assertIn("steps drift", done.stdout + done.stderr)
        self.assertNotRegex(done.stdout + done.stderr, "(?m)^replan")  # but what could be asked for is said
        self.assertIn("replan: suggest in the job", done.stdout + done.stderr)
        job, out = self.job("blind", replan="auto", max_steps=2)
        done = self.harmony("run", job, "--devices", "sim:mem=8MiB")
        self.assertIn("has nothing to go by", done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
