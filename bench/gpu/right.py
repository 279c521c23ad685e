#!/usr/bin/env python3
"""Whether GPUs compute what the CPU does, with small exported models: the part "right" of measure.py, a step a call.

    right.py models | kernels | devices | copies | kills | bf16 | sanitizer [--share 1/4] [--quick] [--fake]

The yardstick is the same job on a sim device, whose bits tests hold against eager PyTorch's
(tests/integration/exported_test.py, from which models, data and jobs are).
"""
import argparse
import contextlib
import functools
import json
import math
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
# fp32 leaves some weights open: in the last step of resnet the input of a ReLU is zero but for rounding, and its sign decides a
# hundredth of a bias. A tensor of an exported model may be further apart than CLOSE by up to so many times the most that
# PyTorch's own moves once the weights that it starts from are each moved to the next float, by one of these seeds. Losses may
# not.
OPEN_FACTOR, NUDGES = exported_test.OPEN_FACTOR, exported_test.NUDGES
NARROW_CLOSE = exported_test.NARROW_CLOSE
# The first are the likeliest to work, the next have our own kernels: dropout masks, the fused loss, attention.
MODELS = ["mlp", "gpt2", "gpt2_long", "bert_fused", "bert_masked", "llama", "llama_long", "vit", "resnet", "t5", "cnn", "mixtral"]
QUICK_MODELS = ["mlp", "bert_fused"]
# Of the built-in families, without an export: LayerNorm; RMSNorm, rotary embedding and grouped queries; norms of queries.
BUILT_IN, QUICK_BUILT_IN = ["gpt2-mini", "llama-tiny", "qwen3-tiny"], ["llama-tiny"]
# So many steps, of a batch that up to four devices share.
MANY = {"global_batch_size": 4 * exported_test.SIZE, "virtual_replicas": 4, "max_steps": 20}
KILL_STEPS = 300, 100  # so many that a small model's run is still going on when it is hit; with --quick
ROLES = [("worker", 0), ("swapper", 0), ("host", 0), ("coordinator", 0)]
SIM = "sim:mem=256MiB"
# So long that attention is computed by fused kernels, which shorter ones are not: where queries have keys of their own in both
# types, else in 16 bits.
exported_test.make_models.MODELS["gpt2_long"] = lambda: exported_test.make_models.hf(
    "causal-lm", "GPT2Config", 256, vocab_size=256, n_positions=256, n_embd=64, n_layer=2, n_head=4, bos_token_id=0,
    eos_token_id=0)
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

    def gpu(self, times=1, more=""):
        """The same GPU as so many devices."""
        return ";".join([f"cuda:0,mem={'64MiB' if self.fake else '512MiB'}{more}"] * times)

    def trainer(self, name, dtype="fp32"):
        """A function that trains the model under a label on devices, and gives the output directory."""
        if name in BUILT_IN:
            return functools.partial(self.train_built_in, name, dtype)
        self.export(name, dtype=dtype)
        return self.train

    def train_built_in(self, preset, dtype, label, devices):
        job, out = self.job(f"{preset}-{label}", model_name_or_path=preset, sequence_length=128, optim="sgd", weight_decay=0,
                            max_steps=exported_test.STEPS, learning_rate=exported_test.LEARNING_RATE, bf16=dtype == "bf16")
        self.harmony("run", job, "--devices", devices, "--no-calibrate")
        return out

    def moves(self, name):
        """{tensor: how far PyTorch's own moves at most, on the CPU}, of a model that was exported."""
        trained = load_file(self.folder / "expected.safetensors")
        trained = {key.removeprefix("state."): tensor for key, tensor in trained.items() if key != "losses"}
        apart = [tensors_apart(self.nudged(name, seed), trained) for seed in NUDGES]
        moved = {key: max(each[key] for each in apart) for key in trained}
        assert all(map(math.isfinite, moved.values())), "PyTorch's own are no numbers"
        return moved

    def nudged(self, name, seed):
        """What PyTorch makes of it with weights that are moved."""
        case = exported_test.make_models.make(name)
        exported_test.eager.nudge(case.model, seed)
        return exported_test.make_models.expect_sgd(case, self.folder, exported_test.STEPS, exported_test.MICROBATCHES,
                                                    exported_test.SIZE, exported_test.LEARNING_RATE, "fp32")[1]

    def state(self, out):
        """What has to be the same to the last bit."""
        return harness.weights_digest(out / "final"), harness.losses(out)


@contextlib.contextmanager
def bench():
    Bench.setUpClass()
    made = Bench()
    try:
        made.setUp()
        yield made
    finally:
        made.doCleanups()
        Bench.doClassCleanups()


def known(difference):
    """One that is no number counts as endless, since max() may pass over it and no bar would be missed."""
    return math.inf if math.isnan(difference) else difference


def losses_apart(found, expected):
    return max(known(abs(a - b) / abs(b)) for a, b in zip(harness.losses(found), harness.losses(expected), strict=True))


def tensors_apart(ours, theirs):
    """{tensor: the largest difference of its numbers, relative to its largest}."""
    assert sorted(ours) == sorted(theirs), "other tensors"
    apart = {}
    for name, tensor in theirs.items():
        if tensor.is_floating_point():
            most = max(float(tensor.abs().max()), exported_test.NOISE)
            apart[name] = known(float((ours[name].double() - tensor.double()).abs().max()) / most)
        else:
            apart[name] = float((ours[name] != tensor).any())
    return apart


def weights_apart(found, expected):
    return tensors_apart(*(load_file(out / "final" / "model.safetensors") for out in (found, expected)))


def times_moved(apart, moves):
    """{tensor: how many times what PyTorch's own moves} of those that are not close; without any, `moves` is not called."""
    far = {name: distance for name, distance in apart.items() if distance > CLOSE}
    moved = moves() if far else {}
    return {name: distance / moved[name] if moved.get(name) else math.inf for name, distance in far.items()}


def compare(name, found, expected, moves=dict):
    """`moves()` says how far fp32 leaves tensors open; without it none is."""
    losses, apart = losses_apart(found, expected), weights_apart(found, expected)
    figures.note(f"{name}.losses_apart", losses, met=losses <= CLOSE)
    times = times_moved(apart, moves)
    most, tensor = max(times.values(), default=0), max(times or apart, key=(times or apart).get)
    figures.note(f"{name}.weights_apart", max(apart.values()), met=most <= OPEN_FACTOR, tensor=max(apart, key=apart.get))
    if times:
        figures.note(f"{name}.open_tensors", len(times), f"of {len(apart)}, further apart than {CLOSE:.0e}")
        figures.note(f"{name}.open_times", most, "times what PyTorch's own moves", met=most <= OPEN_FACTOR, tensor=tensor)
    if losses > CLOSE or most > OPEN_FACTOR:
        raise AssertionError(f"losses {losses:.2e} apart, weights {apart[tensor]:.2e} apart in {tensor}: the bar is {CLOSE:.0e}, "
                             f"or {OPEN_FACTOR} times what PyTorch's own moves, and this is {most:.2g} times that")


def share_of(names, args):
    number, shares = map(int, args.share.split("/"))
    return names[number - 1::shares]


def models(args, failures):
    """Five steps in fp32, on a GPU and on the CPU."""
    presets = QUICK_BUILT_IN if args.quick else BUILT_IN
    names = [*presets, *(QUICK_MODELS if args.quick else MODELS)]
    figures.note("models.expected", [f"models.{name}.losses_apart" for name in names])  # by all shares together
    for name in share_of(names, args):
        with figures.attempt(f"models.{name}", failures), bench() as b:
            train = b.trainer(name)
            moves = dict if name in presets else functools.partial(b.moves, name)
            compare(f"models.{name}", train("gpu", b.gpu()), train("cpu", SIM), moves)


def kernels(args, failures):
    """Each kernel by itself against float64."""
    program = harness.BUILD / "bin" / "kernels_check"
    small = args.quick or args.fake
    with figures.attempt("kernels.all", failures):
        done = subprocess.run([program, "--device", "cuda:0,mem=" + ("256MiB" if args.fake else "8GiB"), *["--large"] * (not small)],
                              env={**os.environ, **machine.environment(args.fake)}, text=True, capture_output=True)
        print(done.stdout, done.stderr)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        for each in found:
            figures.note(f"kernels.{each['name']}", known(float(each["apart"])), met=each["met"], bar=each["bar"])
        figures.note("kernels.expected", [f"kernels.{each['name']}" for each in found])
        assert done.returncode in (0, 1), f"exit {done.returncode}: {done.stderr}"
        missed = [each["name"] for each in found if not each["met"]]
        assert not missed, f"further from float64 than rounding explains: {', '.join(missed)}"


def devices(args, failures):
    """The same GPU as one, two and four devices, in both modes: the same bits."""
    with bench() as b:
        b.export("gpt2_long" if not args.quick else "mlp")
        modes = ("harmony-pp", "harmony-dp")
        runs = list(zip(modes, (1, 2))) if args.quick else [(mode, times) for mode in modes for times in (1, 2, 4)]
        figures.note("devices.expected", [f"devices.{mode}.{times}.same_bits" for mode, times in runs])
        reference = None
        for mode, times in runs:
            with figures.attempt(f"devices.{mode}.{times}", failures):
                got = b.state(b.train(f"{mode}-{times}", b.gpu(times), mode=mode, **MANY))
                reference = reference or got
                figures.note(f"devices.{mode}.{times}.same_bits", got == reference, met=got == reference)
                assert got == reference, "other bits than those of one device"


def copies(args, failures):
    """Copies of the worker's own, alone and amid kills: the bits that the swapper's give."""
    workers = ",copies=worker"
    with bench() as b:
        b.export("gpt2_long" if not args.quick else "mlp")
        times = (1, 2) if args.quick else (1, 2, 4)
        roles = ROLES[:1] if args.quick else ROLES[:2]
        figures.note("copies.expected", [f"copies.{each}.same_bits" for each in (*times, *(role for role, _ in roles))])
        expected = b.state(b.train("swapper", b.gpu(), **MANY))
        for each in times:
            with figures.attempt(f"copies.{each}", failures):
                same = b.state(b.train(f"worker-{each}", b.gpu(each, workers), **MANY)) == expected
                figures.note(f"copies.{each}.same_bits", same, met=same)
                assert same, "other bits than with copies of the swapper's"
        kill_each(b, "copies", roles, args, failures, workers)


def kill_each(b, group, roles, args, failures, more=""):
    """Kills in the middle of a run, on a GPU with `more` in its specification; noted in a group of figures."""
    steps_done = KILL_STEPS[args.quick]
    expected = b.state(b.train("whole", b.gpu(), max_steps=steps_done))
    for role in roles:
        with figures.attempt(f"{group}.{role[0]}", failures):
            kill_one(b, role, steps_done, expected, more)
            figures.note(f"{group}.{role[0]}.same_bits", True, met=True)


def kill_one(b, role, steps_done, expected, more):
    job, out = b.job_of(f"kill-{role[0]}", max_steps=steps_done)
    run = b.start("run", job, "--devices", b.gpu(1, more), "--no-calibrate")
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
        kill_each(b, "kills", roles, args, failures)


def bf16(args, failures):
    """Mixed precision, near the CPU's, and with the same bits on two devices."""
    names = ["mlp"] if args.quick else ["mlp", "llama", "llama_long", "gpt2_long", "vit", "unet", *BUILT_IN]
    under_autocast = [] if args.quick else ["vit", "unet"]
    runs = {name: (name, "bf16") for name in names} | {f"{name}.autocast": (name, "autocast") for name in under_autocast}
    figures.note("bf16.expected", [f"bf16.{name}.same_bits" for name in runs])
    for name in share_of(list(runs), args):
        with figures.attempt(f"bf16.{name}", failures), bench() as b:
            train = b.trainer(*runs[name])
            found, expected = train("gpu", b.gpu()), train("cpu", SIM)
            apart = losses_apart(found, expected)
            figures.note(f"bf16.{name}.losses_apart", apart, met=apart <= NARROW_CLOSE)
            weights = weights_apart(found, expected)
            figures.note(f"bf16.{name}.weights_apart", max(weights.values()), tensor=max(weights, key=weights.get))
            same = b.state(train("gpus", b.gpu(2))) == b.state(found)
            figures.note(f"bf16.{name}.same_bits", same, met=same)
            assert apart <= NARROW_CLOSE, f"losses {apart:.2e} apart"
            assert same, "other bits on two devices"


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
        # The signal to end is the worker's: the tool dies of it and says nothing of what it found.
        watch = "" if args.fake else f"{tool} --target-processes all --log-file {report}.%p "
        wrapper.write_text(f'''#!/bin/sh
{watch}{worker} "$@" &
pid=$!
child() {{ cat /proc/$pid/task/$pid/children; }}
trap 'kill -TERM {"$pid" if args.fake else "$(child)"}' TERM
while kill -0 $pid 2>/dev/null; do wait $pid; done
''')
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


STEPS = {step.__name__: step for step in (models, kernels, devices, copies, kills, bf16, sanitizer)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--share", default="1/1", help="of the models, which: the first of four is 1/4")
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
