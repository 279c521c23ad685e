#!/usr/bin/env python3
"""Memory of all of Harmony's processes together: training alone beside loading, saving and resuming.

    bench/memory_peaks.py [--model gpt2-124m] [--devices sim:mem=512MiB]

Four runs of the same job: from random weights; the same again (the yardstick: training, nothing loaded, one
export at the end); from the first one's weights, with a checkpoint after every step; and that one stopped and
resumed. Sampled all the time: the anonymous memory of every process and the pages of every shared segment
(each once, whoever maps it); pages of files that are read or written are the system's cache and do not count.
Prints the peak of each phase: until the first step has begun, and after.
"""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
HARMONY = ROOT / "build" / "bin" / "harmony"
MIB = 1 << 20


def children_of(pid):
    found, todo = [pid], [pid]
    while todo:
        try:
            for task in os.listdir(f"/proc/{todo[0]}/task"):
                with open(f"/proc/{todo[0]}/task/{task}/children") as f:
                    more = [int(x) for x in f.read().split()]
                found += more
                todo += more
        except OSError:
            pass  # it has just ended
        todo.pop(0)
    return found


def memory_of(pids):
    """Bytes: anonymous pages, and what the memory files that they hold have allocated."""
    total, segments = 0, {}
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as f:
                total += sum(int(line.split()[1]) * 1024 for line in f if line.startswith("Pss_Anon:"))
            for fd in os.scandir(f"/proc/{pid}/fd"):
                if os.readlink(fd.path).startswith("/memfd:"):
                    status = os.stat(fd.path)
                    segments[status.st_ino] = status.st_blocks * 512
        except OSError:
            pass  # it has just ended
    return total + sum(segments.values())


def steps_done(out):
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def run(job, out, devices, settings, env, stop_after=None):
    """Peaks in bytes: {"start": until the first step's line, "rest": from then on}."""
    command = [HARMONY, "run", job, "--devices", devices, "--set", f"output_dir={out}"]
    for setting in settings:
        command += ["--set", setting]
    before = steps_done(out)
    peaks = {"start": 0, "rest": 0}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([str(c) for c in command], env=env, stdout=log, stderr=log,
                                   stdin=subprocess.DEVNULL)
        while process.poll() is None:
            done = steps_done(out)
            if stop_after is not None and done >= stop_after:
                process.send_signal(signal.SIGINT)
                stop_after = None
            phase = "start" if done == before else "rest"
            peaks[phase] = max(peaks[phase], memory_of(children_of(process.pid)))
            time.sleep(0.02)
        if process.returncode not in (0, 130):
            log.seek(0)
            sys.exit(f"{' '.join(map(str, command))}: exit {process.returncode}\n{log.read().decode()[-2000:]}")
    return peaks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="gpt2-124m")
    parser.add_argument("--devices", default="sim:mem=512MiB")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="harmony-bench-") as scratch:
        folder = pathlib.Path(scratch)
        (folder / "run").mkdir(mode=0o700)
        env = dict(os.environ, XDG_RUNTIME_DIR=str(folder / "run"), XDG_STATE_HOME=str(folder / "state"))
        (folder / "data.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20000)
        job = folder / "job.yaml"
        job.write_text(json.dumps({
            "model_name_or_path": args.model, "init": "random", "sequence_length": 64, "global_batch_size": 4,
            "micro_batch_size": 1, "max_steps": 8, "compute_threads": os.cpu_count(),
            "data": {"path": str(folder / "data.txt"), "format": "text-bytes"}, "output_dir": "unused"}))
        pretrained = ["init=pretrained", f"model_name_or_path={folder / 'random' / 'final'}", "save_steps=1"]
        rows = {"train, random weights": run(job, folder / "random", args.devices, [], env)}
        rows["train, again"] = run(job, folder / "again", args.devices, [], env)
        rows["load weights, save every step"] = run(job, folder / "loaded", args.devices, pretrained, env)
        rows["... stopped after step 2"] = run(job, folder / "stopped", args.devices, pretrained, env, 2)
        rows["... resumed"] = run(job, folder / "stopped", args.devices, pretrained, env)
    yardstick = max(max(rows[name].values()) for name in ("train, random weights", "train, again"))
    print(f"{'':32} {'start MiB':>10} {'then MiB':>10}   peak / training's")
    for name, peaks in rows.items():
        print(f"{name:32} {peaks['start'] / MIB:10.1f} {peaks['rest'] / MIB:10.1f}   "
              f"{max(peaks.values()) / yardstick:.3f}")


if __name__ == "__main__":
    main()
