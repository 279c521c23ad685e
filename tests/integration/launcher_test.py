"""Launcher, `harmony run` and the other commands, with fake programs in place of the real ones."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import unittest

import harness

# Where control groups of memory are, of version 1 and 2, and what limits one.
MEMORY_GROUPS = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")]
FAKES = harness.BUILD / "tests" / "fake-bin"
DEVICES = "sim*2:mem=8MiB"


class Launcher(harness.Scratch):

    def setUp(self):
        super().setUp()
        self.env["FAKE_DIR"] = str(self.dir)
        self.job_file = self.dir / "job.yaml"
        self.job_file.write_text("max_steps: 5\n")
        self.out = self.dir / "out"

    def control(self, name, text=""):
        (self.dir / name).write_text(str(text))

    def cluster(self, devices=DEVICES):
        return ["--bin-dir", FAKES, "--devices", devices, "--host-memory", "64MiB"]

    def run_arguments(self):
        return ["run", self.job_file, "--set", f"output_dir={self.out}", *self.cluster()]

    def up(self):
        self.harmony("up", "--detach", *self.cluster())
        supervisor = json.loads(self.harmony("status", "--json").stdout)["supervisor"]
        self.addCleanup(lambda: self.harmony("down", "--now", check=None))
        return supervisor

    def list(self):
        listed = json.loads(self.harmony("status", "--json").stdout)["processes"]
        return {(p["role"], p.get("device", 0)): p for p in listed}

    def files_left(self):
        return [p for p in self.runtime.rglob("*") if not p.is_dir()]

    def gone(self, pids):
        harness.wait_for(lambda: not any(map(self.alive, pids)), f"processes {pids} to be gone")


class UpTest(Launcher):

    def test_the_right_processes_with_the_right_arguments(self):
        self.up()
        processes = self.list()
        self.assertEqual(sorted(processes), [("coordinator", 0), ("host", 0), ("swapper", 0),
                                             ("worker", 0), ("worker", 1)])
        self.assertTrue(all(p["incarnation"] == 0 and self.alive(p["pid"]) for p in processes.values()))

        def said(who):
            path = pathlib.Path(processes[who]["log"])
            return harness.wait_for(lambda: path.read_text() if "\n" in path.read_text() else "", f"{path}")
        socket = f"--socket {self.runtime}/harmony/attach.sock --devices {DEVICES}"
        size = 8 << 20
        self.assertIn(f"--socket {self.runtime}/harmony/coordinator.sock --devices {DEVICES}", said(("coordinator", 0)))
        self.assertIn(f" --state-dir {self.dir}/s/harmony", said(("coordinator", 0)))
        self.assertIn(socket, said(("swapper", 0)))
        self.assertRegex(said(("swapper", 0)), r"HARMONY_DEVICE_FDS=0:\d+,1:\d+ ")
        self.assertRegex(said(("worker", 1)), r"HARMONY_DEVICE_FDS=1:\d+ ")
        self.assertIn(f"{socket} --device 1", said(("worker", 1)))
        self.assertIn(f"{socket} --device host", said(("host", 0)))
        self.assertIn("OMP_WAIT_POLICY=passive OMP_DYNAMIC=false OMP_PROC_BIND=false", said(("host", 0)))
        for who, devices in ((("coordinator", 0), []), (("host", 0), []), (("swapper", 0), [0, 1]),
                             (("worker", 0), [0]), (("worker", 1), [1])):
            text = said(who)
            kept = who == ("coordinator", 0)  # what one coordinator leaves to the next
            self.assertEqual(text.count("memfd:"), 2 + len(devices) + kept, f"{who}: {text}")
            self.assertEqual("memfd:harmony-kept-lines=" in text, kept)
            self.assertIn("memfd:harmony-heartbeats=", text)
            for device in devices:
                self.assertIn(f"device-{device}={size} ", text)

    def test_what_is_killed_comes_back_as_the_next_incarnation(self):
        self.up()
        before = self.list()
        for times in (1, 2):
            for who in before:
                pid = self.list()[who]["pid"]
                self.kill(pid)
                harness.wait_for(lambda: self.list()[who]["pid"] not in (0, pid), f"{who} to come back")
                self.assertEqual(self.list()[who]["incarnation"], times)
        log = pathlib.Path(before[("worker", 0)]["log"])
        harness.wait_for(lambda: "HARMONY_INCARNATION=2 " in log.read_text(), "the second restart's log line")

    def test_whatever_hangs_is_replaced(self):
        self.env["HARMONY_HANG_SECONDS"] = "3"
        supervisor = self.up()
        before = self.list()
        for who in before:
            os.kill(before[who]["pid"], signal.SIGSTOP)
        harness.wait_for(lambda: all(self.list()[who]["pid"] not in (0, before[who]["pid"]) for who in before),
                         "all of them to come back")
        self.assertTrue(all(p["incarnation"] == 1 for p in self.list().values()), self.list())
        self.assertTrue(self.alive(supervisor))

    def test_a_process_is_told_how_often_it_died_by_itself_or_hung(self):
        self.env["HARMONY_HANG_SECONDS"] = "3"
        self.up()
        log = pathlib.Path(self.list()[("worker", 1)]["log"])

        def replaced(incarnation, own_deaths):
            said = f"HARMONY_INCARNATION={incarnation} HARMONY_OWN_DEATHS={own_deaths} "
            harness.wait_for(lambda: said in log.read_text(), said)

        for incarnation, end, own_deaths in ((1, signal.SIGKILL, 0), (2, signal.SIGSTOP, 1), (3, signal.SIGSEGV, 2)):
            os.kill(self.list()[("worker", 1)]["pid"], end)
            replaced(incarnation, own_deaths)

    def have_the_kernel_kill_for_memory(self):
        """Some process or other, in a control group that has too little."""
        def kills():
            return int(re.search(r"(?m)^oom_kill (\d+)$", pathlib.Path("/proc/vmstat").read_text())[1])

        for mount, limit in MEMORY_GROUPS:
            group = pathlib.Path(mount, f"harmony-test-{os.getpid()}")
            try:
                group.mkdir()
            except OSError:
                continue
            self.addCleanup(group.rmdir)
            if not (group / limit).exists():
                continue
            (group / limit).write_text(str(16 << 20))
            before = kills()
            take = f"open('{group}/cgroup.procs', 'w').write('0')\nb'x' * (256 << 20)"
            subprocess.run([sys.executable, "-c", take], stderr=subprocess.DEVNULL)
            if kills() > before:
                return
        self.skipTest("no control group of memory can be made here")

    def test_a_death_while_the_kernel_kills_for_memory_is_named_and_counts(self):
        self.up()
        log = pathlib.Path(self.list()[("worker", 1)]["log"])
        self.have_the_kernel_kill_for_memory()
        os.kill(self.list()[("worker", 1)]["pid"], signal.SIGKILL)
        said = "HARMONY_INCARNATION=1 HARMONY_OWN_DEATHS=1 "
        harness.wait_for(lambda: said in log.read_text(), said)
        self.assertIn("worker 1 was killed while the kernel was short of memory", self.harmony("logs").stdout)

    def test_one_that_hangs_before_its_first_sign_is_replaced_by_one_that_has_longer(self):
        self.env["HARMONY_HANG_SECONDS"] = "1"
        self.control("worker-1.silent")
        self.up()
        harness.wait_for(lambda: self.list()[("worker", 1)]["incarnation"] == 2, "two replacements")
        for seconds in ("1.00 s", "2.00 s"):
            self.assertIn(f"has given no sign for {seconds}", self.harmony("logs").stdout)
        (self.dir / "worker-1.silent").unlink()
        harness.wait_for(lambda: self.list()[("worker", 1)]["incarnation"] == 3, "one that gives signs")
        self.assertTrue(all(p["incarnation"] == 0 for who, p in self.list().items() if who != ("worker", 1)))

    def test_a_launcher_that_was_stopped_itself_holds_nothing_against_the_others(self):
        self.env["HARMONY_HANG_SECONDS"] = "4"
        supervisor = self.up()
        before = self.list()
        pids = [p["pid"] for p in before.values()]
        for pid in [supervisor, *pids]:
            os.kill(pid, signal.SIGSTOP)
        over = time.monotonic() + 6
        harness.wait_for(lambda: time.monotonic() > over, "more than the time after which one that hangs is killed")
        # The launcher looks before the others can give a sign.
        os.kill(supervisor, signal.SIGCONT)
        looks = self.switches(supervisor)
        harness.wait_for(lambda: self.switches(supervisor) >= looks + 2, "its looks")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        # It is at its duty: another one that hangs is found.
        victim = before[("worker", 1)]["pid"]
        os.kill(victim, signal.SIGSTOP)
        harness.wait_for(lambda: self.list()[("worker", 1)]["pid"] not in (0, victim), "a hang to be found")
        after = self.list()
        for who in set(before) - {("worker", 1)}:
            self.assertEqual(after[who], before[who])

    def test_a_wrong_number_of_seconds_is_refused(self):
        for wrong in ("-1", "soon"):
            self.env["HARMONY_HANG_SECONDS"] = wrong
            self.assertIn("HARMONY_HANG_SECONDS", self.harmony("up", *self.cluster(), check=2).stderr)

    @staticmethod
    def switches(pid):
        """How often a process has gone to sleep by itself: once a look, for the launcher."""
        with open(f"/proc/{pid}/status") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))

    def test_the_children_of_a_killed_supervisor_die(self):
        supervisor = self.up()
        pids = [p["pid"] for p in self.list().values()]
        self.kill(supervisor)
        self.gone(pids + [supervisor])
        self.assertIn("not up", self.harmony("status").stdout)
        self.up()  # what it left does not matter
        self.assertTrue(all(p["incarnation"] == 0 for p in self.list().values()))

    def test_a_second_up_on_the_same_socket_is_refused(self):
        self.up()
        before = self.list()
        for more in (["--detach"], []):
            refused = self.harmony("up", *more, *self.cluster(), check=2)
            self.assertIn("already running", refused.stderr)
        self.assertEqual(self.list(), before)

    def test_a_second_up_with_the_same_state_directory_is_refused_and_leaves_the_logs(self):
        self.up()
        log = pathlib.Path(self.list()[("coordinator", 0)]["log"])
        before = log.stat().st_ino
        for _ in range(2):
            refused = self.harmony("up", "--detach", *self.cluster(), "--runtime-dir", self.dir / "other",
                                   "--state-dir", self.dir / "s" / "harmony", check=2)
            self.assertIn("already running with the state directory", refused.stderr)
        self.assertEqual(log.stat().st_ino, before)

    def test_up_with_closed_standard_files(self):
        command = [harness.HARMONY, "up", "--detach", *map(str, self.cluster())]
        closed = subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], env=self.env, cwd=self.dir,
                                timeout=60)
        self.addCleanup(lambda: self.harmony("down", "--now", check=None))
        self.assertEqual(closed.returncode, 0)
        self.assertEqual(len(self.list()), 5)

    def test_what_cannot_be_printed_is_no_success(self):
        self.up()
        with open("/dev/full", "w") as full:
            for command in (["status", "--json"], ["list"]):
                done = subprocess.run([harness.HARMONY, *command], env=self.env, cwd=self.dir, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=60)
                self.assertEqual(done.returncode, 1, command)
                self.assertIn("standard output", done.stderr)

    def test_down_leaves_nothing(self):
        supervisor = self.up()
        pids = [p["pid"] for p in self.list().values()] + [supervisor]
        self.harmony("down")
        self.assertFalse([p for p in pids if self.alive(p)])
        self.assertEqual(self.files_left(), [])
        self.assertIn("not up", self.harmony("down").stdout)

    def test_a_process_that_refuses_its_configuration_stops_everything(self):
        self.control("swapper.exit", 2)
        for arguments in (["up", *self.cluster()], self.run_arguments()):
            refused = self.harmony(*arguments, check=2)
            self.assertIn("swapper does not like it", refused.stderr)
            self.assertEqual(self.files_left(), [])
        self.control("coordinator.exit", 2)
        refused = self.harmony("up", "--detach", *self.cluster(), check=2)
        self.assertIn("does not like it", refused.stderr)
        self.assertEqual(self.files_left(), [])

    def test_a_process_that_keeps_dying_does_not_end_the_others(self):
        self.control("worker-1.exit", 3)
        self.up()
        before = self.list()
        harness.wait_for(lambda: self.list()[("worker", 1)]["incarnation"] >= 8, "eight deaths")
        after = self.list()
        for who in set(before) - {("worker", 1)}:
            self.assertEqual(after[who], before[who])

    def test_a_coordinator_that_keeps_dying_is_given_up(self):
        self.control("coordinator.exit", 3)
        process = self.start("up", *self.cluster())
        self.wait_exit(process, 1)
        self.assertIn("coordinator keeps dying", (self.dir / "run.log").read_text())
        self.assertEqual(self.files_left(), [])

    def test_the_socket_may_be_named_by_the_environment(self):
        (self.dir / "elsewhere").mkdir()
        self.env["HARMONY_SOCKET"] = f"unix:{self.dir}/elsewhere/c.sock"
        self.up()
        self.assertTrue((self.dir / "elsewhere" / "c.sock").exists())
        self.assertEqual(json.loads(self.harmony("list", "--json").stdout), [])
        self.env["HARMONY_SOCKET"] = f"{self.dir}/nowhere/c.sock"
        self.assertIn("nowhere/c.sock", self.harmony("pause", "job-1", check=1).stderr)
        self.env["HARMONY_SOCKET"] = f"{self.dir}/elsewhere/c.sock"

    def test_a_missing_program_is_named(self):
        refused = self.harmony("up", "--bin-dir", self.dir, "--devices", DEVICES, check=2)
        self.assertIn("harmony-coordinator", refused.stderr)
        self.assertEqual(self.files_left(), [])

    def test_a_first_process_that_cannot_be_started_yet_is_tried_again(self):
        programs = self.dir / "bin"
        shutil.copytree(FAKES, programs)
        log = self.dir / "run.log"
        with open(programs / "harmony-swapper", "ab"):  # no program can be started while it is written to
            self.start("up", *self.cluster()[2:], "--bin-dir", programs)
            harness.wait_for(lambda: "swapper cannot be started" in log.read_text(), "a start that fails")
        harness.wait_for(lambda: "is up" in log.read_text(), "up")

    def test_further_signals_say_what_is_lost_and_kill_what_does_not_stop(self):
        self.control("steps", 100000)
        self.control("coordinator.stubborn")
        process = self.start("up", *self.cluster())
        harness.wait_for(lambda: len(self.processes()) == 5 and "is up" in (self.dir / "run.log").read_text(), "up")
        self.harmony("submit", self.job_file, "--set", f"output_dir={self.out}", "--no-calibrate")
        harness.wait_for(lambda: json.loads(self.harmony("status", "job-1", "--json").stdout).get("completed_steps", 0) > 0, "a step")
        pids = self.all_pids()
        process.send_signal(signal.SIGTERM)
        harness.wait_for(lambda: "signal 15" in (self.dir / "run.log").read_text(), "the first signal")
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        harness.wait_for(lambda: "job-1 loses step" in (self.dir / "run.log").read_text(), "what is lost")
        self.assertIn("once more to stop at once", (self.dir / "run.log").read_text())
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        self.wait_exit(process, 0)
        self.gone(pids)
        self.assertEqual(self.files_left(), [])

    def stopping(self):
        return json.loads((self.runtime / "harmony" / "processes.json").read_text())["stopping"]

    def test_down_waits_for_a_coordinator_that_takes_its_time_however_often_it_is_given(self):
        self.control("coordinator.stubborn")
        self.up()
        pids = self.all_pids()
        first = self.start("down", log="first.log")
        harness.wait_for(self.stopping, "it to be stopping")
        second = self.start("down", log="second.log")
        harness.wait_for(lambda: "was told to stop before" in (self.dir / "second.log").read_text(), "the second one")
        self.assertTrue(all(map(self.alive, pids)))
        self.assertEqual((first.poll(), second.poll()), (None, None))
        self.harmony("down", "--now")
        for process in (first, second):
            self.assertEqual(process.wait(harness.DEADLINE), 0)
        self.gone(pids)
        self.assertEqual(self.files_left(), [])

    def test_a_coordinator_that_is_killed_while_all_stops_is_started_again_and_told_anew(self):
        self.control("coordinator.stubborn")
        self.up()
        pids = self.all_pids()
        down = self.start("down", log="run.log")
        harness.wait_for(self.stopping, "it to be stopping")
        (self.dir / "coordinator.stubborn").unlink()
        self.kill(self.list()[("coordinator", 0)]["pid"])
        self.wait_exit(down, 0)
        self.gone(pids)
        log = (self.dir / "s" / "harmony" / "logs" / "supervisor.log").read_text()
        self.assertIn("coordinator died", log)
        self.assertRegex(log, "coordinator started: pid [0-9]+, incarnation 1")
        self.assertIn("coordinator stopped", log)

    def test_a_coordinator_that_cannot_stop_well_is_given_up(self):
        self.control("coordinator.stubborn")
        self.up()
        pids = self.all_pids()
        down = self.start("down", log="run.log")
        harness.wait_for(self.stopping, "it to be stopping")
        self.control("coordinator.exit", 3)
        self.kill(self.list()[("coordinator", 0)]["pid"])
        self.wait_exit(down, 0)
        self.gone(pids)
        self.assertEqual(self.files_left(), [])

    def test_down_does_not_wait_for_a_coordinator_that_hangs(self):
        self.env["HARMONY_HANG_SECONDS"] = "1"
        self.up()
        pids = self.all_pids()
        os.kill(self.list()[("coordinator", 0)]["pid"], signal.SIGSTOP)
        self.harmony("down")
        self.gone(pids)

    def test_cluster_file(self):
        path = self.dir / "cluster.yaml"
        path.write_text("devices: ['sim:mem=8MiB', 'sim*2:mem=4MiB']\nhost_memory: 32MiB\n")
        self.harmony("up", "--detach", "--bin-dir", FAKES, "--config", path)
        self.assertEqual(len(self.list()), 6)
        self.harmony("down")
        path.write_text("device: sim:mem=8MiB\n")
        self.assertIn("'device'", self.harmony("up", "--config", path, check=2).stderr)
        self.assertIn("nowhere.yaml", self.harmony("up", "--config", "nowhere.yaml", check=2).stderr)


class RunTest(Launcher):

    def test_a_process_that_keeps_dying_ends_the_run(self):
        self.control("worker-1.exit", 3)
        self.control("steps", 100000)
        refused = self.harmony(*self.run_arguments(), check=1)
        self.assertIn("worker 1 keeps dying", refused.stderr)
        self.assertEqual(list(self.runtime.iterdir()), [])

    def test_a_run_shows_steps_and_a_summary_and_leaves_nothing(self):
        self.out.mkdir()
        done = self.harmony(*self.run_arguments())
        # On a busy machine some of these steps of 10 ms are over before anybody looks.
        shown = re.findall(r"^step (\d)/5  loss (\S+)", done.stdout, re.MULTILINE)
        self.assertEqual([loss for _, loss in shown], [f"{5 / (1 + int(step)):.4f}" for step, _ in shown])
        steps = [int(step) for step, _ in shown]
        self.assertEqual(steps, sorted(set(steps)))
        self.assertEqual(steps[-1:], [5])
        self.assertIn("6.00 MiB", done.stdout)
        self.assertIn(f"{self.out}/final", done.stdout)
        self.assertEqual(list(self.runtime.iterdir()), [])
        self.assertTrue((self.out / "logs" / "coordinator.log").exists())

    def test_json(self):
        lines = [json.loads(l) for l in self.harmony(*self.run_arguments(), "--json").stdout.splitlines()]
        self.assertEqual(lines[-1]["type"], "summary")
        self.assertEqual(lines[-1]["last"]["job"]["state"], "finished")
        steps = [l["step"] for l in lines if l["type"] == "progress"]
        self.assertEqual(steps, sorted(steps))
        self.assertEqual(steps[-1], 5)
        # The job's file and plan are not in every line about it.
        self.assertFalse([l for l in lines if l["type"] == "progress" and "job_yaml" in l["job"]])

    def started(self):
        process = self.start(*self.run_arguments())
        harness.wait_for(lambda: process.poll() is not None or "step " in (self.dir / "run.log").read_text(),
                         "a step")
        return process, self.all_pids()

    def test_a_signal_cancels_and_says_how_to_resume(self):
        self.control("steps", 100000)
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            process, pids = self.started()
            process.send_signal(number)
            self.wait_exit(process, code)
            self.assertIn("resume", (self.dir / "run.log").read_text())
            self.gone(pids)
            self.assertEqual(list(self.runtime.iterdir()), [])
            (self.dir / "run.log").write_text("")

    def test_a_second_signal_stops_at_once(self):
        self.control("steps", 3)
        self.control("coordinator.stubborn")
        process, pids = self.started()
        # The job ends, so nothing would be lost, but its coordinator does not: a second signal helps.
        process.send_signal(signal.SIGINT)
        harness.wait_for(lambda: "stopping" in (self.dir / "run.log").read_text(), "the first signal")
        process.send_signal(signal.SIGINT)
        warning = "once more to stop at once, which loses step"
        harness.wait_for(lambda: process.poll() is not None or warning in (self.dir / "run.log").read_text(), "an answer")
        process.send_signal(signal.SIGINT)  # where it did not know yet that the job has ended
        self.wait_exit(process, 130)
        self.gone(pids)
        self.assertEqual(list(self.runtime.iterdir()), [])

    def test_further_signals_say_what_is_lost_and_stop_at_once(self):
        self.control("steps", 100000)
        self.control("coordinator.stubborn")
        process, pids = self.started()
        process.send_signal(signal.SIGSTOP)  # both come before the job has stopped
        for number in (signal.SIGINT, signal.SIGTERM):
            process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        harness.wait_for(lambda: "which loses step" in (self.dir / "run.log").read_text(), "what is lost")
        process.send_signal(signal.SIGINT)
        self.wait_exit(process, 130)
        self.assertIn("it begins anew: there is no checkpoint", (self.dir / "run.log").read_text())
        self.gone(pids)

    def test_the_coordinator_may_die(self):
        self.control("steps", 60)
        process, _ = self.started()
        for incarnation in (1, 2):
            self.kill(self.processes()[("coordinator", 0)]["pid"])
            harness.wait_for(lambda: process.poll() is not None or
                             self.processes().get(("coordinator", 0), {}).get("incarnation") == incarnation, "restart")
            mark = (self.dir / "run.log").read_text().count("coordinator is back")
            harness.wait_for(lambda: process.poll() is not None or
                             (self.dir / "run.log").read_text().count("coordinator is back") >= incarnation, mark)
        self.wait_exit(process, 0)
        self.assertIn("step 60/60", (self.dir / "run.log").read_text())

    def test_a_killed_run_takes_everything_with_it(self):
        self.control("steps", 100000)
        process, pids = self.started()
        process.kill()
        process.wait()
        self.gone(pids)
        harness.wait_for(lambda: list(self.runtime.iterdir()) == [], "the runtime directory to be gone")

    def test_a_runtime_directory_that_was_named_stays_with_what_is_in_it(self):
        named = self.dir / "named"  # is not there yet
        self.out = named / "out"
        self.harmony("--runtime-dir", named, *self.run_arguments())
        self.assertTrue(named.is_dir())
        self.out.mkdir(exist_ok=True)
        (self.out / "weights").write_text("trained")
        self.control("steps", 100000)
        process = self.start("--runtime-dir", named, *self.run_arguments())
        harness.wait_for(lambda: process.poll() is not None or "step " in (self.dir / "run.log").read_text(), "a step")
        pids = [p["pid"] for p in json.loads((named / "processes.json").read_text())["processes"]]
        process.kill()
        process.wait()
        self.gone(pids)
        harness.wait_for(lambda: not (named / "harmony.lock").exists(), "the launcher to have ended")
        self.assertEqual((self.out / "weights").read_text(), "trained")
        self.assertFalse((named / "coordinator.sock").exists())

    def test_what_everything_killed_at_once_leaves_is_removed_by_the_next_run(self):
        self.control("steps", 100000)
        process, pids = self.started()
        supervisor = json.loads(next(self.runtime.rglob("processes.json")).read_text())["supervisor"]
        os.kill(process.pid, signal.SIGSTOP)  # else it would clean up
        for pid in [supervisor, process.pid]:
            self.kill(pid)
        process.wait()
        self.gone(pids)
        self.control("steps", 2)
        self.harmony(*self.run_arguments())
        self.assertEqual(list(self.runtime.iterdir()), [])

    def test_a_job_that_fails(self):
        self.control("job_error", "loss is nan at step 2, layers 3-4\nand more")
        done = self.harmony(*self.run_arguments(), check=1)
        self.assertIn("error: loss is nan at step 2, layers 3-4\nand more", done.stderr)
        done = self.harmony(*self.run_arguments(), "--json", check=1)
        self.assertIn("loss is nan at step 2", str(json.loads(done.stderr.splitlines()[-1])))

    def test_a_job_that_is_refused(self):
        self.control("submit_error", "job.yaml: unknown key 'max_step'")
        done = self.harmony(*self.run_arguments(), check=2)
        self.assertIn("unknown key 'max_step'", done.stderr)
        self.assertEqual(list(self.runtime.iterdir()), [])

    def test_bad_usage(self):
        for arguments, word in ((["run", "nowhere.yaml"], "nowhere.yaml"),
                                (["run", self.job_file, "--set", "nonsense"], "nonsense"),
                                (["run", self.job_file, "--devices", "sum:mem=1MiB"], "sum"),
                                (["run", self.job_file, "--devices", "sim:mem=1MiB", "--host-memory", "x"], "host_memory"),
                                (["run"], "job"), ([], "subcommand"), (["cancel", "1"], "harmony up"),
                                (["profile", self.job_file, "-o", "p.json"], "the key 'data' is missing"),
                                (["export", "1", "-o", "there"], "no job '1'"),
                                (["export", "1", "-o", "there", "--dtype", "int8"], "bf16")):
            with self.subTest(arguments):
                code = 1 if arguments[:1] == ["cancel"] else 2
                self.assertIn(word, self.harmony(*arguments, check=code).stderr)
                done = self.harmony(*arguments, "--json", check=code)
                error = json.loads(done.stderr.splitlines()[-1])["error"]
                self.assertIn(word, error["message"])
                self.assertRegex(error["code"], "^[A-Z_]+$")
                self.assertEqual(done.stdout, "")
        self.assertEqual(list(self.runtime.iterdir()), [])


class JobsTest(Launcher):

    def test_the_commands_of_a_job(self):
        self.control("steps", 50)
        self.up()
        self.assertEqual(json.loads(self.harmony("list", "--json").stdout), [])
        self.assertEqual(json.loads(self.harmony("submit", self.job_file, "--json").stdout)["job_id"], "job-1")
        self.assertIn("job-1", self.harmony("list").stdout)
        status = json.loads(self.harmony("status", "job-1", "--json").stdout)
        self.assertEqual((status["state"], status["max_steps"]), ("running", 50))
        self.assertIn("job-1", self.harmony("status").stdout)
        watched = self.harmony("watch", "job-1")
        self.assertIn("step 50/50", watched.stdout)
        self.assertIn("job-1 finished", watched.stdout)
        self.assertIn("a recovery", self.harmony("logs", "job-1").stdout)
        self.assertIn("worker-1", self.harmony("logs").stdout)
        trace = self.dir / "trace.json"
        self.harmony("trace", "job-1", "-o", trace)
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
        self.assertEqual([(e["name"], e["ts"], e["dur"]) for e in events], [("forward layers 0-1", 0, 4)])
        self.assertIn("no job job-7", self.harmony("watch", "job-7", check=2).stderr)

    def test_plan_without_a_coordinator(self):
        done = self.harmony("plan", self.job_file, "--set", "a=b", *self.cluster(), "--json")
        for text in (f"--job {self.job_file}", f"--devices {DEVICES}", "--host-memory 67108864", "--set a=b", "--json"):
            self.assertIn(text, done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
