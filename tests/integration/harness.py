"""What the whole-run tests share: a scratch folder, tiny jobs, running the programs, killing processes.

Real processes, real sockets, real files. Every test has a folder of its own, which also holds its
runtime directory (sockets, logs), so that nothing is shared and nothing is left behind.
"""
import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ.get("HARMONY_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
HARMONY = BUILD / "bin" / "harmony"
PLAIN_TRAINER = BUILD / "bin" / "plain_trainer"
DEADLINE = 120  # seconds; for any single wait, far above what is ever needed
# Which devices the tests' `sim*N:mem=M` are: "sim", or "cuda", on the driver made for tests (tests/fake_cuda).
DEVICE_KIND = os.environ.get("HARMONY_TEST_DEVICES", "sim")
FAKE_GPUS = 2


def whatever_the_devices(test):
    """Of what does not see of what kind devices are: left out where a script runs once more on fake GPUs."""
    return test if DEVICE_KIND == "sim" else None


TINY_GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_positions": 64,
    "n_ctx": 64, "n_embd": 32, "n_layer": 4, "n_head": 4, "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new", "initializer_range": 0.02, "tie_word_embeddings": True,
    "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
}

BASE_JOB = {
    "init": "random", "sequence_length": 32, "global_batch_size": 8, "micro_batch_size": 2,
    "max_steps": 6, "optim": "adamw", "learning_rate": 1e-3, "seed": 7, "logging_steps": 1,
    "compute_threads": 1,
}


def of_kind(devices):
    """The devices that a test runs on where it says these: so many of the fake GPUs, in turn. Paced ones stay."""
    one = r"sim(?:\*(\d+))?:(mem=\w+(?:,copies=worker)?)"
    parts = [re.fullmatch(one, part) for part in str(devices).split(" ")]
    if DEVICE_KIND != "cuda" or not all(parts):
        return devices
    options = [part[2] for part in parts for _ in range(int(part[1] or 1))]
    return ";".join(f"cuda:{i % FAKE_GPUS},{option}" for i, option in enumerate(options))


def arguments(args):
    """Of a program: devices are those that the tests are to run on."""
    args = [str(a) for a in args]
    return [of_kind(a) if before == "--devices" else a for before, a in zip([""] + args, args)]


def fake_gpus(seed, **keys):
    """The environment in which programs find GPUs; `keys` are the fake driver's (tests/fake_cuda/README.md)."""
    keys = dict(devices=FAKE_GPUS, memory="8GiB", context="1MiB", max_delay_us=200, seed=seed % 1000, peers=seed % 2) | keys
    return {"LD_LIBRARY_PATH": str(BUILD / "fake_cuda"), "FAKE_CUDA": ",".join(f"{k}={v}" for k, v in keys.items()),
            "HARMONY_CUDA_PLUGIN": str(BUILD / "fake_cuda" / "libfake_cuda_compute.so")}


def write_job(path, job):
    """A job file; JSON is YAML."""
    path.write_text(json.dumps(job, indent=1))
    return path


def file_digest(path):
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()


def give_links_of_the_first(profile):
    """To all devices of a measured profile."""
    for device in profile["devices"][1:]:
        device.update({link: profile["devices"][0][link] for link in ("h2d", "d2h", "p2p")})


def weights_digest(directory):
    files = sorted(pathlib.Path(directory).glob("*.safetensors"))
    assert files, f"no safetensors in {directory}"
    return [file_digest(f) for f in files]


def read_metrics(directory):
    with open(pathlib.Path(directory) / "metrics.jsonl") as f:
        return [json.loads(line) for line in f]


def steps_done(directory):
    """Of a run that may not have begun."""
    path = pathlib.Path(directory) / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def losses(directory):
    return [m["loss"] for m in read_metrics(directory)]


def wait_for(condition, what, deadline=DEADLINE, pause=0.01):
    """Polls a condition of another process; returns its first true value."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline} s for: {what}")
        time.sleep(pause)


def spin_until(condition, what):
    """As wait_for, for moments that are over in less than a millisecond."""
    return wait_for(condition, what, pause=0)


class Scratch(unittest.TestCase):
    """Base of all whole-run tests."""
    limit = 600  # seconds of one call of the CLI

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="hm-")
        self.addCleanup(holder.cleanup)
        self.addCleanup(self.wait_run_folder_gone)
        self.dir = pathlib.Path(holder.name)
        self.runtime = self.dir / "r"
        self.runtime.mkdir(mode=0o700)
        self.env = dict(os.environ, XDG_RUNTIME_DIR=str(self.runtime), XDG_STATE_HOME=str(self.dir / "s"),
                        HOME=str(self.dir), TMPDIR=str(self.runtime))
        self.env.pop("HARMONY_SOCKET", None)
        seed = int(os.environ.get("HARMONY_SEED", random.SystemRandom().randrange(1 << 31)))
        self.random = random.Random(seed)
        if DEVICE_KIND == "cuda":
            self.env |= fake_gpus(seed)
        self.replay = f"replay with HARMONY_SEED={seed} python3 {type(self).__module__}.py {self.id().split('.', 1)[1]}"
        text = "".join(f"{i} the quick brown fox jumps over the lazy dog {i * i % 97}\n" for i in range(2000))
        (self.dir / "data.txt").write_text(text)
        self.model = self.make_model("model", TINY_GPT2)

    def make_model(self, name, config):
        directory = self.dir / name
        directory.mkdir()
        (directory / "config.json").write_text(json.dumps(config))
        return directory

    def job(self, name, **changes):
        job = dict(BASE_JOB, model_name_or_path=str(self.model),
                   data={"path": str(self.dir / "data.txt"), "format": "text-bytes"},
                   output_dir=str(self.dir / f"out-{name}"))
        job.update(changes)
        return write_job(self.dir / f"{name}.yaml", job), pathlib.Path(job["output_dir"])

    def harmony(self, *args, check=0, env=None, **kw):
        """Runs the CLI to its end; `check` is the exit code expected (None: any)."""
        done = subprocess.run([HARMONY, *arguments(args)], env=env or self.env, cwd=self.dir, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=self.limit, **kw)
        if check is not None and done.returncode != check:
            self.fail(f"harmony {' '.join(map(str, args))}: exit {done.returncode}, expected {check}\n"
                      f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}\n{self.logs()}\n{self.replay}")
        return done

    def plan(self, job, devices):
        """The plan that a run of seconds goes by, which measures nothing."""
        return json.loads(self.harmony("plan", job, "--devices", devices, "--no-calibrate", "--json").stdout)

    def kept_plan(self, job, devices):
        """A plan file for the job: the planner's, but that all backwards but the last recompute nothing."""
        plan = self.plan(job, devices)["plan"]
        groups = plan["backward_groups"]
        plan["forward_groups"] = [{k: g[k] for k in ("first_layer", "last_layer", "devices")} for g in groups[:-1]]
        for group in groups[:-1]:
            group["keep_activations"] = group["keep_stash"] = group["last_layer"] > 0
        path = self.dir / f"{pathlib.Path(job).stem}-plan.json"
        path.write_text(json.dumps(plan))
        return path

    def up(self, *args):
        """Starts the processes; they end with the test, however that ends."""
        done = self.harmony("up", "--detach", *args)
        self.addCleanup(self.harmony, "down", "--now", check=None)
        return done

    def start(self, *args, log="run.log"):
        log = open(self.dir / log, "ab")
        self.addCleanup(log.close)
        process = subprocess.Popen([HARMONY, *arguments(args)], env=self.env, cwd=self.dir, stdout=log,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.wait()

    def wait_run_folder_gone(self):
        """The supervisor outlives its `harmony run` for as long as it takes to remove its folder."""
        wait_for(lambda: not list(self.runtime.glob("harmony-run.*")), "the supervisor to remove its folder")

    def wait_exit(self, process, code, deadline=DEADLINE):
        wait_for(lambda: process.poll() is not None, "the run to end", deadline)
        if process.returncode != code:
            self.fail(f"exit {process.returncode}, expected {code}\n{(self.dir / 'run.log').read_text()[-6000:]}"
                      f"\n{self.logs()}\n{self.replay}")

    def logs(self):
        parts = []
        for path in sorted(self.runtime_files(".log")):
            with contextlib.suppress(FileNotFoundError):
                parts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    def plain(self, job, out):
        """The plain in-process trainer on the same job file: the yardstick for exactness."""
        done = subprocess.run([PLAIN_TRAINER, str(job), "--set", f"output_dir={out}"], env=self.env,
                              cwd=self.dir, text=True, capture_output=True, timeout=600)
        if done.returncode != 0:
            self.fail(f"plain trainer: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return out

    def runtime_files(self, suffix):
        """Those of the runtime folder; folders may vanish meanwhile, which rglob does not bear."""
        for folder, _, names in os.walk(self.runtime):
            yield from (pathlib.Path(folder, name) for name in names if name.endswith(suffix))

    def processes(self):
        """Live children of the launcher: {(role, device): {"pid":, "incarnation":}}."""
        for path in self.runtime_files("processes.json"):
            try:
                listed = json.loads(path.read_text())
            except (ValueError, FileNotFoundError):
                continue
            listed = listed["processes"] if isinstance(listed, dict) else listed
            return {(p["role"], p.get("device", 0)): p for p in listed}
        return {}

    def all_pids(self):
        return [p["pid"] for p in self.processes().values()]

    @staticmethod
    def kill(pid):
        os.kill(pid, signal.SIGKILL)

    def kill_one_by_one(self, process, out, whom):
        """Processes of the run `process`, each of which is to get a step done before the next one dies."""
        for who in whom:
            self.kill(self.processes()[who]["pid"])
            before = steps_done(out)
            wait_for(lambda: steps_done(out) > before or process.poll() is not None, f"a step after {who} was killed")
            self.assertIsNone(process.poll(), f"the run ended at the death of {who}, or that came too late; {self.replay}")

    def put_on_sets(self, plan, sets, parts):
        """The file of a plan whose groups, forwards first, are put on these sets of devices, with nothing kept there."""
        for group, devices in zip(plan["forward_groups"] + plan["backward_groups"], sets, strict=True):
            group["devices"] = devices
            if "gradient_parts" in group:
                group.update(gradient_parts=parts, keep_weights=False, keep_stash=False, keep_activations=False)
        path = self.dir / "plan.json"
        path.write_text(json.dumps(plan))
        return path

    def kill_all(self, process):
        """The launcher `process` and everything that it started, at once."""
        pids = self.all_pids() + [process.pid]
        for pid in pids:
            if self.alive(pid):
                self.kill(pid)
        process.wait()
        wait_for(lambda: not any(map(self.alive, pids)), "all processes to be gone")

    @staticmethod
    def alive(pid):
        try:
            with open(f"/proc/{pid}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return False
