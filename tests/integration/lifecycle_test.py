"""Starting, stopping, resuming, and what is left behind (nothing)."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import unittest

import harness

DEVICES = "sim*2:mem=8MiB"


class LifecycleTest(harness.Scratch):

    def left_behind(self):
        """Sockets, locks and other files of the runtime directory."""
        return [p for p in self.runtime.rglob("*") if p.is_socket() or p.name == "processes.json"]

    def reference(self, **changes):
        job, out = self.job("reference", **changes)
        self.plain(job, out)
        return harness.losses(out), harness.weights_digest(out / "final")

    def wait_steps(self, process, out, count):
        harness.wait_for(lambda: process.poll() is not None or
                         ((out / "metrics.jsonl").exists() and len((out / "metrics.jsonl").read_text().splitlines()) >= count),
                         f"{count} steps")

    def test_sigterm_writes_a_checkpoint_and_the_next_run_continues_with_the_same_bits(self):
        job, out = self.job("undisturbed", max_steps=80, micro_batch_size="auto")
        self.harmony("run", job, "--devices", DEVICES)  # which chooses the microbatches
        expected = harness.losses(out), harness.weights_digest(out / "final")
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            job, out = self.job(f"stop-{code}", max_steps=80, micro_batch_size="auto")
            process = self.start("run", job, "--devices", DEVICES)
            self.wait_steps(process, out, 3)
            process.send_signal(number)
            self.wait_exit(process, code)
            self.assertIn("resume", (self.dir / "run.log").read_text())
            self.assertTrue(list(out.glob("checkpoint-*")))
            self.assertEqual(self.left_behind(), [])
            first = harness.read_metrics(out)[0]
            self.harmony("run", job, "--devices", "sim*3:mem=8MiB")
            self.assertEqual(harness.read_metrics(out)[0], first, "it began anew")
            self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)

    def test_a_signal_to_all_processes_at_once_writes_a_checkpoint_all_the_same(self):
        # As a batch system or a machine that ends tells a whole group of processes.
        job, out = self.job("group", max_steps=100_000)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 3)
        supervisor = json.loads(next(self.runtime.rglob("processes.json")).read_text())["supervisor"]
        for pid in [process.pid, supervisor, *self.all_pids()]:
            os.kill(pid, signal.SIGTERM)
        self.wait_exit(process, 143)
        last = harness.read_metrics(out)[-1]["step"]
        self.assertTrue((out / f"checkpoint-{last}" / "manifest.json").exists())

    @staticmethod
    def fill(pipe):
        """Leaves no room in a pipe whose writing end is another's."""
        writer = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
        try:
            while True:
                os.write(writer, b"\n")
        except BlockingIOError:
            os.close(writer)

    def test_a_run_whose_output_nobody_reads_can_be_stopped(self):
        job, out = self.job("blocked", max_steps=100_000)
        read, write = os.pipe()
        process = subprocess.Popen([harness.HARMONY, "run", job, "--devices", DEVICES, "--json"], env=self.env,
                                   cwd=self.dir, stdout=write, stdin=subprocess.DEVNULL)
        self.addCleanup(self.end, process)
        os.close(write)
        harness.wait_for(lambda: harness.steps_done(out) > 0, "a step")
        self.fill(read)
        blocked_at = harness.steps_done(out)
        harness.wait_for(lambda: harness.steps_done(out) > blocked_at + 100, "steps that nobody sees")
        process.send_signal(signal.SIGTERM)
        # Its last words wait for who reads them; what was trained does not.
        harness.wait_for(lambda: list(out.glob("checkpoint-*/manifest.json")), "a checkpoint")
        harness.wait_for(lambda: not list(self.runtime.glob("harmony-run.*")), "all else to have ended")
        os.close(read)
        self.wait_exit(process, 143)

    def test_after_everything_was_killed_at_once_the_job_resumes_from_its_last_checkpoint(self):
        expected = self.reference(max_steps=20)
        job, out = self.job("blackout", max_steps=20, save_steps=4)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 6)
        self.kill_all(process)
        self.harmony("run", job, "--devices", DEVICES)
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)

    @harness.whatever_the_devices
    def test_doctor_says_what_dead_runs_left_and_removes_it(self):
        def findings(*args):
            found = json.loads(self.harmony("doctor", "--json", *args).stdout)
            return {each["what"]: (each["verdict"], each["found"]) for each in found}

        self.assertEqual(findings()["leftovers"], ("good", "none"))
        job, out = self.job("left", max_steps=1000)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 1)
        folder, = self.runtime.glob("harmony-run.*")
        self.assertEqual(findings("--clean")["leftovers"], ("good", "none"), "it lives")
        self.assertTrue((folder / "coordinator.sock").exists())
        # Neither the supervisor nor the one who started it gets to clean up.
        supervisor = json.loads((folder / "processes.json").read_text())["supervisor"]
        os.kill(supervisor, signal.SIGSTOP)
        self.kill_all(process)
        self.kill(supervisor)
        harness.wait_for(lambda: not self.alive(supervisor), "the supervisor to be gone")
        verdict, found = findings()["leftovers"]
        self.assertEqual(verdict, "note")
        self.assertIn(str(folder), found)
        self.assertEqual(findings("--clean")["leftovers"], ("good", "none"))
        self.assertFalse(folder.exists())
        # What keeps training from starting makes it fail.
        self.assertIn("PROBLEM  programs", self.harmony("doctor", "--bin-dir", self.dir, check=1).stdout)

    def test_killing_the_launcher_alone_leaves_no_process(self):
        job, out = self.job("orphan", max_steps=1000)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 1)
        pids = self.all_pids()
        self.assertEqual(len(pids), 5)
        process.kill()
        process.wait()
        harness.wait_for(lambda: not any(map(self.alive, pids)), "children to follow their parent")
        self.wait_run_folder_gone()

    @harness.whatever_the_devices
    def test_a_finished_run_says_so_and_another_run_does_not_overwrite_it(self):
        job, out = self.job("once")
        self.harmony("run", job, "--devices", DEVICES)
        before = harness.weights_digest(out / "final")
        self.assertIn("finished", self.harmony("run", job, "--devices", DEVICES).stdout)
        refused = self.harmony("run", job, "--devices", DEVICES, "--set", "learning_rate=0.5", check=2)
        self.assertIn("learning_rate", refused.stderr + refused.stdout)
        self.assertEqual(harness.weights_digest(out / "final"), before)
        self.harmony("run", job, "--devices", DEVICES, "--set", "learning_rate=0.5", "--overwrite")
        self.assertNotEqual(harness.weights_digest(out / "final"), before)
        self.assertTrue([p for p in self.dir.glob("out-once*") if p != out], "the old directory is kept aside")
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps(config | {"layer_norm_epsilon": 0.1}))
        refused = self.harmony("run", job, "--devices", DEVICES, "--set", "learning_rate=0.5", "--set", "max_steps=50", check=2)
        self.assertIn("`model` is a checksum of what config.json", refused.stderr)

    @harness.whatever_the_devices
    def test_a_run_that_is_under_way_is_not_overwritten(self):
        self.env["HARMONY_HANG_SECONDS"] = "0"
        expected = self.reference(max_steps=150)
        job, out = self.job("live", max_steps=150)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 3)
        worker = self.processes()[("worker", 0)]["pid"]
        os.kill(worker, signal.SIGSTOP)  # it is under way for as long as this lasts
        for options in (["--overwrite"], []):
            refused = self.harmony("run", job, "--devices", DEVICES, *options, check=2)
            self.assertIn(f"{out}: another coordinator is training into it", refused.stderr)
        os.kill(worker, signal.SIGCONT)
        self.wait_exit(process, 0)
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)
        self.assertEqual([p for p in self.dir.glob("out-live*") if p != out], [], "nothing was moved aside")

    @harness.whatever_the_devices
    def test_a_finished_run_is_extended_in_place_with_the_bits_of_one_that_was_planned_so(self):
        rates = {"learning_rate_after": {"40": 1e-4}}
        expected = self.reference(max_steps=120, **rates)
        job, out = self.job("extended", max_steps=40)
        self.harmony("run", job, "--devices", DEVICES)
        shorter = json.loads((out / "run.json").read_text())
        # The same job file with more steps and another rate; a coordinator is killed on the way.
        self.job("extended", max_steps=120, save_steps=50, **rates)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 60)
        self.kill(self.processes()[("coordinator", 0)]["pid"])
        self.wait_exit(process, 0)
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)
        self.assertEqual([m["step"] for m in harness.read_metrics(out)], list(range(1, 121)))
        self.assertTrue((out / "checkpoint-100").exists())
        run = json.loads((out / "run.json").read_text())
        self.assertNotIn("extensions", shorter)
        self.assertEqual(run["extensions"], [{"after_step": 40, "changed": [
            "learning_rate_after ({} -> {\"40\":0.0001})", "max_steps (40 -> 120)", "save_steps (0 -> 50)"]}])
        self.assertIn("goes on after step 40 with ", (self.dir / "run.log").read_text())
        self.assertIn("finished", self.harmony("run", job, "--devices", DEVICES).stdout)
        for changes, words in (({"learning_rate": 1e-4}, "learning_rate_after: {120: RATE}"),
                               ({"seed": 8}, ", seed (7 -> 8). Choose another"),
                               ({"max_steps": 80}, "120 steps are done"),
                               ({"learning_rate_after": {}}, "step 41 had the learning rate 0.0001")):
            self.job("extended", **({"max_steps": 130, **rates} | changes))
            self.assertIn(words, self.harmony("run", job, "--devices", DEVICES, check=2).stderr)
        self.assertEqual(harness.weights_digest(out / "final"), expected[1])
        # Fewer lines from there on.
        self.job("extended", max_steps=124, save_steps=50, logging_steps=2, **rates)
        self.harmony("run", job, "--devices", DEVICES)
        self.assertEqual([m["step"] for m in harness.read_metrics(out)], [*range(1, 121), 122, 124])
        self.assertEqual(json.loads((out / "run.json").read_text())["extensions"][1:], [
            {"after_step": 120, "changed": ["max_steps (120 -> 124)", "logging_steps (1 -> 2)"]}])

    @harness.whatever_the_devices
    def test_run_json_says_what_computed_and_the_log_says_when_that_changes(self):
        job, out = self.job("hardware", max_steps=4)
        self.harmony("run", job, "--devices", DEVICES)
        first, = json.loads((out / "run.json").read_text())["computed_on"]
        device, = first["devices"]
        self.assertEqual(first["after_step"], 0)
        self.assertRegex(device, r"\(\w+\), LibTorch 2\.\d+")
        self.job("hardware", max_steps=6)
        self.harmony("run", job, "--devices", DEVICES)
        self.assertEqual(json.loads((out / "run.json").read_text())["computed_on"], [first], "it is the same")
        # Another level of vector instructions, as another processor would have.
        self.env["ATEN_CPU_CAPABILITY"] = "default"
        self.job("hardware", max_steps=8)
        self.wait_exit(self.start("run", job, "--devices", DEVICES), 0)
        before, after = json.loads((out / "run.json").read_text())["computed_on"]
        self.assertEqual((before, after["after_step"]), (first, 6))
        self.assertIn("(DEFAULT)", after["devices"][0])
        self.assertIn("goes on after step 6 on ", (self.dir / "run.log").read_text())

    def stop_after(self, job, out, steps):
        """An endless run; returns what it said."""
        (self.dir / "run.log").write_text("")
        before = len((out / "metrics.jsonl").read_text().splitlines()) if (out / "metrics.jsonl").exists() else 0
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, before + steps)
        process.send_signal(signal.SIGTERM)
        self.wait_exit(process, 143)
        return (self.dir / "run.log").read_text()

    def test_where_a_run_began_is_part_of_what_it_is(self):
        source, made = self.job("source", seed=11, max_steps=2)
        self.harmony("run", source, "--devices", DEVICES)
        begun = {"resume_from_checkpoint": str(made / "checkpoint-2"), "seed": 12, "max_steps": 100_000}
        job, out = self.job("begun", **begun)
        self.assertIn(f"resuming from {made}/checkpoint-2", self.stop_after(job, out, 2))
        # The same command goes on with the run, not with where it began.
        done = harness.read_metrics(out)[-1]["step"]
        self.assertIn(f"resuming from {out}/checkpoint-{done}", self.stop_after(job, out, 2))
        self.assertEqual([line["step"] for line in harness.read_metrics(out)],
                         list(range(3, harness.read_metrics(out)[-1]["step"] + 1)))
        # A checkpoint of its own is meant; what was trained after it is trained again.
        later = harness.read_metrics(out)[-1]["step"]
        back, _ = self.job("begun", **{**begun, "resume_from_checkpoint": str(out / f"checkpoint-{done}")})
        said = self.stop_after(back, out, 1)
        self.assertIn(f"resuming from {out}/checkpoint-{done}", said)
        self.assertIn(f"{out}/checkpoint-{later} is of steps that are done again: it is now {out}/checkpoint-{later}.old-1", said)
        # Its checkpoints are of another run than those of one with these keys that began at step 1.
        anew, other = self.job("anew", seed=12, max_steps=100_000)
        self.stop_after(anew, other, 2)
        before = (other / "metrics.jsonl").read_bytes()
        mixed, _ = self.job("mixed", output_dir=str(other), **begun)
        refused = self.harmony("run", mixed, "--devices", DEVICES, check=2).stderr
        self.assertIn("holds another run; these keys differ: resume_from_checkpoint (absent -> step 2, checksum ", refused)
        self.assertEqual((other / "metrics.jsonl").read_bytes(), before)
        # `auto` goes on from where it came to, wherever it began; `none` begins at step 1.
        job, _ = self.job("begun", **{**begun, "resume_from_checkpoint": "auto"})
        self.assertIn(f"resuming from {out}/checkpoint-", self.stop_after(job, out, 1))
        job, _ = self.job("begun", **{**begun, "resume_from_checkpoint": "none"})
        self.assertIn("the old output_dir is now", self.stop_after(job, out, 1))
        self.assertEqual(harness.read_metrics(out)[0]["step"], 1)
        self.assertEqual(harness.losses(out)[0], harness.losses(other)[0])

    @harness.whatever_the_devices
    def test_a_run_goes_on_with_tokens_that_were_appended_by_intent(self):
        # 33 sequences of 32 tokens: 4 steps of 8, so that 4 steps have not come to their end.
        data = self.dir / "data.txt"
        first = "".join(chr(97 + i * i % 23) for i in range(33 * 32 + 1))
        more = "".join(chr(97 + i * i % 19) for i in range(33 * 32))
        data.write_text(first + more)
        expected = self.reference(max_steps=8)
        data.write_text(first)
        job, out = self.job("appended", max_steps=4)
        self.harmony("run", job, "--devices", DEVICES)
        go_on = ["run", job, "--devices", DEVICES, "--set", "max_steps=8"]
        intent = ["--set", "data.appended=true"]
        before = (out / "run.json").read_bytes()
        data.write_text(first + more)
        self.assertIn("give data.appended: true", self.harmony(*go_on, check=2).stderr)
        data.write_text("x" + first[1:] + more)
        self.assertIn(f"the first {len(first)} bytes are not those", self.harmony(*go_on, *intent, check=2).stderr)
        data.write_text(first[:-1])
        self.assertIn(f"and has {len(first) - 1}", self.harmony(*go_on, *intent, check=2).stderr)
        self.assertEqual((out / "run.json").read_bytes(), before)
        data.write_text(first + more)
        self.harmony(*go_on, *intent)
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)
        run = json.loads((out / "run.json").read_text())
        self.assertEqual(run["extensions"], [{"after_step": 4, "changed": [
            "max_steps (4 -> 8)", f"data ({len(first)} -> {len(first + more)} bytes)"]}])
        # 9 steps have read the end of 66 sequences.
        self.harmony("run", job, "--devices", DEVICES, "--set", "max_steps=9")
        data.write_text(first + more + more)
        refused = self.harmony("run", job, "--devices", DEVICES, "--set", "max_steps=10", *intent, check=2)
        self.assertIn("the 9 steps done have gone on at its beginning", refused.stderr)

    @harness.whatever_the_devices
    def test_epochs_are_whole_passes_over_the_data(self):
        # 10 sequences of 32 tokens and the one after them: 3 passes of 8 a step are 4 steps, the last in the 4th pass.
        (self.dir / "data.txt").write_text("".join(chr(97 + i % 26) for i in range(10 * 32 + 1)))
        expected = self.reference(max_steps=4)
        job, out = self.job("epochs", num_train_epochs=3)
        job.write_text(job.read_text().replace(' "max_steps": 6,\n', ""))
        done = self.harmony("run", job, "--devices", DEVICES)
        self.assertIn("epochs: 3 of 10 samples, 8 a step, is max_steps: 4", done.stdout)
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)
        self.assertIn("give one", self.harmony("run", job, "--devices", DEVICES, "--set", "max_steps=4",
                                               "--set", "epochs=1", check=2).stderr)
        # The run is the same as one by steps, and goes on with more passes.
        self.assertIn("finished", self.harmony("run", job, "--devices", DEVICES, "--set", "max_steps=4").stdout)
        self.harmony("run", job, "--devices", DEVICES, "--set", "epochs=4")
        self.assertEqual(len(harness.losses(out)), 5)

    @harness.whatever_the_devices
    def test_relative_paths_begin_at_the_job_file_and_those_of_set_where_the_user_is(self):
        (self.dir / "jobs").mkdir()
        _, _ = self.job("jobs/j", output_dir="there", max_steps=1)
        self.harmony("run", "jobs/j.yaml", "--devices", DEVICES)
        self.assertTrue((self.dir / "jobs" / "there" / "final").is_dir())
        self.harmony("run", "jobs/j.yaml", "--devices", DEVICES, "--set", "output_dir=here")
        self.assertTrue((self.dir / "here" / "final").is_dir())
        self.up("--devices", DEVICES)
        self.harmony("submit", "jobs/j.yaml", "--set", "output_dir=submitted")
        self.harmony("watch")
        self.assertTrue((self.dir / "submitted" / "final").is_dir())
        # The coordinator that is up plans; it sees relative paths as the user does.
        self.harmony("plan", "jobs/j.yaml", "--set", "data.path=data.txt")
        self.assertEqual(sorted(each.name for each in (self.dir / "jobs").iterdir()), ["j.yaml", "there"])

    def test_the_plan_of_a_run_is_kept_and_can_be_run_again(self):
        job, out = self.job("kept", layer_groups=[1, 2, 3], update="deferred")
        self.harmony("run", job, "--devices", DEVICES)
        plan = json.loads((out / "plan.json").read_text())
        self.assertEqual([g["last_layer"] for g in plan["backward_groups"]], [0, 2, 5])
        # Without the keys that fixed them, the planner would choose other groups.
        free, again = self.job("again")
        self.harmony("run", free, "--devices", DEVICES, "--plan", out / "plan.json")
        self.assertEqual(json.loads((again / "plan.json").read_text()), plan)
        self.assertEqual(harness.losses(again), harness.losses(out))
        other, chosen = self.job("chosen")
        self.harmony("run", other, "--devices", DEVICES)
        self.assertNotEqual(json.loads((chosen / "plan.json").read_text()), plan)

    def test_up_submit_watch_down(self):
        up = json.loads(self.up("--devices", DEVICES, "--json").stdout)
        self.assertEqual(up["devices"], harness.of_kind(DEVICES))
        again = self.harmony("up", "--detach", "--devices", DEVICES, check=2)
        self.assertIn("already", again.stderr + again.stdout)
        pids = self.all_pids()
        outs = []
        for name in ("first", "second"):
            job, out = self.job(name)
            outs.append((json.loads(self.harmony("submit", job, "--json").stdout)["job_id"], out))
        for job_id, out in outs:
            self.harmony("watch", job_id)
            self.assertTrue((out / "final" / "config.json").exists())
        listed = json.loads(self.harmony("list", "--json").stdout)
        self.assertEqual(len(listed if isinstance(listed, list) else listed["jobs"]), 2)
        for was_up in (True, False):
            self.assertEqual(json.loads(self.harmony("down", "--json").stdout)["was_up"], was_up)
        harness.wait_for(lambda: not any(map(self.alive, pids)), "all processes to be gone")
        self.assertEqual(self.left_behind(), [])

    def segment_of(self, who):
        """Bytes of the segment that a process may read only, and that it may write."""
        size = {"r--s": 0, "rw-s": 0}
        for line in pathlib.Path(f"/proc/{self.processes()[who]['pid']}/maps").read_text().splitlines():
            if "/memfd:harmony-segment" in line:
                begin, end = (int(address, 16) for address in line.split()[0].split("-"))
                size[line.split()[1]] += end - begin
        return size["r--s"], size["rw-s"]

    def test_a_device_worker_may_write_nothing_of_the_segment_but_semaphores(self):
        self.up("--devices", DEVICES, "--host-memory", "64MiB")
        segment, semaphores = 64 << 20, 128 << 10
        # A process is listed before it has mapped the segment, and protects it afterwards.
        for device in (0, 1):
            harness.wait_for(lambda: self.segment_of(("worker", device)) == (segment - semaphores, semaphores),
                             f"worker {device} to protect all of the segment but semaphores")
        harness.wait_for(lambda: self.segment_of(("host", 0)) == (0, segment), "the host worker to map the segment")

    @harness.whatever_the_devices
    def test_save_total_limit_keeps_the_newest(self):
        job, out = self.job("saves", max_steps=9, save_steps=2, save_total_limit=2)
        self.harmony("run", job, "--devices", DEVICES)
        self.assertLessEqual(len(list(out.glob("checkpoint-*"))), 2)

    @harness.whatever_the_devices
    def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(self):
        expected = self.reference(max_steps=80)
        job, out = self.job("damaged", max_steps=80, save_steps=2, save_total_limit=3)
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_steps(process, out, 7)
        process.send_signal(signal.SIGTERM)
        self.wait_exit(process, 143)
        newest = max(out.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
        victim = next(newest.glob("*.safetensors"))
        with open(victim, "r+b") as f:
            f.seek(victim.stat().st_size // 2)
            byte = f.read(1)
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte[0] ^ 1]))
        self.harmony("run", job, "--devices", DEVICES)
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)

    def test_zero_steps_round_trip(self):
        job, out = self.job("made", max_steps=1)
        self.harmony("run", job, "--devices", DEVICES)
        source = self.dir / "source"
        shutil.copytree(out / "final", source)
        (source / "tokenizer_config.json").write_text("{}")
        job, out = self.job("zero", model_name_or_path=str(source), init="pretrained", max_steps=0)
        self.harmony("run", job, "--devices", DEVICES)
        final = out / "final"
        self.assertEqual(harness.weights_digest(final), harness.weights_digest(source))
        self.assertEqual((final / "config.json").read_text(), (source / "config.json").read_text())
        self.assertTrue((final / "tokenizer_config.json").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
