"""What a user meets every day of a server: the jobs there are and were, their logs, and what to do with them."""
import json
import os
import pathlib
import signal
import struct
import subprocess
import unittest

import harness

DEVICES = "sim*2:mem=8MiB"


def read_floats(path):
    """{name: values} of a safetensors file of F32 or F16 tensors."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            width, code = {"F32": (4, "f"), "F16": (2, "e")}[entry["dtype"]]
            tensors[name] = list(struct.unpack(f"<{(end - begin) // width}{code}", data[8 + size + begin:8 + size + end]))
    return tensors


class Service(harness.Scratch):

    def submit(self, name, **changes):
        """A queued job: its id and its output directory."""
        job, out = self.job(name, **changes)
        return json.loads(self.harmony("submit", job, "--json", "--no-calibrate").stdout)["job_id"], out

    def state(self, job_id):
        return json.loads(self.harmony("status", job_id, "--json").stdout)["state"]

    def wait_state(self, job_id, state):
        harness.wait_for(lambda: self.state(job_id) == state, f"{job_id} to be {state}", pause=0.1)

    def state_files(self):
        """Names and times of the state directory's files, but the logs."""
        return {p: p.stat().st_mtime_ns for p in (self.dir / "s").rglob("*") if p.suffix != ".log"}


class ListTest(Service):

    def test_jobs_are_listed_without_a_coordinator(self):
        done = self.harmony("list")
        self.assertEqual(done.stdout.split(), ["JOB", "STATE", "STEP", "LOSS", "SUBMITTED", "OUTPUT"])
        self.assertIn("nothing is running: no coordinator is up", done.stderr)
        self.assertEqual(json.loads(self.harmony("list", "--json").stdout), [])
        self.assertFalse((self.dir / "s").exists(), "looking made a state directory")
        self.assertIn("`harmony list` shows", self.harmony("status").stdout)

        self.up("--devices", DEVICES)
        first, first_out = self.submit("first")
        self.harmony("watch", first)
        second, _ = self.submit("second", max_steps=100000)
        self.wait_state(second, "running")
        live = json.loads(self.harmony("list", "--json").stdout)
        self.assertEqual([(j["job_id"], j["state"], j["up"]) for j in live],
                         [(first, "finished", True), (second, "running", True)])
        self.harmony("down")

        before = self.state_files()
        done = self.harmony("list")
        self.assertRegex(done.stdout, rf"(?m)^{first} +finished +6/6 .*{first_out}$")
        self.assertRegex(done.stdout, rf"(?m)^{second} +queued ")
        self.assertIn("nothing is running: no coordinator is up", done.stderr)
        self.assertIn("go on after `harmony up`", done.stderr)
        listed = json.loads(self.harmony("list", "--json").stdout)
        self.assertEqual([(j["job_id"], j["state"], j["up"]) for j in listed],
                         [(first, "finished", False), (second, "queued", False)])
        self.assertEqual(dict(live[0], up=False), listed[0], "the same fields, with and without a coordinator")
        done = self.harmony("status", first)
        self.assertRegex(done.stdout, r"state +finished")
        self.assertIn("nothing is running", done.stderr)
        self.assertIsNone(json.loads(self.harmony("status", "1", "--json").stdout)["progress"])
        missing = self.harmony("status", "job-7", "--json", check=2)
        self.assertEqual(json.loads(missing.stderr)["error"],
                         {"code": "NOT_FOUND", "message": "no job 'job-7'; there are job-1 to job-2"})
        self.assertIn("no job '--job'", self.harmony("status", "--", "--job", check=2).stderr)
        self.assertEqual(self.state_files(), before)

    def test_after_everything_was_killed_a_running_job_is_shown_as_interrupted(self):
        self.up("--devices", DEVICES)
        job_id, _ = self.submit("killed", max_steps=100000)
        self.wait_state(job_id, "running")
        pids = self.all_pids()
        for pid in [json.loads(self.harmony("status", "--json").stdout)["supervisor"], *pids]:
            if self.alive(pid):
                self.kill(pid)
        harness.wait_for(lambda: not any(map(self.alive, pids)), "all processes to be gone")
        before = self.state_files()
        self.assertRegex(self.harmony("list").stdout, rf"(?m)^{job_id} +interrupted ")
        listed, = json.loads(self.harmony("list", "--json").stdout)
        self.assertEqual((listed["state"], listed["up"]), ("running", False))
        self.assertEqual(self.state_files(), before)
        # What was looked at is taken up as ever.
        self.up("--devices", DEVICES)
        self.wait_state(job_id, "running")

    def test_jobs_of_a_run_with_this_state_directory_are_said_to_be_its(self):
        state = self.dir / "state"
        job, out = self.job("run", max_steps=100000)
        process = self.start("run", job, "--devices", DEVICES, "--state-dir", state, "--no-calibrate")
        harness.wait_for(lambda: process.poll() is not None or (out / "metrics.jsonl").exists(), "a step")
        coordinator = self.processes()[("coordinator", 0)]["pid"]
        done = self.harmony("list", "--state-dir", state)
        self.assertRegex(done.stdout, r"(?m)^job-1 +running ")
        self.assertIn(f"these jobs are of process {coordinator} ", done.stderr)

    def test_a_list_that_is_killed_leaves_no_copy_of_the_database(self):
        self.up("--devices", DEVICES)
        self.submit("job", max_steps=1)
        self.harmony("down")
        with open(self.dir / "s" / "harmony" / "jobs.sqlite", "ab") as database:
            database.write(bytes(200 << 20))  # which takes a while to copy
        copies = lambda: list(self.runtime.glob("harmony-jobs.*"))
        process = self.start("list")
        harness.spin_until(lambda: copies() or process.poll() is not None, "the copy")
        self.assertIsNone(process.poll())
        self.end(process)
        harness.wait_for(lambda: not copies(), "the copy to be gone")

    def test_a_database_that_cannot_be_read_is_named(self):
        folder = self.dir / "s" / "harmony"
        folder.mkdir(parents=True)
        (folder / "jobs.sqlite").write_text("x" * 4096)
        failed = self.harmony("list", "--json", check=1)
        error = json.loads(failed.stderr)["error"]
        self.assertEqual(error["code"], "DATA_LOSS")
        self.assertIn(f"{folder}/jobs.sqlite", error["message"])
        self.assertIn("harmony-coordinator", self.harmony("list", "--bin-dir", self.dir, check=2).stderr)


class WatchTest(Service):

    def test_without_a_job_the_running_one_is_followed_and_then_the_newest(self):
        self.up("--devices", DEVICES)
        self.assertIn("no jobs to watch", self.harmony("watch", check=2).stderr)
        first, _ = self.submit("first", max_steps=100000)
        second, _ = self.submit("second", max_steps=2)
        self.wait_state(first, "running")
        watching = self.start("watch")
        log = self.dir / "run.log"
        harness.wait_for(lambda: watching.poll() is not None or "step " in log.read_text(), "a step")
        self.assertIn(f"watching {first}\n", log.read_text())
        self.harmony("cancel", first)
        self.wait_exit(watching, 0)
        self.assertIn(f"{first} cancelled", log.read_text())
        self.wait_state(second, "finished")
        self.assertIn(f"{second} finished", self.harmony("watch").stdout)


class LogsTest(Service):

    def follow(self, *args):
        """`harmony logs -f`: the process, and what it has printed so far."""
        out = open(self.dir / f"follow-{len(list(self.dir.glob('follow-*')))}", "w+b")
        self.addCleanup(out.close)
        process = subprocess.Popen([harness.HARMONY, "logs", "-f", *args], env=self.env, cwd=self.dir, stdout=out,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.addCleanup(self.end, process)
        return process, lambda: pathlib.Path(out.name).read_text()

    def wait_text(self, process, text, wanted):
        harness.wait_for(lambda: process.poll() is not None or wanted in text(), wanted)
        self.assertIn(wanted, text())

    def stop(self, process, number=signal.SIGINT, code=0):
        process.send_signal(number)
        harness.wait_for(lambda: process.poll() is not None, "the end of logs -f")
        self.assertEqual(process.returncode, code)

    def test_logs_are_followed_across_processes_that_come_and_files_that_are_replaced(self):
        process, text = self.follow()
        self.wait_text(process, text, "waiting for them")
        self.up("--devices", DEVICES)
        self.wait_text(process, text, "==> worker-1 <==")
        self.wait_text(process, text, "event=listening")
        only, of_one = self.follow("--process", "worker-1", "-n", "100", "--json")
        log = pathlib.Path(self.processes()[("worker", 1)]["log"])
        with open(log, "a") as file:
            file.write("before it was rotated\n")
        self.wait_text(process, text, "before it was rotated")
        log.rename(log.with_suffix(".log.1"))
        log.write_text("and after\n")
        for each, seen in ((process, text), (only, of_one)):
            self.wait_text(each, seen, "and after")
        lines = [json.loads(line) for line in of_one().splitlines()]
        self.assertEqual(lines[-2:], [{"process": "worker-1", "line": "before it was rotated"},
                                      {"process": "worker-1", "line": "and after"}])
        self.stop(process)
        self.stop(only, signal.SIGTERM, 143)

    def test_what_is_reported_of_a_job_is_followed_until_it_ends(self):
        self.up("--devices", DEVICES)
        job_id, _ = self.submit("job", max_steps=100000)
        self.wait_state(job_id, "running")
        process, text = self.follow(job_id)
        stopped, of_stopped = self.follow(job_id)
        self.kill(self.processes()[("worker", 0)]["pid"])
        self.wait_text(process, text, "worker 0")
        self.wait_text(stopped, of_stopped, "worker 0")
        self.kill(self.processes()[("coordinator", 0)]["pid"])
        self.stop(stopped)
        harness.wait_for(lambda: self.harmony("status", job_id, check=None).returncode == 0, "the coordinator")
        self.wait_state(job_id, "running")
        self.harmony("cancel", job_id)
        self.assertEqual(process.wait(harness.DEADLINE), 0)
        self.assertEqual(text(), self.harmony("logs", job_id, "-n", "1000").stdout)
        self.assertEqual(self.harmony("logs", "-f", job_id, "-n", "1000").stdout, text(), "it has ended")

    def test_the_end_of_who_reads_ends_it_quietly_and_other_failures_are_said(self):
        self.up("--devices", DEVICES)
        job_id, _ = self.submit("job", max_steps=100000)
        self.wait_state(job_id, "running")
        for which in ([], [job_id]):
            with open("/dev/full", "w") as full:
                failed = subprocess.run([harness.HARMONY, "logs", "-f", *which], env=self.env, stdout=full,
                                        stderr=subprocess.PIPE, text=True, timeout=harness.DEADLINE)
            self.assertEqual((failed.returncode, failed.stderr),
                             (1, "error: writing to standard output: No space left on device\n"))
            reads, writes = os.pipe()
            os.close(reads)
            ended = subprocess.run([harness.HARMONY, "logs", "-f", *which], env=self.env, stdout=writes,
                                   stderr=subprocess.PIPE, text=True, timeout=harness.DEADLINE)
            os.close(writes)
            self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_what_cannot_be_followed_is_said(self):
        for arguments, word, code in ((["-f", "job-1"], "harmony up", 1), (["-n", "-3"], "must be 0 or more", 2),
                                      (["1", "--process", "swapper"], "not both", 2)):
            failed = self.harmony("logs", *arguments, "--json", check=code)
            self.assertIn(word, json.loads(failed.stderr)["error"]["message"])


class PruneTest(Service):

    def jobs(self):
        return [j["job_id"] for j in json.loads(self.harmony("list", "--json").stdout)]

    def test_ended_jobs_are_forgotten_with_and_without_a_coordinator(self):
        self.assertEqual(json.loads(self.harmony("prune", "--all", "--json").stdout), {"removed": []})
        self.assertFalse((self.dir / "s").exists(), "there was nothing to remove")
        self.up("--devices", DEVICES)
        ended, out = self.submit("ended")
        self.harmony("watch", ended)
        cancelled, _ = self.submit("cancelled", max_steps=100000)
        self.wait_state(cancelled, "running")
        self.harmony("cancel", cancelled)
        self.wait_state(cancelled, "cancelled")
        running, _ = self.submit("running", max_steps=100000)
        paused, _ = self.submit("paused")
        self.harmony("pause", paused)
        self.wait_state(running, "running")

        self.assertEqual(self.harmony("prune", "--older-than", "1h").stdout, "removed 0 jobs\n")
        self.assertEqual(self.harmony("prune", "--older-than", "0s").stdout, f"removed 2 jobs: {ended}, {cancelled}\n")
        self.assertEqual(self.jobs(), [running, paused])
        self.assertIn(f"no job '{ended}'", self.harmony("watch", ended, check=2).stderr)
        self.assertTrue((out / "final" / "model.safetensors").exists())
        self.harmony("cancel", running)
        self.wait_state(running, "cancelled")
        self.harmony("down")
        self.assertEqual(json.loads(self.harmony("prune", "--all", "--json").stdout), {"removed": [running]})
        self.assertEqual(self.jobs(), [paused])
        # What was removed stays so, and no number is given twice.
        self.up("--devices", DEVICES)
        self.assertEqual(self.jobs(), [paused])
        self.assertEqual(self.submit("next")[0], "job-5")

    def test_a_run_that_uses_the_database_is_not_disturbed(self):
        state = self.dir / "state"
        job, out = self.job("run", max_steps=100000)
        process = self.start("run", job, "--devices", DEVICES, "--state-dir", state, "--no-calibrate")
        harness.wait_for(lambda: process.poll() is not None or (out / "metrics.jsonl").exists(), "a step")
        refused = self.harmony("prune", "--all", "--state-dir", state, "--json", check=2)
        self.assertRegex(json.loads(refused.stderr)["error"]["message"],
                         "another coordinator uses this state directory.*: wait until it has ended")

    def test_what_is_to_be_removed_must_be_said(self):
        for arguments in ([], ["--all", "--older-than", "1d"], ["--older-than", "soon"], ["--older-than", "-1d"]):
            refused = self.harmony("prune", *arguments, "--json", check=2)
            self.assertIn("--older-than", json.loads(refused.stderr)["error"]["message"])


class ExportTest(Service):

    def test_any_checkpoint_is_exported_as_final_is_written(self):
        source, out = self.job("source", max_steps=1)
        self.harmony("run", source, "--devices", DEVICES)
        (out / "final" / "tokenizer_config.json").write_text("{}")
        job, out = self.job("trained", model_name_or_path=str(out / "final"), init="pretrained", max_steps=4,
                            save_steps=2, save_total_limit=9)
        short, short_out = self.job("short", model_name_or_path=str(self.dir / "out-source" / "final"),
                                    init="pretrained", max_steps=2)
        self.up("--devices", DEVICES)
        job_id, short_id = (json.loads(self.harmony("submit", each, "--json").stdout)["job_id"] for each in (job, short))
        self.harmony("watch", short_id)

        def exported(name, *arguments):
            made = self.dir / "made" / name
            done = self.harmony("export", *arguments, "-o", made)
            self.assertEqual(done.stdout, f"{made}\n")
            return {path.name: harness.file_digest(path) for path in made.iterdir()}
        final, after_two = ({path.name: harness.file_digest(path) for path in (each / "final").iterdir()}
                            for each in (out, short_out))
        self.assertIn("tokenizer_config.json", final)
        self.assertNotEqual(final, after_two)
        self.assertEqual(exported("newest", out), final)
        self.assertEqual(exported("step", out, "--checkpoint", 2), after_two)
        self.assertEqual(exported("itself", out / "checkpoint-2"), after_two)
        self.assertEqual(exported("job", job_id, "--dtype", "fp32"), final)
        self.harmony("down")
        self.assertEqual(exported("no-coordinator", job_id, "--checkpoint", "2"), after_two)

        # Rounded as Python's own halves are.
        whole, half = (read_floats(path / "model.safetensors") for path in
                       (out / "final", self.exported_as("fp16", out)))
        for name, values in whole.items():
            self.assertEqual(half[name], list(struct.unpack(f"<{len(values)}e", struct.pack(f"<{len(values)}e", *values))))

    def exported_as(self, dtype, out):
        made = self.dir / dtype
        done = json.loads(self.harmony("export", out, "--dtype", dtype, "-o", made, "--json").stdout)
        self.assertEqual(done, {"checkpoint": str(out / "checkpoint-4"), "directory": str(made)})
        return made

    def test_what_cannot_be_exported_is_said(self):
        job, out = self.job("run", max_steps=2, save_steps=1)
        self.harmony("run", job, "--devices", DEVICES)
        full = self.dir / "full"
        full.mkdir()
        (full / "mine").write_text("keep")
        new = self.dir / "new"
        for arguments, word in (([out, "-o", full], "there already and not empty"),
                                ([out, "-o", full / "mine"], "there already and no directory"),
                                ([out, "--checkpoint", 7, "-o", new], "no checkpoint of step 7; there are those of 2, 1"),
                                ([out / "checkpoint-2", "--checkpoint", 1, "-o", new], "is a checkpoint itself"),
                                ([full, "-o", new], "has no checkpoints"),
                                (["nowhere", "-o", new], "nowhere is no directory: no job 'nowhere'"),
                                ([out, "--dtype", "fp8", "-o", new], "fp8")):
            with self.subTest(word):
                failed = self.harmony("export", *arguments, "--json", check=2)
                self.assertIn(word, json.loads(failed.stderr)["error"]["message"])
        self.assertEqual([path.name for path in full.iterdir()], ["mine"])
        weights = out / "checkpoint-2" / "model.safetensors"
        data = bytearray(weights.read_bytes())
        data[-1] ^= 1
        weights.write_bytes(data)
        failed = self.harmony("export", out, "-o", new, check=1)
        self.assertIn(str(weights), failed.stderr)
        self.assertFalse(new.exists())
        self.harmony("export", out, "--checkpoint", 1, "-o", new)


if __name__ == "__main__":
    unittest.main(verbosity=2)
