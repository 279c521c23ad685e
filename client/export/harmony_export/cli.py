"""The program harmony-export."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import ExportError
from .export import export
from .precision import DTYPES
from .tasks import TASKS, has_weights, hugging_face, local_directory, torchvision

_DESCRIPTION = """Writes a model as a directory that `harmony run` trains without Python.

  harmony-export hf ./my-bert --task masked-lm --sequence-length 128 -o bert
  harmony-export hf google-bert/bert-base-uncased --task masked-lm -o bert        # from the local cache
  harmony-export torchvision resnet50 --loss cross_entropy -o resnet50

Models of one's own are exported from Python: harmony_export.export(model, loss, batch, out=DIR)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program; returns its exit code: 2 where the model or the usage is at fault."""
    args = _parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, lambda got, _: sys.exit(128 + got))  # on the way out what is half written goes
    try:
        _run(args)
    except (ExportError, OSError) as error:
        print(f"harmony-export: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="harmony-export", description=_DESCRIPTION,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    sources = parser.add_subparsers(dest="source", required=True)

    hf = sources.add_parser("hf", help="a model of transformers")
    hf.add_argument("model", metavar="NAME_OR_DIR", help="a local directory with config.json, and *.safetensors for init "
                    "pretrained; or a name of the Hugging Face hub, whose files are in the local cache (hf download NAME)")
    hf.add_argument("--task", required=True, choices=TASKS)
    hf.add_argument("--sequence-length", type=int, metavar="T",
                    help="fixed at export; the model's longest where it is not given, at most 1024")
    hf.add_argument("--any-sequence-length", action="store_true",
                    help="leave the length free, for each job to choose; T is then only what the check compares")
    hf.add_argument("--init", choices=["auto", "random", "pretrained"], default="auto",
                    help="auto: pretrained where the directory has weights")
    hf.add_argument("--attention", choices=["sdpa", "eager"], help="transformers' implementation; its default where "
                    "it is not given")
    hf.add_argument("--attention-mask", action="store_true",
                    help="the data say which tokens are there (1) and which are padding (0)")

    vision = sources.add_parser("torchvision", help="a model of torchvision, with weights drawn anew")
    vision.add_argument("model", help="such as resnet50")
    vision.add_argument("--loss", required=True, choices=["cross_entropy"])
    vision.add_argument("--classes", type=int, default=1000)
    vision.add_argument("--image-size", type=int, default=224)

    for source in (hf, vision):
        source.add_argument("-o", "--out", type=Path, required=True, metavar="DIR")
        source.add_argument("--overwrite", action="store_true", help="may replace a model exported before")
        source.add_argument("--name", help="of the model, in model.json")
        source.add_argument("--cuts", nargs="+", default="auto", metavar="PATTERN",
                            help="modules at which layers begin, as in 'encoder.layer.*'; at repeated blocks where "
                            "none are given")
        source.add_argument("--seed", type=int, default=0, help="of weights that are drawn anew")
        source.add_argument("--dropout", action=argparse.BooleanOptionalAction, default=True,
                            help="drop in training what the model says (default)")
        source.add_argument("--fused-loss", action="store_true",
                            help="never hold all logits: less memory for many classes, other last bits")
        source.add_argument("--fast-products", action="store_true",
                            help="multiply matrices by the runtime's own kernel: twice as fast on processors with AVX-512 "
                            "that are not Intel's, other last bits")
        source.add_argument("--dtype", choices=DTYPES, default="fp32",
                            help="bf16: layers compute in bfloat16, which takes half the memory; autocast: in fp32, but "
                            "for what torch.autocast casts to bfloat16; parameters are trained in fp32 all the same "
                            "(default: fp32)")
        source.add_argument("--check", action=argparse.BooleanOptionalAction, default=True,
                            help="compare a microbatch with eager PyTorch (default)")
        source.add_argument("--tolerance", type=float, help="of the check, where bits are not equal: 1e-6 where it is "
                            "not given, of --dtype bf16 and autocast 0.03")
        source.add_argument("--no-weights", action="store_true",
                            help="trace without memory for parameters, and write none")
    return parser


def _run(args: argparse.Namespace) -> None:
    if args.source == "hf":
        pretrained = args.init == "pretrained" or (args.init == "auto" and has_weights(local_directory(args.model)))
        task = hugging_face(args.model, args.task, sequence_length=args.sequence_length, seed=args.seed,
                            pretrained=pretrained, fake=args.no_weights, attention=args.attention,
                            attention_mask=args.attention_mask, dropout=args.dropout,
                            any_length=args.any_sequence_length, narrow=args.dtype == "bf16")
    else:
        task = torchvision(args.model, args.loss, classes=args.classes, image_size=args.image_size, seed=args.seed,
                           fake=args.no_weights)
    export(task.model, task.loss, task.sample_batch, out=args.out, cuts=args.cuts, name=args.name or task.name,
           values_below=task.values_below, sequence_length=task.sequence_length, dynamic=task.dynamic,
           longest_sequence=task.longest_sequence, dropout=args.dropout, fused_loss=args.fused_loss,
           fast_products=args.fast_products,
           dtype=args.dtype, keep_fp32=task.keep_fp32, weights=not args.no_weights, check=args.check,
           tolerance=args.tolerance, overwrite=args.overwrite, copies=task.copies)
    print(f"written to {args.out}")
