#!/usr/bin/env python3
"""Whether GPUs compute what the CPU does, with small exported models: the part "right" of measure.py, a step a call.

    right.py models | devices | kills | bf16 | sanitizer [--quick] [--fake]

The yardstick is the same job on a sim device, whose bits tests hold against eager PyTorch's
(tests/integration/exported_test.py, from which models, data and jobs are).
"""
import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import uuid

import figures
import machine
import steps

machine.use()
import exported_test  # noqa: E402
import harness  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

CLOSE = 1e-5  # of losses, and of weights relative to the largest number of their tensor
NARROW_CLOSE = exported_test.NARROW_CLOSE
# The first are the likeliest to work, the next have our own kernels: dropout masks, the fused loss, attention.
MODELS = ["mlp", "gpt2", "bert_fused", "bert_masked", "llama", "llama_long", "vit", "resnet", "t5", "cnn", "mixtral"]
QUICK_MODELS = ["mlp", "bert_fused"]
# Of the built-in families, without an export: LayerNorm; RMSNorm, rotary embedding and grouped queries; norms of queries.
BUILT_IN, QUICK_BUILT_IN = ["gpt2-mini", "llama-tiny", "qwen3-tiny"], ["llama-tiny"]
MANY_STEPS = 20
KILL_STEPS = 300, 100  # so many that a small model's run is still going on when it is hit; with --quick
ROLES = [("worker", 0), ("swapper", 0), ("host", 0), ("coordinator", 0)]
SIM = "sim:mem=256MiB"
# So long that its attention is computed in several pieces.
exported_test.make_models.MODELS["llama_long"] = lambda: exported_test.make_models.hf(
    "causal-lm", "LlamaConfig", 1024, **{**exported_test.make_models.LLAMA, "max_position_embeddings": 1024})


class Bench(exported_test.Exported):
    """The tests' scratch folder with a GPU, outside of a test."""
    limit = 45  # seconds of one call of the CLI
    fake = False

    def runTest(self):
        pass

    def setUp(self):
        super().setUp()
        self.env |= machine.environment(self.fake)

    def harmony(self, *args, **keys):
        try:
            return super().harmony(*args, **keys)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"harmony {' '.join(map(str, args))}: hangs, after {error.timeout} s\n{self.logs()}") from None

    def wait_run_folder_gone(self):
        """Where something hangs it never goes by itself; what is ours is ended then."""
        try:
            harness.wait_for(lambda: not list(self.runtime.glob("harmony-run.*")), "the run's folder to go", deadline=10)
        except AssertionError:
            steps.end_marked(os.environ[steps.MARK])
            shutil.rmtree(self.runtime, ignore_errors=True)

    def gpu(self, times=1):
        """The same GPU as so many devices."""
        return ";".join([f"cuda:0,mem={'64MiB' if self.fake else '512MiB'}"] * times)

    def train_built_in(self, preset, name, devices):
        job, out = self.job(f"{preset}-{name}", model_name_or_path=preset, sequence_length=32, max_steps=exported_test.STEPS,
                            optim="sgd", weight_decay=0, learning_rate=exported_test.LEARNING_RATE)
        self.harmony("run", job, "--devices", devices, "--no-calibrate")
        return out

    def state(self, out):
        """What has to be the same to the last bit."""
        return harness.weights_digest(out / "final"), harness.losses(out)


@contextlib.contextmanager
def bench():
    made = Bench()
    made.setUp()
    try:
        yield made
    finally:
        made.doCleanups()


def losses_apart(found, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(harness.losses(found), harness.losses(expected), strict=True))


def weights_apart(found, expected):
    """The largest difference of a tensor's numbers, relative to its largest, and the tensor."""
    ours, theirs = (load_file(out / "final" / "model.safetensors") for out in (found, expected))
    assert sorted(ours) == sorted(theirs), "other tensors"
    apart = {}
    for name, tensor in theirs.items():
        if tensor.is_floating_point():
            most = max(float(tensor.abs().max()), exported_test.NOISE)
            apart[name] = float((ours[name].double() - tensor.double()).abs().max()) / most
        else:
            apart[name] = float((ours[name] != tensor).any())
    worst = max(apart, key=apart.get)
    return apart[worst], worst


def compare(name, found, expected, close):
    losses, (weights, tensor) = losses_apart(found, expected), weights_apart(found, expected)
    figures.note(f"{name}.losses_apart", losses, met=losses <= close)
    figures.note(f"{name}.weights_apart", weights, met=weights <= close, tensor=tensor)
    if max(losses, weights) > close:
        raise AssertionError(f"losses {losses:.2e} apart, weights {weights:.2e} apart in {tensor}: the bar is {close:.0e}")


def models(args, failures):
    """Five steps in fp32, on a GPU and on the CPU."""
    chosen = QUICK_MODELS if args.quick else MODELS
    presets = QUICK_BUILT_IN if args.quick else BUILT_IN
    figures.note("models.expected", [f"models.{name}.losses_apart" for name in [*presets, *chosen]])
    for preset in presets:
        with figures.attempt(f"models.{preset}", failures), bench() as b:
            compare(f"models.{preset}", b.train_built_in(preset, "gpu", b.gpu()), b.train_built_in(preset, "cpu", SIM), CLOSE)
    for name in chosen:
        with figures.attempt(f"models.{name}", failures), bench() as b:
            b.export(name)
            compare(f"models.{name}", b.train("gpu", b.gpu()), b.train("cpu", SIM), CLOSE)


def devices(args, failures):
    """The same GPU as one, two and four devices, in both modes: the same bits."""
    with bench() as b:
        b.export("gpt2" if not args.quick else "mlp")
        batch = {"global_batch_size": 4 * exported_test.SIZE, "virtual_replicas": 4, "max_steps": MANY_STEPS}
        modes = ("harmony-pp", "harmony-dp")
        runs = list(zip(modes, (1, 2))) if args.quick else [(mode, times) for mode in modes for times in (1, 2, 4)]
        figures.note("devices.expected", [f"devices.{mode}.{times}.same_bits" for mode, times in runs])
        reference = None
        for mode, times in runs:
            with figures.attempt(f"devices.{mode}.{times}", failures):
                got = b.state(b.train(f"{mode}-{times}", b.gpu(times), mode=mode, **batch))
                reference = reference or got
                figures.note(f"devices.{mode}.{times}.same_bits", got == reference, met=got == reference)
                assert got == reference, "other bits than those of one device"


def kill_one(b, role, steps_done, expected):
    job, out = b.job_of(f"kill-{role[0]}", max_steps=steps_done)
    run = b.start("run", job, "--devices", b.gpu(), "--no-calibrate")
    metrics = out / "metrics.jsonl"
    harness.wait_for(lambda: run.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") > 3),
                     "the first steps", deadline=30)
    victim = b.processes().get(role)
    assert victim and run.poll() is None, f"the run was over before the kill, or has no such process: {b.processes()}"
    b.kill(victim["pid"])
    b.wait_exit(run, 0, deadline=60)
    assert harness.read_metrics(out)[-1]["generation"] > 1, "the kill came too late"
    assert b.state(out) == expected, "other bits than without the kill"


def kills(args, failures):
    """Each process is killed in the middle of a run: the same bits."""
    with bench() as b:
        b.export("mlp")
        roles = ROLES[:1] if args.quick else ROLES
        figures.note("kills.expected", [f"kills.{role}.same_bits" for role, _ in roles])
        steps_done = KILL_STEPS[args.quick]
        expected = b.state(b.train("whole", b.gpu(), max_steps=steps_done))
        for role in roles:
            with figures.attempt(f"kills.{role[0]}", failures):
                kill_one(b, role, steps_done, expected)
                figures.note(f"kills.{role[0]}.same_bits", True, met=True)


def bf16(args, failures):
    """Mixed precision, near the CPU's."""
    for name in ["mlp"] if args.quick else ["mlp", "llama"]:
        with figures.attempt(f"bf16.{name}", failures), bench() as b:
            b.export(name, dtype="bf16")
            found, expected = b.train("gpu", b.gpu()), b.train("cpu", SIM)
            apart = losses_apart(found, expected)
            figures.note(f"bf16.{name}.losses_apart", apart, met=apart <= NARROW_CLOSE)
            weights, tensor = weights_apart(found, expected)
            figures.note(f"bf16.{name}.weights_apart", weights, tensor=tensor)
            assert apart <= NARROW_CLOSE, f"losses {apart:.2e} apart"


def sanitizer(args, failures):
    """A short run whose worker is watched by compute-sanitizer; with --fake a program that only starts the worker stands
    in for it."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None and not args.fake:
        return figures.note_failure("sanitizer", "this machine has no compute-sanitizer")
    with figures.attempt("sanitizer", failures), bench() as b:
        b.limit = 90
        folder, report = b.dir / "bin", b.dir / "sanitizer"
        folder.mkdir()
        for program in (harness.BUILD / "bin").iterdir():
            (folder / program.name).symlink_to(program)
        wrapper, worker = folder / "harmony-worker", harness.BUILD / "bin" / "harmony-worker"
        wrapper.unlink()
        watch = "" if args.fake else f"exec {tool} --target-processes all --log-file {report}.%p "
        wrapper.write_text(f'#!/bin/sh\n{watch}{worker} "$@"\n')
        wrapper.chmod(0o755)
        b.export("mlp")
        job, _ = b.job_of("watched")
        b.harmony("--bin-dir", folder, "run", job, "--devices", b.gpu(), "--no-calibrate")
        said = [path.read_text(errors="replace") for path in b.dir.glob("sanitizer.*")]
        print("\n".join(said))
        if not args.fake:
            summaries = [line for text in said for line in text.splitlines() if "ERROR SUMMARY" in line]
            clean = bool(summaries) and all(" 0 errors" in line for line in summaries)
            figures.note("sanitizer.summary", summaries, met=clean)
            assert clean, "compute-sanitizer found something, or nothing ran under it"


STEPS = {step.__name__: step for step in (models, devices, kills, bf16, sanitizer)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--quick", action="store_true", help="fewer of everything")
    parser.add_argument("--fake", action="store_true", help="on the driver made for tests")
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault(steps.MARK, uuid.uuid4().hex)
    Bench.fake = args.fake
    failures = []
    STEPS[args.step](args, failures)
    print("failed:", ", ".join(failures) or "nothing")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
