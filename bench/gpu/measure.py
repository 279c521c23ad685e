#!/usr/bin/env python3
"""All that is to be known of Harmony on a GPU, as one command that takes ten minutes at most.

    bench/gpu/measure.py --out DIR [--parts probe,right,fast] [--programs PACK] [--budget 570] [--layers 2,8,32]
                         [--quick] [--fake]

Runs with a Python that has torch, transformers, numpy and safetensors, on a machine with a GPU; --programs is a folder that
pack.py made (this one, if this file lies in it) or a build folder. Parts are cut into steps, each a process with a time limit;
one that fails or hangs is recorded with its last lines, and the next one runs. The steps that tell most come first, and what
does not fit the budget is left out. DIR then has report.md, report.json and logs.tar.gz, which are up to date at any time.

With --fake everything runs on the driver made for tests (tests/fake_cuda), to try this command out without a GPU.
The exit code is 0 when all steps that were run ended well, 1 when one did not, 2 when nothing could be run.
"""
import argparse
import datetime
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import machine
import report
import steps

HERE = pathlib.Path(__file__).resolve().parent
PARTS = ("probe", "right", "fast")
FACTS = "facts"
SHARES = 3  # of the models that are compared, side by side


def step(name, script, *words, **limits):
    return steps.Step(name, [sys.executable, "-B", HERE / script, *words], **limits)


def chosen(args, scratch):
    """The steps, those that tell most first; seconds are what a step may take, and what it needs at least."""
    flags = [*["--fake"] * args.fake, *["--quick"] * args.quick]
    fake = ["--fake"] * args.fake
    caps = ("8MiB", "4MiB") if args.fake else ("24GiB", "12GiB")
    small, *rest = args.layers or ((1, 2) if args.quick else (2, 8, 32))
    middle, large = rest[:-1], rest[-1:]

    def train(layers, cap, *words, **limits):
        return "fast", step("-".join(["fast", str(layers), cap, *words[1:]]), "fast.py", "train", "--layers", layers, "--cap", cap,
                            *words, "--scratch", scratch, *fake, after=f"prepare-{layers}", **limits)

    def prepare(layers):
        return "fast", step(f"prepare-{layers}", "fast.py", "prepare", "--layers", layers, "--scratch", scratch, *fake,
                            limit=150, background=True, uses_gpu=False)

    def right(what, limit, share=None):
        name, words = (f"right-{what}-{share}", ["--share", f"{share}/{SHARES}"]) if share else (f"right-{what}", [])
        # The CPU that stands in for a GPU may be busy with all of them on two cores.
        return "right", step(name, "right.py", what, *words, *flags, limit=limit * (4 if args.fake else 1), background=True)

    return [(part, each) for part, each in [
        (None, step(FACTS, "facts.py", *fake, limit=60)),
        *map(prepare, (small, *rest)),
        *[right("models", 110, share) for share in range(1, SHARES + 1)],
        *[right("bf16", 110, share) for share in range(1, SHARES + 1)], right("kernels", 60), right("devices", 110),
        right("kills", 110), right("copies", 110), *[right("sanitizer", 110)] * (not args.quick),
        ("fast", step("plain-rates", "plain.py", "rates", *fake, limit=60)),
        ("fast", step("plain-update", "plain.py", "update", *fake, limit=30)),
        *[train(layers, caps[0], limit=110) for layers in middle],
        *[train(layers, caps[0], limit=200, least=60) for layers in large],
        ("probe", step("probe-first", "run_probe.py", "--parts", "1,2,3,5,6", "--quick", *fake, limit=110)),
        *[train(layers, caps[0], "--copies", "worker", limit=200, least=60) for layers in large],
        *[train(layers, caps[1], limit=200, least=60) for layers in large],
        ("probe", step("probe-rest", "run_probe.py", "--parts", "4,7,8", "--quick", *fake, limit=60)),
        ("fast", step("plain-eager", "plain.py", "eager", "--layers", small, *rest, *fake, limit=60)),
        ("fast", step("plain-fsdp", "plain.py", "fsdp", "--layers", middle[0] if middle else small, *fake, limit=80, least=40)),
        ("fast", step("plain-deepspeed", "plain.py", "deepspeed", "--layers", middle[0] if middle else small, *fake, limit=110,
                      least=60)),
        *[train(layers, caps[1], limit=110, least=30) for layers in [*middle, small]],
    ] if part is None or part in args.parts and (not args.steps or each.name.startswith(tuple(args.steps)))]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the results")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help="probe,right,fast")
    parser.add_argument("--steps", type=lambda text: text.split(","), help="of these parts, those whose names begin like one of "
                        "these: right-devices,prepare-8,fast-8-24GiB")
    parser.add_argument("--programs", type=pathlib.Path, help="pack or build folder")
    parser.add_argument("--budget", type=float, default=570, help="seconds for everything; what is written at the end comes on top")
    parser.add_argument("--layers", type=lambda text: [int(word) for word in text.split(",")],
                        help="of the llama of the part fast: 2,8,32 where it is not given")
    parser.add_argument("--scratch", type=pathlib.Path, help="folder for exported models, up to 20 GB")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller ones of everything")
    parser.add_argument("--fake", action="store_true", help="on the driver made for tests")
    args = parser.parse_args()
    if not set(args.parts) <= set(PARTS):
        parser.error(f"--parts: there are {', '.join(PARTS)}")
    if args.programs:
        os.environ["HARMONY_BUILD"] = str(args.programs.resolve())
    return args


def main():
    args = arguments()
    fault = machine.torch_at_fault()
    if not (machine.programs() / "bin" / "harmony").exists():
        fault = f"{machine.programs()} has no bin/harmony"
    if fault:
        print(f"measure.py: {fault}", file=sys.stderr)
        sys.exit(2)
    machine.use()
    os.environ["HF_HUB_OFFLINE"] = "1"
    args.out.mkdir(parents=True, exist_ok=True)
    document = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
                "budget_s": args.budget, "command": " ".join(sys.argv[1:]), "fake": args.fake}

    def save(records):
        document["steps"] = records
        document["bars"] = [{"bar": bar, "measured": text, "met": met} for bar, text, met in report.bars(records)]
        steps.write_json(args.out / "report.json", document)
        (args.out / "report.md").write_text(report.page(document))

    scratch = pathlib.Path(tempfile.mkdtemp(prefix="hm-", dir=args.scratch))
    if len(str(scratch)) < 50:  # sockets lie in there, whose paths have 107 characters at most
        os.environ["TMPDIR"] = str(scratch)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on any way out
    measurement = steps.Measurement(args.out, scratch / "logs", args.budget, save)
    try:
        for _, each in chosen(args, scratch):
            measurement.run(each)
        measurement.finish()
    finally:
        measurement.write()
        steps.end_marked(measurement.mark, prefix=True)
        if os.path.ismount(scratch / "claimed"):  # of fast.py, where that was ended amid a run
            subprocess.run(["umount", "-l", scratch / "claimed"])
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"results: {args.out / 'report.md'}")
    sys.exit(0 if all(record["status"] in ("ok", "skipped") for record in measurement.records) else 1)


if __name__ == "__main__":
    main()
