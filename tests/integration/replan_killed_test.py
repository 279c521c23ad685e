"""A change of the plan (replan_test.py) that the coordinator does not live to see. It compares no times, so it need not run
alone: what makes the plan worth a change is a link that is a hundred times slower than the profile says."""
import unittest

import harness
import replan_test


class KilledTest(replan_test.Replan):

    def test_the_coordinator_may_die_at_any_moment_of_the_change(self):
        expected = self.reference()
        profile = None
        for moment in ("searching by measured", "changing the plan", "resuming from"):
            job, out = self.job(f"killed-{self.random.randrange(1 << 30)}", replan="auto", max_steps=replan_test.STEPS)
            profile = profile or self.wrong_profile(job)
            log = self.dir / "run.log"
            seen = log.stat().st_size if log.exists() else 0
            process = self.start("run", job, "--devices", replan_test.DEVICES, "--profile", profile)
            harness.spin_until(lambda: process.poll() is not None or moment in log.read_text()[seen:], moment)
            self.assertIsNone(process.poll(), log.read_text()[-3000:])
            harness.wait_for(lambda: True, "", pause=self.random.random() * 0.2)
            self.kill(self.processes()[("coordinator", 0)]["pid"])
            self.wait_exit(process, 0)
            self.check_result(out, expected)


if __name__ == "__main__":
    unittest.main()
