#!/usr/bin/env python3
"""Hundreds of kills and stops of all processes of a few long runs, and what memory does meanwhile. Takes tens of minutes.

    python3 tests/endurance/endurance.py                                  # a proof of faults
    python3 tests/endurance/endurance.py --jobs eager --steps 10000 --width 64 --faults 80 --updates 0 --saves 0 \\
        --storms 0 --blackouts 0 --spare coordinator --tolerance 0.1      # a proof of memory

Each job runs twice: undisturbed, and with faults at random steps. Losses and final/ have to be the same to the last bit,
whatever happened, and no fault from outside may fail a job. Faults, drawn from a printed seed:

    kill            SIGKILL of one process, of several at once, or of one while another is stopped
    stop            SIGSTOP and, up to 1.5 s later, SIGCONT; the launcher, too
    hang            SIGSTOP for good: the launcher replaces it
    update, save    SIGKILL of the host worker inside an update (the segment is watched for it), and of any process inside a
                    save of a checkpoint
    storm           SIGKILL of every incarnation of one process, twelve times in a row
    blackout        SIGKILL of everything; the next run goes on from the last checkpoint

Each second the memory of every process is read: its anonymous memory (heap and stacks; the segment, devices and programs
do not count). Printed are, of each process, the incarnations and what they take once they have run for a few seconds, and
of one that was never replaced the trend from the middle of the run on, or from where the timelines are full.
--tolerance MIB: a trend above it fails.
"""
import argparse
import collections
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import statistics
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "integration"))
import harness  # noqa: E402
import segment_view  # noqa: E402

STORM = 12
# The coordinator keeps the last 8192 commands of each lane for `harmony trace`, some 1 MiB a lane: it grows until the lane
# with the fewest, one a step, has had as many.
FULL_TIMELINES = 8400
MODEL = dict(harness.TINY_GPT2, n_layer=2)
SMALL = {"global_batch_size": 2, "micro_batch_size": 1, "sequence_length": 8, "save_steps": 25}
TWO = "sim*2:mem=64MiB"
JOBS = {
    "eager": (TWO, {}),
    "clipped": (TWO, {"max_grad_norm": 0.5}),
    "mixed": (TWO, {"bf16": True, "gradient_dtype": "bf16"}),
    "shared": ("sim*2:mem=64MiB,h2d=4GB/s,d2h=4GB/s,root=a", {"mode": "harmony-dp", "global_batch_size": 4}),
    "stashes": (TWO, {"stash": "device", "layer_groups": [1, 1, 1, 1]}),
}
HOST, COORDINATOR = ("host", 0), ("coordinator", 0)


def name_of(who):
    return f"{who[0]} {who[1]}" if who[0] == "worker" else who[0]


def anonymous_mib(pid):
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("Anonymous:"))


def trend(samples):
    """Of [(step, MiB)]: what a straight line through them rises from end to end, and how far they scatter around it."""
    steps, values = zip(*samples)
    slope, start = statistics.linear_regression(steps, values)
    scatter = statistics.pstdev(value - start - slope * step for step, value in samples)
    return slope * (steps[-1] - steps[0]), scatter


class Endurance(harness.Scratch):
    """One job, calm and disturbed."""

    def __init__(self, job_name, options):
        super().__init__("prove")
        self.job_name, self.options = job_name, options
        self.devices, self.changes = JOBS[job_name]
        self.counts = collections.Counter()  # by (process, what, where)
        self.samples = []  # (process, incarnation, its age in s, step, MiB)
        self.view = None
        self.stopped = []  # (when to go on, pid)

    def make_model(self, name, config):
        return super().make_model(name, dict(MODEL, n_embd=self.options.width))

    # ---- What is seen of the run ----

    def lines(self):
        try:
            return (self.out / "metrics.jsonl").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def ended(self):
        return self.process.poll() is not None

    def partials(self):
        with contextlib.suppress(FileNotFoundError):
            return {name for name in os.listdir(self.out) if name.startswith("checkpoint-") and ".partial-" in name}
        return set()

    def supervisor(self):
        for path in self.runtime_files("processes.json"):
            with contextlib.suppress(ValueError, FileNotFoundError):
                return json.loads(path.read_text())["supervisor"]
        return 0

    def wait(self, condition, what):
        """As harness.wait_for, but wakes what is due, and ends with the run."""
        def met():
            self.wake()
            return condition() or self.ended()
        try:
            harness.wait_for(met, f"{self.job_name}: {what}, after {self.lines()} steps", deadline=300, pause=0.002)
        except AssertionError as error:
            self.fail(f"{error}\n{self.logs()}\n{self.replay}")
        return not self.ended()

    def watch_memory(self):
        born = {}
        while not self.over.wait(1):
            step = self.lines()
            watched = dict(self.processes())
            for who, pid in ((("launcher", 0), self.supervisor()), (("client", 0), self.process.pid)):
                if pid:
                    watched[who] = {"pid": pid, "incarnation": 0}
            for who, listed in watched.items():
                since = born.setdefault((who, listed["pid"]), time.monotonic())
                with contextlib.suppress(OSError, StopIteration):
                    self.samples.append((who, listed["incarnation"], time.monotonic() - since, step,
                                         anonymous_mib(listed["pid"])))

    # ---- Faults ----

    def note(self, who, what, where=None):
        if where is None:
            step = self.lines()
            where = "running" if step > self.seen_step else "recovering"
            self.seen_step = step
        self.counts[name_of(who), what, where] += 1

    def wake(self):
        now = time.monotonic()
        for due, pid in [each for each in self.stopped if each[0] <= now]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.stopped = [each for each in self.stopped if each[0] > now]

    def victims(self, count):
        """Processes that live now, but those to be spared: [(name, pid)]."""
        alive = []
        def some():
            alive[:] = [(who, p["pid"]) for who, p in sorted(self.processes().items())
                        if p["pid"] and self.alive(p["pid"]) and name_of(who) not in self.options.spare]
            return len(alive) >= count
        return self.random.sample(alive, count) if self.wait(some, f"{count} living processes") else []

    def signal(self, pid, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def kill_some(self):
        for who, pid in self.victims(self.random.choice([1, 1, 1, 1, 2, 2, 3, 4])):
            self.signal(pid, signal.SIGKILL)
            self.note(who, "kill")

    def stop_one(self):
        for who, pid in self.victims(1):
            self.signal(pid, signal.SIGSTOP)
            self.stopped.append((time.monotonic() + self.random.uniform(0, 1.5), pid))
            self.note(who, "stop")

    def stop_launcher(self):
        if pid := self.supervisor():
            self.signal(pid, signal.SIGSTOP)
            self.stopped.append((time.monotonic() + self.random.uniform(0, 1.5), pid))
            self.note(("launcher", 0), "stop")

    def hang_one(self):
        for who, pid in self.victims(1):
            self.signal(pid, signal.SIGSTOP)
            self.note(who, "hang")

    def stop_one_and_kill_another(self):
        pair = self.victims(2)
        if not pair:
            return
        (stopped, pid), (killed, other) = pair
        self.signal(pid, signal.SIGSTOP)
        self.signal(other, signal.SIGKILL)
        for_good = self.random.random() < 0.2
        if not for_good:
            self.stopped.append((time.monotonic() + self.random.uniform(0, 1.5), pid))
        self.note(stopped, "hang" if for_good else "stop")
        self.note(killed, "kill")

    def kill_inside_update(self):
        pid = self.processes().get(HOST, {}).get("pid")
        # One that was cut short before is not the one that is waited for.
        if not pid or not self.wait(lambda: not self.view.update_under_way() or not self.alive(pid), "no update"):
            return
        end = time.monotonic() + 20
        under_way = self.view.update_under_way
        while not any(under_way() for _ in range(1000)) and self.alive(pid) and time.monotonic() < end:
            self.wake()
        self.signal(pid, signal.SIGKILL)
        self.wait(lambda: not self.alive(pid), "its death")
        self.note(HOST, "kill", "inside an update" if self.view.update_under_way() else None)

    def kill_inside_save(self):
        before, found = self.partials(), set()
        if not self.wait(lambda: found.update(self.partials() - before) or found, "a checkpoint"):
            return
        alive = {who: p["pid"] for who, p in self.processes().items() if name_of(who) not in self.options.spare}
        who = HOST if self.random.random() < 0.6 and HOST in alive else self.random.choice(sorted(alive))
        if self.random.random() < 0.3:
            time.sleep(self.random.random() * 0.02)
        self.signal(alive[who], signal.SIGKILL)
        self.wait(lambda: not self.alive(alive[who]), "its death")
        # What was being written has not become a checkpoint.
        self.note(who, "kill", "inside a save" if found & self.partials() else None)

    def storm(self, who):
        killed = set()
        for _ in range(STORM):
            fresh = lambda: (self.processes().get(who, {}).get("pid") or None) not in {None} | killed
            if not self.wait(fresh, f"another {name_of(who)}"):
                return
            pid = self.processes()[who]["pid"]
            end = time.monotonic() + self.random.random() * 1.5
            self.wait(lambda: time.monotonic() > end, "a moment")
            killed.add(pid)
            self.signal(pid, signal.SIGKILL)
            self.note(who, "kill in a storm")

    def blackout(self):
        self.wait(lambda: list(self.out.glob("checkpoint-*/manifest.json")), "a checkpoint")
        self.wait(lambda: len(self.all_pids()) == 5 and all(self.all_pids()), "all processes")
        for who in self.processes():
            self.note(who, "kill", "all at once")
        self.kill_all(self.process)
        self.wait_run_folder_gone()
        self.begin()

    # ---- The proof ----

    def begin(self):
        self.process = self.start("run", self.job_file, "--devices", self.devices)
        self.seen_step = -1
        self.wait(lambda: self.lines() > 0 and self.supervisor() and
                  self.processes().get(COORDINATOR, {}).get("pid"), "a step")
        with contextlib.suppress(FileNotFoundError):
            self.view = segment_view.SegmentView(self.supervisor())

    def draw(self):
        """[(step, fault)] in order."""
        options = self.options
        mixed = [self.kill_some] * 10 + [self.stop_one] * 6 + [self.stop_one_and_kill_another] * 3 + \
                [self.stop_launcher, self.hang_one]
        faults = [self.random.choice(mixed) for _ in range(options.faults)]
        faults += [self.kill_inside_update] * options.updates + [self.kill_inside_save] * options.saves
        faults += [self.blackout] * options.blackouts
        everyone = [("coordinator", 0), ("swapper", 0), ("host", 0), ("worker", 0), ("worker", 1)]
        stormed = [who for who in everyone if name_of(who) not in options.spare]
        faults += [lambda who=who: self.storm(who) for who in stormed for _ in range(options.storms)]
        self.random.shuffle(faults)
        steps = sorted(self.random.randrange(options.steps * 97 // 100) for _ in faults)
        return list(zip(steps, faults))

    def prove(self):
        options = self.options
        self.random = random.Random(f"{os.environ['HARMONY_SEED']} {self.job_name}")
        changes = dict(SMALL, **self.changes, max_steps=options.steps)
        calm_job, calm = self.job("calm", **changes)
        self.wait_exit(self.start("run", calm_job, "--devices", self.devices, log="calm.log"), 0, 3600)
        self.wait_run_folder_gone()
        self.env["HARMONY_HANG_SECONDS"] = str(self.options.hang_seconds)
        self.job_file, self.out = self.job("disturbed", **changes)
        self.addCleanup(self.keep_logs)
        self.over = threading.Event()
        watch = threading.Thread(target=self.watch_memory)
        try:
            self.begin()
            watch.start()
            for step, fault in self.draw():
                if not self.wait(lambda: self.lines() >= step, f"step {step}"):
                    break
                fault()
            while self.stopped:
                self.wake()
            self.wait_exit(self.process, 0, 3600)
        finally:
            self.over.set()
            if watch.is_alive():
                watch.join()
            for _, pid in self.stopped:
                self.signal(pid, signal.SIGCONT)
            self.report_faults()
        self.report_memory()
        self.assertEqual(harness.losses(self.out), harness.losses(calm), f"losses; {self.replay}")
        self.assertEqual(harness.weights_digest(self.out / "final"), harness.weights_digest(calm / "final"))
        steps = [m["step"] for m in harness.read_metrics(self.out)]
        self.assertEqual(steps, list(range(1, options.steps + 1)))
        print(f"{self.job_name}: losses of {options.steps} steps and final/ are those of the undisturbed run", flush=True)

    def keep_logs(self):
        if not self.options.keep:
            return
        kept = self.options.keep / self.job_name
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for path in [*self.dir.glob("*.log"), *(self.out / "logs").glob("*.log"), *self.runtime_files(".log")]:
            shutil.copy(path, kept)
        with open(kept / "memory.jsonl", "w") as file:
            for who, incarnation, age, step, mib in self.samples:
                file.write(json.dumps({"process": name_of(who), "incarnation": incarnation, "age_s": round(age, 1),
                                       "step": step, "anonymous_mib": round(mib, 3)}) + "\n")

    def report_faults(self):
        print(f"{self.job_name}: {sum(self.counts.values())} faults", flush=True)
        for key, count in sorted(self.counts.items()):
            print("  %-12s %-16s %-17s %4d" % (*key, count))

    def report_memory(self):
        print(f"{self.job_name}: MiB of anonymous memory")
        grown = []
        for who in sorted({sample[0] for sample in self.samples}):
            settled = collections.defaultdict(list)
            for _, incarnation, age, step, mib in (s for s in self.samples if s[0] == who):
                if age > 3:
                    settled[incarnation].append((step, mib))
            medians = [statistics.median(mib for _, mib in each) for each in settled.values()]
            if len(medians) > 1:
                quarter = max(len(medians) // 4, 1)
                print(f"  {name_of(who):12} {len(medians)} incarnations that lived: first quarter "
                      f"{statistics.median(medians[:quarter]):.1f}, last quarter {statistics.median(medians[-quarter:]):.1f}, "
                      f"all {min(medians):.1f} to {max(medians):.1f}")
                continue
            begin = max(self.options.steps // 2, FULL_TIMELINES if self.options.steps > FULL_TIMELINES else 0)
            late = [each for each in settled[0] if each[0] >= begin]
            if len(late) < 20:
                continue
            rise, scatter = trend(late)
            print(f"  {name_of(who):12} one incarnation: {settled[0][0][1]:.2f} at step {settled[0][0][0]}, {late[0][1]:.2f} at step "
                  f"{late[0][0]}, {late[-1][1]:.2f} at the end; between these {rise:+.3f} by a line, +-{scatter:.3f} around it")
            if self.options.tolerance is not None and rise > self.options.tolerance:
                grown.append(name_of(who))
        self.assertEqual(grown, [], "these grow")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    parser.add_argument("--steps", type=int, default=1500, help="of each job")
    parser.add_argument("--width", type=int, default=256, help="of the model: an update is to last for as long as a look and a kill")
    parser.add_argument("--faults", type=int, default=60, help="kills, stops and hangs of each job")
    parser.add_argument("--updates", type=int, default=12, help="kills meant to be inside an update")
    parser.add_argument("--saves", type=int, default=8, help="kills meant to be inside a save")
    parser.add_argument("--storms", type=int, default=1, help="of each process")
    parser.add_argument("--blackouts", type=int, default=1)
    parser.add_argument("--hang-seconds", type=int, default=3, help="after which the launcher replaces what hangs")
    parser.add_argument("--spare", nargs="*", default=[], help="processes that nothing happens to, as they are printed")
    parser.add_argument("--tolerance", type=float, help="MiB that a process may grow by in the end")
    parser.add_argument("--keep", type=pathlib.Path, help="folder for logs and samples of memory")
    options = parser.parse_args()
    seed = int(os.environ.setdefault("HARMONY_SEED", str(random.SystemRandom().randrange(1 << 31))))
    print(f"seed: HARMONY_SEED={seed}", flush=True)
    suite = unittest.TestSuite(Endurance(name, options) for name in options.jobs)
    result = unittest.TextTestRunner(stream=sys.stdout, verbosity=2).run(suite)
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
