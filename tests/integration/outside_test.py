"""What the world around a job may lack: room on the disk, its data, descriptors, processes, somebody who reads.

The job waits, or goes on without, and nothing that was trained is lost: losses and weights are those of an
undisturbed run. The full disks are small file systems of their own; mounting them takes root,
and where it is not allowed those tests are skipped.
"""
import contextlib
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import unittest

import harness

DEVICES = "sim*2:mem=8MiB"
DEVICE = "sim:mem=8MiB"  # where it is all the same, for each worker loads LibTorch
ENDLESS = {"max_steps": 100_000}


class Outside(harness.Scratch):

    def reference(self, name="calm", **changes):
        """Losses and weights by a trainer that nothing disturbs."""
        job, out = self.job(name, **changes)
        self.plain(job, out)
        return harness.losses(out), harness.weights_digest(out / "final")

    def check(self, out, expected):
        self.assertEqual((harness.losses(out), harness.weights_digest(out / "final")), expected)
        steps = [m["step"] for m in harness.read_metrics(out)]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def check_stopped(self, process, out):
        """Stops an endless run; what it has done so far is what it should have."""
        process.send_signal(signal.SIGTERM)
        self.wait_exit(process, 143)
        steps = len(harness.losses(out))
        self.harmony("export", out, "--checkpoint", steps, "-o", self.dir / "stopped")
        losses, weights = self.reference(max_steps=steps)
        self.assertEqual((harness.losses(out), harness.weights_digest(self.dir / "stopped")), (losses, weights))

    def small_disk(self, size):
        disk = self.dir / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk],
                                 stderr=subprocess.PIPE, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"no small file system can be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        return disk

    def disk_that_can_stand_still(self):
        """A small file system, and a function that has all that writes to it wait, or go on."""
        disk, image = self.dir / "disk", self.dir / "image"
        disk.mkdir()
        with open(image, "wb") as file:
            file.truncate(64 << 20)
        for command in (["mkfs.ext4", "-q", image], ["mount", "-o", "loop", image, disk]):
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                self.skipTest(f"no file system that can be frozen here: {getattr(error, 'stderr', error)}")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        self.addCleanup(subprocess.run, ["fsfreeze", "--unfreeze", disk], stderr=subprocess.DEVNULL)
        return disk, lambda still: subprocess.run(["fsfreeze", "--freeze" if still else "--unfreeze", disk], check=True)

    @staticmethod
    def waits_for_disk(pid):
        states = []
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                states.append((task / "stat").read_text().rsplit(")", 1)[1].split()[0])
        return "D" in states

    @staticmethod
    def fill(disk):
        """Takes all the room that is left; remove the file to give it back."""
        path = disk / "filler"
        with open(path, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        return path

    def log(self):
        return (self.dir / "run.log").read_text()

    def wait_log(self, process, *texts):
        for text in texts:
            harness.wait_for(lambda: process.poll() is not None or text in self.log(), text)
            self.assertIn(text, self.log())

    def wait_lines(self, process, out, count):
        path = out / "metrics.jsonl"
        harness.wait_for(lambda: process is not None and process.poll() is not None or
                         (path.exists() and path.read_text().count("\n") >= count), f"{count} steps")

    def submit(self, job):
        return json.loads(self.harmony("submit", job, "--json").stdout)["job_id"]

    def state(self, job_id):
        return json.loads(self.harmony("status", job_id, "--json").stdout)["state"]

    def wait_state(self, job_id, state):
        harness.wait_for(lambda: self.state(job_id) == state, state, pause=0.2)


class FullDiskTest(Outside):

    def test_training_goes_on_without_checkpoints_and_waits_at_its_end_until_there_is_room(self):
        # The disk is to be full before the first checkpoint: a later one removes an older one, which makes room again.
        changes = {"max_steps": 160, "save_steps": 40}
        expected = self.reference(**changes)
        disk = self.small_disk("8m")
        job, out = self.job("full", output_dir=str(disk / "out"), **changes)
        process = self.start("run", job, "--devices", DEVICE)
        self.wait_lines(process, out, 1)
        filler = self.fill(disk)
        # At a checkpoint, at a line of metrics.jsonl, and at the last checkpoint.
        self.wait_log(process, "No space left on device: training goes on without this checkpoint",
                      "lines are kept in memory", "the job waits and keeps what it has trained")
        filler.unlink()
        self.wait_exit(process, 0)
        self.assertIn("metrics.jsonl is complete again", self.log())
        self.check(out, expected)
        self.assertTrue((out / "checkpoint-160").exists())

    def test_what_was_trained_waits_for_room_for_the_last_files(self):
        """There is room for the last checkpoint, and for half of final/."""
        changes = {"max_steps": 150}
        job, calm = self.job("calm", **changes)
        self.harmony("run", job, "--devices", DEVICE)
        expected = harness.losses(calm), harness.weights_digest(calm / "final")
        folders = {name: sum(f.stat().st_size for f in (calm / name).rglob("*")) for name in ("checkpoint-150", "final")}
        disk = self.small_disk("8m")
        job, out = self.job("full", output_dir=str(disk / "out"), **changes)
        process = self.start("run", job, "--devices", DEVICE)
        self.wait_lines(process, out, 1)
        filler = self.fill(disk)
        os.truncate(filler, filler.stat().st_size - folders["checkpoint-150"] - folders["final"] // 2)
        self.wait_log(process, "the job waits and keeps what it has trained")
        self.assertEqual((out / "checkpoint-150").exists(), True)
        self.assertEqual((out / "final").exists(), False)
        filler.unlink()
        self.wait_exit(process, 0)
        self.check(out, expected)

    def test_lines_that_wait_for_room_outlive_the_coordinator(self):
        disk = self.small_disk("8m")
        job, out = self.job("full", output_dir=str(disk / "out"), **ENDLESS)
        process = self.start("run", job, "--devices", DEVICE)
        self.wait_lines(process, out, 2)
        filler = self.fill(disk)
        self.wait_log(process, "lines are kept in memory")
        self.kill(self.processes()[("coordinator", 0)]["pid"])
        self.wait_log(process, "continuing from what the segment holds")
        harness.wait_for(lambda: process.poll() is not None or self.log().count("lines are kept in memory") >= 3,
                         "its successor to find the disk full, too")
        filler.unlink()
        self.wait_lines(process, out, 100)
        self.check_stopped(process, out)

    def test_a_job_that_waits_for_room_is_shown_so_and_resume_tries_at_once(self):
        changes = {"max_steps": 150}
        expected = self.reference(**changes)
        disk = self.small_disk("8m")
        self.up("--devices", DEVICE)
        job, out = self.job("full", output_dir=str(disk / "out"), **changes)
        job_id = self.submit(job)
        filler = self.fill(disk)
        self.wait_state(job_id, "waiting")
        filler.unlink()
        self.harmony("resume", job_id)
        self.harmony("watch", job_id)
        self.check(out, expected)

    def test_a_waiting_job_can_be_given_up(self):
        disk = self.small_disk("8m")
        self.up("--devices", DEVICE)
        job, out = self.job("full", output_dir=str(disk / "out"), max_steps=150)
        job_id = self.submit(job)
        self.fill(disk)
        self.wait_state(job_id, "waiting")
        self.harmony("cancel", job_id)
        self.assertEqual(self.state(job_id), "waiting")
        self.harmony("cancel", job_id)
        self.wait_state(job_id, "cancelled")
        self.assertFalse((out / "final").exists())

    def test_down_waits_until_there_is_room_for_the_checkpoint(self):
        disk = self.small_disk("8m")
        self.up("--devices", DEVICE)
        job, out = self.job("full", output_dir=str(disk / "out"), **ENDLESS)
        self.submit(job)
        metrics = out / "metrics.jsonl"
        harness.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3, "3 steps")
        filler = self.fill(disk)
        down = self.start("down", log="down.log")
        said = self.dir / "down.log"
        harness.wait_for(lambda: "cannot write its checkpoint, and tries again" in said.read_text(), "what is awaited")
        self.assertRegex(said.read_text(), r"`harmony down --now` does not, and loses steps 1 to \d+ \(there is no checkpoint\)")
        self.assertIsNone(down.poll())
        filler.unlink()
        self.wait_exit(down, 0)
        self.assertEqual(len(list(out.glob("checkpoint-*"))), 1)

    def test_down_shows_how_far_the_checkpoint_is(self):
        self.up("--devices", DEVICE)
        job, out = self.job("slow", **ENDLESS)
        self.submit(job)
        self.wait_lines(None, out, 3)
        # Who writes it stands still, and what it would write comes from here.
        host = self.processes()[("host", 0)]["pid"]
        os.kill(host, signal.SIGSTOP)
        self.addCleanup(lambda: self.alive(host) and os.kill(host, signal.SIGCONT))
        partial = out / "checkpoint-77.partial-1"
        partial.mkdir()
        (partial / "model.safetensors").write_bytes(bytes(3 << 19))
        down = self.start("down", log="down.log")
        said = self.dir / "down.log"
        harness.wait_for(lambda: re.search(r"writes checkpoint-77: 1\.50* MiB written", said.read_text()), "how far it is", deadline=20)
        self.assertIsNone(down.poll())
        os.kill(host, signal.SIGCONT)
        self.wait_exit(down, 0)
        self.assertEqual([p.name for p in out.glob("checkpoint-*") if p != partial], [f"checkpoint-{len(harness.losses(out))}"])

    def test_down_waits_for_a_disk_that_stands_still(self):
        changes = {"max_steps": 150}
        expected = self.reference(**changes)
        disk, stand_still = self.disk_that_can_stand_still()
        self.up("--devices", DEVICE)
        job, out = self.job("still", output_dir=str(disk / "out"), **changes)
        self.submit(job)
        metrics = out / "metrics.jsonl"
        harness.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3, "3 steps")
        stand_still(True)
        harness.wait_for(lambda: any(map(self.waits_for_disk, self.all_pids())), "somebody to wait for the disk")
        down = self.start("down", log="run.log")
        harness.wait_for(lambda: json.loads((self.runtime / "harmony" / "processes.json").read_text())["stopping"],
                         "it to be stopping")
        self.assertIsNone(down.poll())
        stand_still(False)
        self.wait_exit(down, 0)
        steps = len(harness.losses(out))
        self.assertLess(steps, 150)
        self.assertEqual([p.name for p in out.glob("checkpoint-*")], [f"checkpoint-{steps}"])
        self.harmony("run", job, "--devices", DEVICE)
        self.check(out, expected)

    def test_a_full_disk_under_the_job_database_stops_nothing(self):
        changes = {"max_steps": 150}
        expected = self.reference(**changes)
        disk = self.small_disk("4m")
        self.up("--devices", DEVICE, "--state-dir", disk / "state")
        job, out = self.job("full", **changes)
        job_id = json.loads(self.harmony("submit", job, "--json", "--no-calibrate").stdout)["job_id"]
        harness.wait_for(lambda: (out / "metrics.jsonl").exists(), "a step")
        filler = self.fill(disk)
        coordinator = self.processes()[("coordinator", 0)]["pid"]
        self.kill(coordinator)
        harness.wait_for(lambda: self.processes()[("coordinator", 0)]["pid"] not in (0, coordinator), "another coordinator")
        harness.wait_for(lambda: self.harmony("status", job_id, check=None).returncode == 0, "its answer", pause=0.2)
        self.harmony("watch", job_id)
        self.check(out, expected)
        filler.unlink()
        self.assertEqual(self.state(job_id), "finished")

    def test_an_end_that_cannot_be_written_can_be_given_up(self):
        self.up("--devices", DEVICE)
        job, out = self.job("end", max_steps=10)
        (out / "summary.json" / "in-the-way").mkdir(parents=True)
        job_id = self.submit(job)
        self.wait_state(job_id, "waiting")
        self.harmony("cancel", job_id)
        self.wait_state(job_id, "waiting")
        self.harmony("cancel", job_id)
        self.wait_state(job_id, "cancelled")
        other, _ = self.job("next")
        self.harmony("watch", self.submit(other))  # which has the arena now

    def test_a_coordinator_that_finds_the_output_unreachable_keeps_what_was_trained(self):
        """What a step needs is in the segment, so the job waits for its folder as long as it takes."""
        job, out = self.job("gone", **ENDLESS)
        process = self.start("run", job, "--devices", DEVICE)
        self.wait_lines(process, out, 3)
        aside = out.with_name("aside")
        out.rename(aside)
        out.write_text("in the way")
        self.kill(self.processes()[("coordinator", 0)]["pid"])
        self.wait_log(process, "the job waits and keeps what it has trained; the next try is in")
        out.unlink()
        aside.rename(out)
        metrics = (out / "metrics.jsonl").read_text()
        self.wait_log(process, "continuing from what the segment holds")
        self.wait_lines(process, out, metrics.count("\n") + 50)
        self.check_stopped(process, out)

    def test_the_end_of_a_run_is_written_when_it_can_be(self):
        expected = self.reference(max_steps=10)
        job, out = self.job("end", max_steps=10)
        (out / "summary.json" / "in-the-way").mkdir(parents=True)
        process = self.start("run", job, "--devices", DEVICE)
        self.wait_log(process, "summary.json: cannot rename into place", "all else is written")
        (out / "summary.json" / "in-the-way").rmdir()
        (out / "summary.json").rmdir()
        self.wait_exit(process, 0)
        self.check(out, expected)
        self.assertIn("finished", self.harmony("run", job, "--devices", DEVICE).stdout)

    def test_what_a_command_writes_is_whole_or_not_there(self):
        job, out = self.job("trained", max_steps=4)
        self.up("--devices", DEVICE)
        job_id = self.submit(job)
        self.harmony("watch", job_id)
        disk = self.small_disk("8m")
        commands = {"export": (["export", out, "-o", disk / "exported"], disk / "exported"),
                    "trace": (["trace", job_id, "-o", disk / "trace.json"], disk / "trace.json"),
                    "profile": (["profile", job, "--devices", DEVICE, "-o", disk / "profile.json"], disk / "profile.json")}
        filler = self.fill(disk)
        for name, (command, path) in commands.items():
            with self.subTest(name):
                done = self.harmony(*command, check=1)
                self.assertRegex(done.stderr, "No space left on device")
                self.assertIn(str(path), done.stderr)
                self.assertEqual(list(disk.iterdir()), [filler])
        filler.unlink()
        for name, (command, path) in commands.items():
            with self.subTest(name):
                self.harmony(*command)
                self.assertTrue(path.exists())

    def test_a_job_whose_turn_comes_when_the_disk_is_full_begins_when_there_is_room(self):
        expected = self.reference()
        disk = self.small_disk("8m")
        before, _ = self.job("before", **ENDLESS)
        job, out = self.job("full", output_dir=str(disk / "out"))
        self.up("--devices", DEVICE)
        other, job_id = self.submit(before), self.submit(job)
        filler = self.fill(disk)
        self.harmony("cancel", other)
        harness.wait_for(lambda: self.state(job_id) not in ("queued", "starting", "running"), "a job without room", pause=0.2)
        self.assertIn("No space left", self.harmony("logs", job_id).stdout)
        self.assertEqual(self.state(job_id), "waiting")
        filler.unlink()
        self.harmony("resume", job_id)
        self.harmony("watch", job_id)
        self.check(out, expected)
        self.assertTrue((out / "plan.json").exists())

    def test_too_little_room_is_named_at_submission(self):
        disk = self.small_disk("1m")
        job, out = self.job("full", output_dir=str(disk / "out"))
        refused = self.harmony("run", job, "--devices", DEVICE, check=2)
        self.assertRegex(refused.stderr, r"output_dir: .* is going to write .* are free: .* are missing")
        self.assertFalse(out.exists())
        self.harmony("run", job, "--devices", DEVICE, "--set", "optim=sgd")


class MissingFilesTest(Outside):

    def begin(self, name):
        """A run of 300 steps that has done two, its folder, and what it has to come to."""
        changes = {"max_steps": 300}
        expected = self.reference(**changes)
        job, out = self.job(name, **changes)
        process = self.start("run", job, "--devices", DEVICE)
        self.wait_lines(process, out, 2)
        return process, out, expected

    def test_data_that_cannot_be_read_are_waited_for(self):
        data = self.dir / "data.txt"
        content = data.read_bytes()
        process, out, expected = self.begin("data")
        os.truncate(data, 10)
        self.wait_log(process, "data.txt: ends at byte", "data.txt: has changed since the run began")
        self.assertLess(len(harness.read_metrics(out)), 300)
        # A coordinator that takes over finds it waiting.
        tries = self.log().count("the job waits")
        self.kill(self.processes()[("coordinator", 0)]["pid"])
        self.wait_log(process, "the coordinator is back")
        harness.wait_for(lambda: process.poll() is not None or self.log().count("the job waits") > tries, "another try")
        again = self.dir / "again.txt"
        again.write_bytes(content)
        again.rename(data)
        self.wait_exit(process, 0)
        self.check(out, expected)

    def test_data_that_are_written_over_are_waited_for(self):
        data = self.dir / "data.txt"
        content = data.read_bytes()
        process, out, expected = self.begin("over")
        with data.open("ab") as file:  # which takes nothing of what it reads
            file.write(content)
        self.wait_lines(process, out, 20)
        self.kill(self.processes()[("host", 0)]["pid"])  # the next one finds a longer file
        self.wait_lines(process, out, 40)
        self.assertNotIn("the job waits", self.log())
        data.write_bytes(bytes(2 * len(content)))
        self.wait_log(process, "data.txt: has changed since the run began", "the job waits and keeps")
        data.write_bytes(content)
        self.wait_exit(process, 0)
        self.check(out, expected)

    def test_data_that_are_missing_when_the_host_worker_starts_again_are_waited_for(self):
        data, aside = self.dir / "data.txt", self.dir / "aside.txt"
        process, out, expected = self.begin("gone")
        data.rename(aside)
        self.kill(self.processes()[("host", 0)]["pid"])
        self.wait_log(process, "host worker: ", "data.txt: cannot open", "the job waits and keeps what it has trained")
        aside.rename(data)
        self.wait_exit(process, 0)
        self.check(out, expected)

    def test_too_many_open_files(self):
        changes = {"max_steps": 400, "save_steps": 20}
        expected = self.reference(**changes)
        job, out = self.job("descriptors", **changes)
        process = self.start("run", job, "--devices", DEVICE)
        self.wait_lines(process, out, 2)
        host = self.processes()[("host", 0)]["pid"]
        before = resource.prlimit(host, resource.RLIMIT_NOFILE, (3, 4096))
        self.wait_log(process, "Too many open files: training goes on without this checkpoint")
        resource.prlimit(host, resource.RLIMIT_NOFILE, (min(before[0], 4096), 4096))
        self.wait_exit(process, 0)
        self.check(out, expected)
        self.assertRegex(self.log(), r"checkpoint-\d+ is written")


    def test_queued_jobs_whose_outputs_are_not_there_yet_begin_when_they_are(self):
        expected = self.reference(max_steps=12)
        outputs = self.dir / "outputs"
        outputs.mkdir()
        before, _ = self.job("before", **ENDLESS)
        job, out = self.job("later", output_dir=str(outputs / "out"), max_steps=4)
        self.harmony("run", job, "--devices", DEVICE)
        self.job("later", output_dir=str(outputs / "out"), max_steps=12)
        self.up("--devices", DEVICE)
        other, job_id = self.submit(before), self.submit(job)
        outputs.rename(self.dir / "unmounted")
        self.harmony("cancel", other)
        harness.wait_for(lambda: self.state(job_id) not in ("queued", "starting"), "it to be taken up", pause=0.1)
        self.assertEqual(self.state(job_id), "waiting")
        self.assertIn("No such file or directory: the job waits", self.harmony("logs", job_id).stdout)
        (self.dir / "unmounted").rename(outputs)
        self.harmony("resume", job_id)
        self.harmony("watch", job_id)
        self.assertIn(f"resuming from {out}/checkpoint-4", self.harmony("logs", job_id).stdout)
        self.check(out, expected)


class LauncherTest(Outside):

    def own_programs(self):
        """A folder of programs from which one can be taken away."""
        folder = self.dir / "bin"
        folder.mkdir()
        for program in harness.HARMONY.parent.glob("harmony*"):
            (folder / program.name).symlink_to(program)
        return folder

    def test_a_process_that_cannot_be_started_again_is_tried_until_it_can_be(self):
        changes = {"max_steps": 200}
        expected = self.reference(**changes)
        folder = self.own_programs()
        job, out = self.job("spawn", **changes)
        process = self.start("run", job, "--devices", DEVICES, "--bin-dir", folder)
        self.wait_lines(process, out, 2)
        supervisor_log = next(self.runtime.rglob("supervisor.log"))
        (folder / "harmony-swapper").unlink()
        self.kill(self.processes()[("swapper", 0)]["pid"])
        harness.wait_for(lambda: "swapper cannot be started" in supervisor_log.read_text(), "a failed start")
        (folder / "harmony-swapper").symlink_to(harness.HARMONY.parent / "harmony-swapper")
        self.wait_exit(process, 0)
        self.check(out, expected)

    def test_a_job_whose_worker_keeps_crashing_goes_on_when_it_does_not(self):
        changes = {"max_steps": 200}
        expected = self.reference(**changes)
        folder, crashes = self.own_programs(), self.dir / "crashes"
        worker = folder / "harmony-worker"
        real = worker.resolve()
        worker.unlink()
        worker.write_text(f"""#!/bin/sh
case " $* " in *" --device 1 "*) [ -e {crashes} ] && kill -SEGV $$ ;; esac
exec {real} "$@"
""")
        worker.chmod(0o755)
        job, out = self.job("crash", **changes)
        self.up("--devices", DEVICES, "--bin-dir", folder)
        job_id = self.submit(job)
        self.wait_lines(None, out, 2)
        crashes.touch()
        self.kill(self.processes()[("worker", 1)]["pid"])
        # More than end a job that has trained nothing.
        harness.wait_for(lambda: self.processes()[("worker", 1)]["incarnation"] >= 8, "a worker that keeps crashing")
        self.assertNotIn(self.state(job_id), ("failed", "finished"))
        crashes.unlink()
        self.harmony("watch", job_id)
        self.check(out, expected)

    def test_a_launcher_that_gives_up_stops_the_coordinator_first(self):
        folder = self.own_programs()
        job, out = self.job("given-up", **ENDLESS)
        process = self.start("run", job, "--devices", DEVICES, "--bin-dir", folder)
        self.wait_lines(process, out, 2)
        supervisor_log = next(self.runtime.rglob("supervisor.log"))
        (folder / "harmony-swapper").unlink()
        self.kill(self.processes()[("swapper", 0)]["pid"])
        harness.wait_for(lambda: "cannot be started, given up" in supervisor_log.read_text(), "the end of patience")
        (folder / "harmony-swapper").symlink_to(harness.HARMONY.parent / "harmony-swapper")
        self.wait_exit(process, 1)
        self.assertIn("cannot be started, given up", self.log())
        self.assertEqual([p.name for p in out.glob("checkpoint-*")], [f"checkpoint-{len(harness.losses(out))}"])
        self.check_goes_on(job, out)

    def check_goes_on(self, job, out):
        """A run that was stopped goes on where it was, and is stopped again."""
        before = len(harness.losses(out))
        process = self.start("run", job, "--devices", DEVICES)
        self.wait_lines(process, out, before + 2)
        self.check_stopped(process, out)

    def stopping_system(self):
        """A server that is told to stop, whose checkpoint waits for a host worker that stands still."""
        self.env["HARMONY_HANG_SECONDS"] = "0"
        self.up("--devices", DEVICES)
        job, out = self.job("stopped", **ENDLESS)
        job_id = self.submit(job)
        metrics = out / "metrics.jsonl"
        harness.wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 3, "3 steps")
        host = self.processes()[("host", 0)]["pid"]
        os.kill(host, signal.SIGSTOP)
        down = self.start("down", log="run.log")
        harness.wait_for(lambda: self.state(job_id) == "stopping", "the job to be stopping", pause=0.1)
        self.kill(self.processes()[("coordinator", 0)]["pid"])
        harness.wait_for(lambda: self.processes()[("coordinator", 0)]["incarnation"] == 1, "its successor")
        return job, out, down, host

    def test_a_coordinator_that_dies_while_all_stops_is_started_again_for_the_checkpoint(self):
        job, out, down, host = self.stopping_system()
        os.kill(host, signal.SIGCONT)
        self.wait_exit(down, 0)
        self.assertEqual([p.name for p in out.glob("checkpoint-*")], [f"checkpoint-{len(harness.losses(out))}"])
        self.check_goes_on(job, out)

    def test_a_coordinator_that_died_while_all_stops_is_not_waited_for_with_now(self):
        _, out, down, host = self.stopping_system()
        self.harmony("down", "--now")
        self.wait_exit(down, 0)
        self.assertFalse(self.alive(host))
        self.assertEqual(list(out.glob("checkpoint-*")), [])


class OtherDevicesTest(Outside):

    def log_of(self, job_id):
        return self.harmony("logs", job_id).stdout

    def test_waiting_and_paused_jobs_are_planned_anew_for_other_devices(self):
        steps = {"running": 400, "queued": 10, "paused": 10}
        expected = {count: self.reference(f"calm-{count}", max_steps=count) for count in (10, 400)}
        jobs = [self.job(name, max_steps=count) for name, count in steps.items()]
        self.up("--devices", DEVICES)
        ids = [self.submit(job) for job, _ in jobs]
        self.harmony("pause", ids[2])
        harness.wait_for(lambda: (jobs[0][1] / "metrics.jsonl").exists(), "a step")
        self.harmony("down")
        self.up("--devices", "sim*3:mem=6MiB")
        self.harmony("resume", ids[2])
        for job_id, (_, out), count in zip(ids, jobs, steps.values()):
            self.harmony("watch", job_id)
            self.assertIn("planned anew", self.log_of(job_id))
            self.check(out, expected[count])

    def test_what_does_not_fit_other_devices_is_paused_and_cannot_be_resumed_there(self):
        expected = self.reference(max_steps=10)
        first, _ = self.job("first", **ENDLESS)
        second, out = self.job("second", max_steps=10)
        self.up("--devices", DEVICES)
        first_id, second_id = self.submit(first), self.submit(second)
        self.wait_state(first_id, "running")
        self.harmony("down")
        self.up("--devices", "sim:mem=1MiB")
        for job_id in (first_id, second_id):
            self.wait_state(job_id, "paused")
            self.assertRegex(self.log_of(job_id), "paused: the devices are others .* does not fit")
            refused = self.harmony("resume", job_id, check=2)
            self.assertRegex(refused.stderr, "stays paused: .*does not fit")
            self.assertEqual(self.state(job_id), "paused")
        self.harmony("down")
        self.up("--devices", "sim*3:mem=6MiB")
        data = self.dir / "data.txt"
        content = data.read_bytes()
        data.write_bytes(b"more" + content)
        self.assertIn("has changed since the run began", self.harmony("resume", second_id, check=2).stderr)
        data.write_bytes(content + b"more")
        self.harmony("resume", second_id)
        self.harmony("watch", second_id)
        self.check(out, expected)


class RunTest(Outside):

    def test_a_run_that_nobody_reads_goes_on(self):
        expected = self.reference(max_steps=200)
        job, out = self.job("piped", max_steps=200)
        process = subprocess.Popen([harness.HARMONY, "run", job, "--devices", DEVICES], env=self.env, cwd=self.dir,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        self.addCleanup(self.end, process)
        process.stdout.readline()
        process.stdout.close()
        process.stderr.close()
        self.wait_lines(process, out, 2)
        pids = self.all_pids()
        harness.wait_for(lambda: process.poll() is not None, "the run to end")
        self.assertEqual(process.returncode, 0)
        self.check(out, expected)
        harness.wait_for(lambda: not any(map(self.alive, pids)), "all processes to be gone")

    def test_a_run_takes_its_own_job_only(self):
        state = self.dir / "state"
        first, first_out = self.job("first", max_steps=400, save_steps=2)
        process = self.start("run", first, "--devices", DEVICES, "--state-dir", state)
        self.wait_lines(process, first_out, 5)
        self.kill_all(process)
        trained = (first_out / "metrics.jsonl").read_bytes()
        second, second_out = self.job("second", max_steps=5)
        # On other devices: the first job's plan could not run there.
        done = self.harmony("run", second, "--devices", "sim*3:mem=8MiB", "--state-dir", state)
        self.assertIn(f"an earlier run left job-1", done.stdout)
        self.assertIn(str(first_out), done.stdout)
        self.assertEqual(len(harness.losses(second_out)), 5)
        self.assertEqual((first_out / "metrics.jsonl").read_bytes(), trained)
        done = self.harmony("run", first, "--devices", "sim*3:mem=8MiB", "--state-dir", state)
        self.assertIn("takes over the unfinished job-1", done.stdout)
        self.assertEqual(len(harness.losses(first_out)), 400)


if __name__ == "__main__":
    unittest.main(verbosity=2)
