#!/usr/bin/env python3
"""Harmony's speed with a llama of 6.7 billion parameters, or of fewer layers, in bf16 at 2048 tokens, 32 thousand tokens a
step: the part "fast" of measure.py.

    fast.py prepare --layers 2 8 32 --scratch DIR [--fake]     # exports with random weights; needs no GPU
    fast.py train --layers 8 --cap 24GiB --scratch DIR [--copies worker] [--fake]

A run is measured step by step from what it writes, and ended before its own end, which would write a checkpoint of twelve
bytes a parameter. The yardstick is the same layers resident: what `harmony profile` measures of the forwards and backwards that
the plan has, with what it computes twice, over all layers and microbatches.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time
import uuid

import figures
import machine
import steps

machine.use()
import export_large  # noqa: E402
import numpy  # noqa: E402
import prediction  # noqa: E402

WARM_UP, MEASURED = 2, 5  # steps
MICROBATCH = 4  # sequences: what the planner chooses by itself with caps of 12 and 24 GiB
SHARED_AT_REST = 2 << 30  # bytes of shared memory that may be in use before a run
HOST_LEFT = 8 << 30  # bytes of the host's memory, for everything but the arena
SECONDS_AT_THE_END = 12  # of the time limit, what is kept for judging what was seen
FORWARD_SHARE = 1 / 3  # of a forward and a backward, in operations


class Shape:
    """What is trained; with the driver made for tests, next to nothing."""

    def __init__(self, fake):
        self.fake = fake
        self.config = dict(export_large.LLAMA_7B)
        self.length, self.sequences = 2048, 16
        if fake:
            self.config.update(hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=4,
                               vocab_size=256)
            self.length = 32

    @property
    def tokens(self):
        return self.length * self.sequences


def exported(scratch, layers):
    return scratch / f"llama-{layers}"


def export(shape, layers, scratch):
    """Exports without weights, then writes random ones: they are never in memory together."""
    began, folder, source = time.monotonic(), exported(scratch, layers), scratch / f"config-{layers}"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({**shape.config, "num_hidden_layers": layers}))
    subprocess.run([sys.executable, "-m", "harmony_export", "hf", source, "--task", "causal-lm", "--sequence-length",
                    str(shape.length), "--no-weights", "--dtype", "bf16", "-o", folder], check=True,
                   env={**os.environ, "PYTHONPATH": str(machine.ROOT / "client" / "export")})
    described = json.loads((folder / "model.json").read_text())
    done = time.monotonic()
    size = write_weights(folder / "weights.safetensors", described["parameters"], shape.config)
    figures.note(f"prepare.{layers}.export", done - began, "s")
    figures.note(f"prepare.{layers}.weights", time.monotonic() - done, "s", bytes=size)


def write_weights(path, parameters, config):
    """Normal numbers of deviation 0.02, ones for norms, and the frequencies of the rotary embedding. All tensors take theirs
    from one pool, from another place each: drawing seven billion would take longer than the measurement."""
    pool = (numpy.random.default_rng(0).standard_normal(1 << 24, dtype=numpy.float32) * 0.02).view(numpy.uint32)
    pool = ((pool + 0x8000) >> 16).astype(numpy.uint16)  # bf16, rounded
    header, position = {}, 0
    kinds = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}
    for parameter in parameters:
        kind, width = kinds[parameter["dtype"]]
        size = width * int(numpy.prod(parameter["shape"]))
        header[parameter["name"]] = {"dtype": kind, "shape": parameter["shape"], "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", buffering=0) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, parameter in enumerate(parameters):
            for piece in pieces(parameter, number, pool, config):
                file.write(memoryview(piece).cast("B"))
    return position


def pieces(parameter, number, pool, config):
    """A parameter's numbers, as arrays."""
    count = int(numpy.prod(parameter["shape"]))
    if parameter["name"].endswith("inv_freq"):
        width = config["hidden_size"] // config["num_attention_heads"]
        yield (10000.0 ** -(numpy.arange(0, width, 2) / width)).astype(numpy.float32)
    elif len(parameter["shape"]) == 1:
        yield numpy.full(count, 0x3F80, numpy.uint16)
    else:
        place = number * 7919 % len(pool)
        while count > 0:
            piece = pool[place:place + count]
            yield piece
            count, place = count - len(piece), 0


def prepare(args):
    shape = Shape(args.fake)
    args.scratch.mkdir(parents=True, exist_ok=True)
    tokens = numpy.random.default_rng(1).integers(0, shape.config["vocab_size"], 4 * shape.tokens + 1, numpy.uint16)
    tokens.tofile(args.scratch / "tokens.bin")
    for layers in args.layers:
        export(shape, layers, args.scratch)


@contextlib.contextmanager
def output_folder(scratch, needed):
    """A folder on a file system that has room for what a job would write at its end, though it never comes to that: where
    there is none, a memory file system that claims to."""
    for folder in (scratch, pathlib.Path("/dev/shm")):
        if folder.is_dir() and shutil.disk_usage(folder).free > needed:
            made = folder / "harmony-measurement"
            try:
                yield made
            finally:
                shutil.rmtree(made, ignore_errors=True)
            return
    folder = scratch / "claimed"
    folder.mkdir(exist_ok=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={2 * needed}", "none", folder]).returncode == 0
    print(f"output_dir needs {needed / 1e9:.0f} GB: memory file system {'mounted' if mounted else 'refused'}", flush=True)
    try:
        yield folder / "harmony-measurement"
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder])


class Training:
    """One job with one cap."""

    def __init__(self, args, out):
        self.until = time.monotonic() + float(os.environ.get(steps.SECONDS, 300)) - SECONDS_AT_THE_END
        self.shape, self.layers, self.fake = Shape(args.fake), args.layers[0], args.fake
        self.name = name_of(args)
        device = f"cuda:0,mem={args.cap}" + (f",copies={args.copies}" if args.copies else "")
        self.folder, self.out = exported(args.scratch, self.layers), out
        self.work = args.scratch / self.name
        self.described = json.loads((self.folder / "model.json").read_text())
        self.parameters = parameters_of(self.described)
        self.cluster = ["--devices", device]
        if not self.fake:
            # The programs by themselves leave a fifth of what is available.
            self.cluster += ["--host-memory", str(memory_at_rest() - HOST_LEFT)]
        self.env = {**os.environ, **machine.environment(args.fake), "XDG_CACHE_HOME": str(self.work / "cache"),
                    "HOME": str(self.work)}
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        self.job = self.work / "job.yaml"
        self.job.write_text(json.dumps({
            "model_name_or_path": str(self.folder), "init": "pretrained", "bf16": True,
            "data": {"path": str(args.scratch / "tokens.bin"), "format": "tokens-u16"},
            "sequence_length": self.shape.length, "global_batch_size": self.shape.sequences, "micro_batch_size": MICROBATCH,
            "virtual_replicas": 1, "max_steps": 200, "optim": "adamw", "learning_rate": 1e-5, "output_dir": str(out)}))

    def command(self, *words, cluster=True):
        return [str(machine.programs() / "bin" / "harmony"), "--runtime-dir", str(self.work / "run"), "--state-dir",
                str(self.work / "state"), *map(str, words), *self.cluster * cluster]

    def harmony(self, *words):
        done = subprocess.run(self.command(*words), env=self.env, text=True, capture_output=True, stdin=subprocess.DEVNULL)
        print(done.stdout[-3000:] if "--json" not in words else "", done.stderr[-3000:], flush=True)
        if done.returncode != 0:
            raise RuntimeError(f"harmony {words[0]}: exit {done.returncode}: {done.stderr[-1200:]}")
        return done.stdout

    def note(self, name, value, unit="", **more):
        figures.note(f"{self.name}.{name}", value, unit, **more)

    @contextlib.contextmanager
    def readings(self, what):
        """Clocks, power and what holds clocks down, as the driver tells them meanwhile: a GPU that was idle is faster at first
        than one that is busy for long."""
        asked = "clocks.sm,clocks.mem,power.draw.instant,temperature.gpu,clocks_event_reasons.active"
        file = self.work / f"{what}.csv"
        if self.fake or not shutil.which("nvidia-smi"):
            yield
            return
        with open(file, "w") as out:
            process = subprocess.Popen(["nvidia-smi", f"--query-gpu=timestamp,{asked}", "--format=csv,noheader,nounits",
                                        "--loop-ms=200"], stdin=subprocess.DEVNULL, stdout=out)
        try:
            yield
        finally:
            process.kill()
            process.wait()
            read = file.read_text()
            self.keep(file.name, read)
            rows = [line.split(", ") for line in read.splitlines()]
            for place, name, unit in ((1, "clock", "MHz"), (3, "power", "W")):
                with contextlib.suppress(ValueError, IndexError, statistics.StatisticsError):
                    self.note(f"{what}.{name}", statistics.median(float(row[place]) for row in rows if float(row[3]) > 200), unit)

    def measure(self, failures):
        """The plan is searched once, by what was measured: of many layers a search takes seconds. Without a profile the run
        is measured all the same."""
        self.note("parameters", self.parameters)
        self.note("sequences", self.shape.sequences)
        profile, planned, by, measured, resident = self.work / "P.json", self.work / "plan.json", [], None, None
        with figures.attempt(f"{self.name}.profile", failures):
            with self.readings("profiling"):
                self.harmony("profile", self.job, "-o", profile)
            measured = json.loads(profile.read_text())
            by = ["--profile", profile]
        planned.write_text(self.harmony("plan", self.job, *by, "--json"))
        plan = json.loads(planned.read_text())
        for file in filter(pathlib.Path.exists, (profile, planned)):
            self.keep(file.name, file.read_text())
        print(json.dumps({key: plan[key] for key in ("groups", "host", "time_estimate", "minimal_swap")}))
        if measured is not None:
            self.note("predicted_step", plan["time_estimate"]["step_seconds"], "s")
            with figures.attempt(f"{self.name}.resident", failures):
                resident = self.resident(measured, plan)
        self.note("planned_host_bytes_per_parameter", plan["host"]["bytes_per_parameter"], "B")
        with self.readings("training"):
            self.train([*by, "--plan", planned], plan, resident)

    def resident(self, profile, plan):
        """Seconds of the tasks of a step in which nothing is moved; with the forwards that the plan does again, and without."""
        times, microbatches = {}, self.shape.sequences // MICROBATCH
        for layer in profile["devices"][0]["layers"]:
            size = next(size for size in layer["sizes"] if size["samples"] == MICROBATCH)
            found = {key.removesuffix("_s"): value["median"] for key, value in size.items() if key.endswith("_s")}
            print(f"{layer['kind']}: {len(layer['layers'])} times {found}")
            times.update(dict.fromkeys(layer["layers"], found))
        for link in ("h2d", "d2h"):
            for when in ("alone", "duplex"):
                rate = profile["devices"][0][link][f"{when}_bytes_per_s"]["median"]
                self.note(f"link.{link}.{when}", rate / 1e9, "GB/s")
        self.note("host_update", profile["host"]["update_bytes_per_s"]["median"] / 1e9, "GB/s")
        twice = self.computed_twice(plan)
        seconds = microbatches * sum(seconds_of(group, times) for group in plan["groups"])
        again = microbatches * sum(times[layer]["forward"] for layer in twice)
        self.note("resident_step", seconds, "s")
        self.note("resident_step_without_recompute", seconds - again, "s")
        return seconds

    def train(self, by, plan, resident):
        log = open(self.work / "run.log", "w+")
        began = time.monotonic()
        process = subprocess.Popen(self.command("run", self.job, *by), env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT)
        lines, segment = [], 0
        try:
            while process.poll() is None and time.monotonic() < self.until and len(lines) < WARM_UP + MEASURED:
                time.sleep(0.2)
                now = self.metrics()
                if now and not lines:
                    self.note("until_first_step", time.monotonic() - began, "s")
                    segment = memory_of_segment()
                if len(now) > len(lines):
                    print(json.dumps(now[-1]), flush=True)
                lines = now
            if lines:
                with figures.attempt(f"{self.name}.trace", []):
                    self.trace()
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)  # its children end with it
            process.wait()
            said = self.print_logs(log)
            steps.end_marked(os.environ[steps.MARK])  # the next run needs the memory that they hold
        if len(lines) < 2:
            raise RuntimeError(f"{len(lines)} steps were done, of which the first is warm-up; the run said: {said}")
        self.judge(lines, plan, resident, segment)

    def trace(self):
        """What the lanes did in the last steps."""
        file = self.work / "trace.json"
        subprocess.run(self.command("trace", "job-1", "-o", file, cluster=False), env=self.env, timeout=20)
        if file.exists():
            subprocess.run([sys.executable, machine.ROOT / "bench" / "control_plane.py", file], timeout=20)
            trace = json.loads(file.read_text())
            for lane, share in busy_shares(trace).items():
                self.note(f"busy.{lane}", share)
            self.keep("timeline.log", "\n".join(timeline(trace)) + "\n")

    def keep(self, name, text):
        """Beside the logs, with which it comes back."""
        if figures.FILE in os.environ:
            pathlib.Path(os.environ[figures.FILE]).with_name(f"{self.name}.{name}").write_text(text)

    def metrics(self):
        path, lines = self.out / "metrics.jsonl", []
        if path.exists():
            for line in path.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(line))
        return lines

    def print_logs(self, log):
        log.seek(0)
        said = log.read()
        print(said[-4000:])
        for path in sorted([*self.out.glob("logs/*.log"), *self.work.rglob("*.log")]):
            if path.name != "run.log":
                print(f"--- {path.name}\n{path.read_text(errors='replace')[-2500:]}")
        return said

    def judge(self, lines, plan, resident, segment):
        measured = lines[min(WARM_UP, len(lines) - 1):]
        step = statistics.median(line["seconds"] for line in measured)
        self.note("step", step, "s", steps=[line["seconds"] for line in lines])
        self.note("tokens_per_second", self.shape.tokens / step)
        self.note("losses", [line["loss"] for line in lines])
        if resident is not None:
            self.note("resident_share", resident / step)
            self.note("prediction_off", step / plan["time_estimate"]["step_seconds"] - 1,
                      predicted_in_metrics=measured[-1].get("predicted_seconds"))
        moved, planned = measured[-1]["swap_bytes"], plan["time_estimate"]["swap_bytes"]
        least = {kind: size for kind, size in plan["minimal_swap"].items() if size}
        self.note("swap_ratio", max(moved[kind] / size for kind, size in least.items()), least=least, moved=moved)
        self.note("swap_of_plan", sum(moved.values()) / max(sum(planned.values()), 1), planned=planned)
        self.note("operations_rate", self.operations(plan) / step / 1e12, "TFLOP/s")
        self.note("peak_device_bytes", measured[-1]["peak_device_bytes"])
        if segment:
            beside = segment - plan["host"]["dynamic"]
            self.note("host_bytes_per_parameter", beside / self.parameters, "B", segment=segment, dynamic=plan["host"]["dynamic"])

    def operations(self, plan):
        """Of a step, with what the plan computes twice."""
        by_digest = {graph["graph"]: graph for graph in self.described["graphs"]}
        twice, total = self.computed_twice(plan), 0
        for number, layer in enumerate(self.described["layers"]):
            forward = by_digest[layer["graph"]]["forward_flops"]
            total += forward * (1 / FORWARD_SHARE + (number in twice)) * self.shape.sequences
        return total

    def computed_twice(self, plan):
        """The layers whose forwards are done again: of groups that keep no activations, but for the one with the head, whose
        forward and backward are one task."""
        found = set()
        for group in plan["groups"]:
            if group["kind"] == "backward" and not group["keep_activations"]:
                found.update(layers_of(group))
        return found


def layers_of(group):
    return range(group["first_layer"], group["last_layer"] + 1)


def seconds_of(group, times):
    """Of a group's task for one microbatch. A backward computes its layers' forwards too, unless they were kept, but not what
    the last of them hands on."""
    *inner, last = [times[layer] for layer in layers_of(group)]
    kept = group["keep_activations"]
    if group["kind"] == "forward":
        return sum(time.get("keeping_forward" if kept else "forward", time["forward"]) for time in [*inner, last])
    if kept:
        return sum(time.get("kept_backward", time["backward"]) for time in [*inner, last])
    embedding = times[0]["forward"] if group["kind"] == "forward+backward" and group["first_layer"] == 0 else 0
    return embedding + sum(time.get("backward_inner", time["backward"]) for time in inner) + last["backward"]


def parameters_of(described):
    return sum(int(numpy.prod(parameter["shape"])) for parameter in described["parameters"] if parameter["role"] == "trained")


def memory_at_rest(still=3, deadline=60):
    """What was killed before gives back memory that was pinned for seconds after it is listed no more, by and by: waits until
    none is shared, and there has been no more of it for a while. The bytes that are available then."""
    began = since = time.monotonic()
    most = 0
    while time.monotonic() - began < deadline:
        told = machine.memory()
        if told["MemAvailable"] > 1.01 * most or told["Shmem"] > SHARED_AT_REST:
            most, since = told["MemAvailable"], time.monotonic()
        if time.monotonic() - since >= still:
            break
        time.sleep(0.2)
    print(f"{told} after {time.monotonic() - began:.1f} s", flush=True)
    return told["MemAvailable"]


def memory_of_segment():
    """Bytes of the shared segment that the programs hold; 0 where it is not seen."""
    most = 0
    for pid in steps.marked(os.environ[steps.MARK]):
        with contextlib.suppress(OSError):  # it may have ended
            most = max(most, prediction.segment_bytes(pid))
    return most


def tasks_of(trace):
    """[(lane, event)] of what was done after the warm-up, by when it began."""
    events = trace["traceEvents"]
    names = {(e["pid"], e["tid"], e["name"]): e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e["args"]}
    tasks = []
    for event in events:
        if event["ph"] != "X" or event["args"]["step"] <= WARM_UP or "command_wait_us" in event["args"]:
            continue
        lane, _, kind = names[event["pid"], event["tid"], "thread_name"].partition(", ")
        if kind == "measured":
            tasks.append((f"{names[event['pid'], 0, 'process_name']} {lane}", event))
    return sorted(tasks, key=lambda task: task[1]["ts"])


def timeline(trace):
    """A line for each task: when it began and how long it took, in ms, how long its lane had done nothing before, and what."""
    ended = {}
    for lane, event in tasks_of(trace):
        begin, took = event["ts"] / 1e3, event["dur"] / 1e3
        waited, what = begin - ended.get(lane, begin), f"step {event['args']['step']} {event['name']}"
        yield f"{begin:12.3f} {took:10.3f} {waited:10.3f}  {lane}: {what}"
        ended[lane] = begin + took


def busy_shares(trace):
    """{lane: the share of the time in which it did something}, from the first compute task after the warm-up to the last."""
    tasks, busy = tasks_of(trace), {}
    computed = [event for lane, event in tasks if lane.endswith("compute")]
    if not computed:
        return {}
    begin, end = computed[0]["ts"], computed[-1]["ts"] + computed[-1]["dur"]
    for lane, event in tasks:
        inside = min(event["ts"] + event["dur"], end) - max(event["ts"], begin)
        busy[lane] = busy.get(lane, 0) + max(inside, 0)
    return {lane: time / (end - begin) for lane, time in busy.items()}


def name_of(args):
    return f"fast.{args.layers[0]}.{args.cap}" + (f"-{args.copies}" if args.copies else "")


def train(args):
    described = json.loads((exported(args.scratch, args.layers[0]) / "model.json").read_text())
    failures = []
    with figures.attempt(name_of(args), failures), output_folder(args.scratch, 15 * parameters_of(described)) as out:
        Training(args, out).measure(failures)
    sys.exit(1 if failures else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "train"])
    parser.add_argument("--layers", type=int, nargs="+", default=[2])
    parser.add_argument("--cap", default="24GiB", help="of the device, as in mem=")
    parser.add_argument("--copies", help="whose they are, as in copies=")
    parser.add_argument("--scratch", type=pathlib.Path, required=True)
    parser.add_argument("--fake", action="store_true", help="on the driver made for tests, with small layers")
    args = parser.parse_args()
    os.environ.setdefault(steps.MARK, uuid.uuid4().hex)
    prepare(args) if args.what == "prepare" else train(args)


if __name__ == "__main__":
    main()
