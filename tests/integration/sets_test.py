"""Layer groups on sets of devices, all kinds of them in one plan: deaths, other devices, a change of the plan, with the bits of
the plain in-process trainer. Links that are shared are of simulated devices in any case."""
import json
import unittest

import harness
import replan_test

# One root; a step of some tenths of a second, so that deaths come in time.
MACHINE = "sim*4:mem=8MiB,flops=50M,h2d=1GB/s,d2h=1GB/s,root=a"
JOB = {"global_batch_size": 16, "micro_batch_size": 1, "virtual_replicas": 16, "layer_groups": [2, 2, 2], "max_grad_norm": 0.5,
       "max_steps": 60}
# Forward groups, then backward groups: neighbours, one alone, all, three quarters on one, the others.
SETS = ([1, 0], [3], [0, 1, 2, 3], [0, 0, 0, 1], [2, 3])


def several(plan):
    """Of the plan's groups, how many are on several devices."""
    groups = plan["forward_groups"] + plan["backward_groups"]
    return sum(len(set(group["devices"])) > 1 for group in groups)


class SetsTest(harness.Scratch):

    def test_every_process_may_die_and_the_run_goes_on_with_other_devices(self):
        print(f"\n{self.replay}")
        plain, plain_out = self.job("plain", **JOB)
        self.plain(plain, plain_out)
        job, out = self.job("sets", save_steps=2, **JOB)
        plan = self.plan(job, MACHINE)["plan"]
        plan["pass_weights"] = True
        run = self.start("run", job, "--devices", MACHINE, "--no-calibrate", "--plan", self.put_on_sets(plan, SETS, parts=4))
        harness.wait_for(lambda: harness.steps_done(out) > 0 or run.poll() is not None, "a step")
        self.assertEqual(several(json.loads((out / "plan.json").read_text())), 4)
        killed = sorted(self.processes())
        self.assertEqual(len(killed), 7)
        self.random.shuffle(killed)
        self.kill_one_by_one(run, out, killed)
        self.kill_all(run)
        self.wait_run_folder_gone()
        before = harness.steps_done(out)
        self.harmony("run", job, "--devices", "sim:mem=8MiB sim*2:mem=6MiB")  # and another plan
        self.assertLess(before, JOB["max_steps"])
        self.assertEqual(harness.losses(out), harness.losses(plain_out), self.replay)
        self.assertEqual(harness.weights_digest(out / "final"), harness.weights_digest(plain_out / "final"), self.replay)


class ReplanOfSetsTest(replan_test.Replan):
    """A plan that divides groups among devices is changed for another."""

    def test_a_plan_with_sets_is_changed(self):
        changes = dict(global_batch_size=16, micro_batch_size=1, max_steps=replan_test.STEPS)
        plain, plain_out = self.job("plain", **changes)
        self.plain(plain, plain_out)
        job, out = self.job("changed", replan="auto", **changes)
        profile = self.wrong_profile(job)
        first = json.loads(self.harmony("plan", job, "--devices", replan_test.DEVICES, "--profile", profile, "--json").stdout)["plan"]
        self.assertGreater(several(first), 0)
        done = self.harmony("run", job, "--devices", replan_test.DEVICES, "--profile", profile)
        self.assertIn("going on with the other plan after step", done.stdout + done.stderr)
        self.assertNotEqual(json.loads((out / "plan.json").read_text())["backward_groups"], first["backward_groups"])
        self.check_result(out, (harness.losses(plain_out), harness.weights_digest(plain_out / "final")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
