#!/usr/bin/env python3
"""What a flood of requests and hundreds of half-open connections cost a job that trains meanwhile.

One job runs for the whole time. Quiet turns and turns under a flood alternate; the ratio is that of the median step
of a turn to that of the quiet turns beside it, and the figure is the median of these ratios. The devices are paced,
and threads of paced lanes have real-time priority: so steps show what delays the coordinator's commands, on a busy
machine too. What is taken of the cores shows in what the coordinator itself took of one, which stands beside it; and
in the steps of devices that compute as fast as they can, on a machine that has nothing else to do (--devices
sim:mem=256MiB). The flooding processes run at the priority SCHED_IDLE, for they stand for other machines; what they
make the coordinator do does not.

    .deps/test-venv/bin/python bench/flood.py [--turns 8] [--seconds 5] [--devices SPEC] [--json FILE]

Floods, each through the Unix socket, by this user, and for `tls` over TCP on the loopback:
  calls      List, Get and Submit of what is no job, from 8 connections, as fast as they are answered
  connects   200 connections that say nothing, made again whenever they are closed
  tls        the same 200 without a handshake

Bar: 2% in each. Exit code 1 when one is missed, or when a flood did not flow, for the machine had no time for it.
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import authority  # noqa: E402

HARMONY = pathlib.Path(os.environ.get("HARMONY_BUILD", ROOT / "build")) / "bin" / "harmony"
BAR = 0.02
MODEL = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 128, "n_embd": 64,
    "n_layer": 4, "n_head": 4, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": True,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
JOB = {"init": "random", "sequence_length": 64, "global_batch_size": 16, "micro_batch_size": 2, "max_steps": 1000000,
       "learning_rate": 1e-3, "seed": 7, "logging_steps": 1, "compute_threads": 1,
       # Next to nothing is left to search.
       "mode": "harmony-pp", "layer_groups": [2, 2, 2], "virtual_replicas": 1, "update": "eager", "stash": "host"}


def field(number, text):
    """One field of a wire message: a string shorter than 128 bytes."""
    return bytes([number << 3 | 2, len(text)]) + text.encode()


CALLS = [("List", b""), ("Get", field(1, "job-1")), ("Submit", field(1, "no: [job") + field(2, "/nowhere/job.yaml"))]


def flood_calls(target, active, counts):
    import grpc  # in this process only: it does not bear forks
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.initial_reconnect_backoff_ms", 100),
               ("grpc.min_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]

    def call():
        channel = grpc.insecure_channel(target, options=options)
        methods = [(channel.unary_unary(f"/harmony.v1.Coordinator/{name}"), request) for name, request in CALLS]
        while True:
            active.wait()
            for method, request in methods:
                try:
                    method(request, timeout=5)
                    counts[0] += 1
                except grpc.RpcError as error:
                    lost = error.code() == grpc.StatusCode.UNAVAILABLE
                    counts[2 if lost else 1] += 1
                    if lost:  # said by the channel, which connects again
                        time.sleep(0.01)
    for _ in range(8):
        threading.Thread(target=call, daemon=True).start()
    signal.pause()


def flood_connects(family, address, active, counts):
    held = []
    while True:
        active.wait()
        while len(held) < 200 and active.is_set():
            connection = socket.socket(family)
            connection.setblocking(False)
            code = connection.connect_ex(address)
            if code not in (0, 115):  # EINPROGRESS
                connection.close()
                time.sleep(0.001)
                break
            counts[0] += 1
            held.append(connection)
        time.sleep(0.001)
        for connection in list(held):
            try:
                over = connection.recv(4096) == b""
            except BlockingIOError:
                over = not active.is_set()
            except OSError:
                over = True
            if over:
                connection.close()
                held.remove(connection)
                counts[1] += 1


class Flood:
    """A process that floods while it is told to."""

    def __init__(self, name, work, *args):
        self.name = name
        self.active = multiprocessing.Event()
        self.counts = multiprocessing.Array("q", 3, lock=False)
        self.process = multiprocessing.get_context("fork").Process(target=self.run, args=(work, args), daemon=True)
        self.process.start()

    def run(self, work, args):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        work(*args, self.active, self.counts)


class Server:
    """`harmony up` in a folder of its own, with a job that trains."""

    def __init__(self, folder, devices):
        self.folder = folder
        self.env = dict(os.environ, XDG_RUNTIME_DIR=str(folder), XDG_STATE_HOME=str(folder / "s"), HOME=str(folder))
        self.env.pop("HARMONY_SOCKET", None)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        ca = authority.Authority(folder / "ca")
        certificate, key = ca.sign("server", "DNS:localhost")
        self.harmony("up", "--detach", "--devices", devices, "--listen", f"127.0.0.1:{self.port}", "--tls-cert",
                     certificate, "--tls-key", key, "--tls-client-ca", ca.ca, "--allow", "cert:nobody=read")
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(MODEL))
        (folder / "data.txt").write_bytes(bytes(range(32, 127)) * 500)
        (folder / "job.yaml").write_text(json.dumps(JOB | {
            "model_name_or_path": "model", "data": {"path": "data.txt", "format": "text-bytes"}, "output_dir": "out"}))
        self.harmony("submit", "job.yaml", "--no-calibrate")
        self.socket = folder / "harmony" / "coordinator.sock"
        processes = json.loads(self.harmony("status", "--json"))["processes"]
        self.coordinator = next(p["pid"] for p in processes if p["role"] == "coordinator")
        self.lines = None
        while not (folder / "out" / "metrics.jsonl").exists():
            time.sleep(0.05)
        self.lines = open(folder / "out" / "metrics.jsonl")

    def harmony(self, *args):
        return subprocess.run([HARMONY, *map(str, args)], env=self.env, cwd=self.folder, check=True, capture_output=True,
                              text=True).stdout

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.coordinator}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def turn(self, seconds):
        """Median seconds of the steps that begin and end in the turn, and the coordinator's share of a core."""
        time.sleep(0.5)
        self.lines.read()
        cpu, begin, steps = self.cpu_seconds(), time.monotonic(), []
        while time.monotonic() - begin < seconds or len(steps) < 4:
            time.sleep(0.2)
            steps += [json.loads(line)["seconds"] for line in self.lines.read().splitlines() if line.endswith("}")]
        share = (self.cpu_seconds() - cpu) / (time.monotonic() - begin)
        return statistics.median(steps[1:]), share


def measure(server, flood, turns, seconds):
    quiet = [server.turn(seconds)]
    flooded = []
    counts = [0] * 3
    for _ in range(turns):
        before = list(flood.counts)
        flood.active.set()
        flooded.append(server.turn(seconds))
        flood.active.clear()
        counts = [c + now - then for c, now, then in zip(counts, flood.counts, before)]
        quiet.append(server.turn(seconds))
    ratios = [f[0] / ((a[0] + b[0]) / 2) for f, a, b in zip(flooded, quiet, quiet[1:])]
    rates = [b[0] / a[0] for a, b in zip(quiet, quiet[1:])]
    quarters = statistics.quantiles(ratios, n=4)
    return {"flood": flood.name, "slower": statistics.median(ratios) - 1, "quartiles": [q - 1 for q in (quarters[0], quarters[2])],
            "quiet_quartiles": [q - 1 for q in statistics.quantiles(rates, n=4)[::2]],
            "step_seconds": statistics.median(q[0] for q in quiet),
            "core_quiet": statistics.median(q[1] for q in quiet), "core_flooded": statistics.median(f[1] for f in flooded),
            "per_second": [c / (turns * (seconds + 0.5)) for c in counts]}


def flowed(row):
    """Whether the flood was one: more than the limits of a remote address, the lowest."""
    return sum(row["per_second"]) >= 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--devices", default="sim*2:mem=32MiB,flops=5G,h2d=400MB/s,d2h=400MB/s,p2p=400MB/s")
    parser.add_argument("--floods", nargs="+", default=["calls", "connects", "tls"])
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="hm-") as scratch:
        server = Server(pathlib.Path(scratch), options.devices)
        try:
            floods = {"calls": (flood_calls, f"unix:{server.socket}"),
                      "connects": (flood_connects, socket.AF_UNIX, str(server.socket)),
                      "tls": (flood_connects, socket.AF_INET, ("127.0.0.1", server.port))}
            for name in options.floods:
                flood = Flood(name, *floods[name])
                row = measure(server, flood, options.turns, options.seconds)
                flood.process.kill()
                flood.process.join()
                rows.append(row)
                low, high = row["quartiles"]
                calm = row["quiet_quartiles"]
                print(f"{name:9} step {row['step_seconds']:.4f} s, {row['slower']:+.2%} (quartiles {low:+.2%} to {high:+.2%}; "
                      f"quiet turns among themselves {calm[0]:+.2%} to {calm[1]:+.2%}); coordinator {row['core_quiet']:.1%} -> "
                      f"{row['core_flooded']:.1%} of a core; a second: {', '.join(f'{c:.0f}' for c in row['per_second'])}"
                      f"{'' if flowed(row) else '; NO FLOOD: the machine is too busy'}", flush=True)
        finally:
            server.harmony("down", "--now")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0 if all(flowed(row) and row["slower"] <= BAR for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
