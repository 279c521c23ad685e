"""Exported PyTorch models, trained by Harmony and by plain PyTorch from the same data with the same microbatches.

Runs in the environment of deploy/setup.sh --with-tests. A few of the models by default; all of them, as a table, by
`exported_test.py --table`.
"""
import contextlib
import hashlib
import io
import json
import math
import pathlib
import shutil
import struct
import sys
import time
import unittest

import harness
import standing

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "export"))
import make_models  # noqa: E402  (first: it says where harmony_export is)
import eager  # noqa: E402
from harmony_export.lengths import of_length  # noqa: E402
import transformers  # noqa: E402
from harmony_export.cli import main as harmony_export_main  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

STEPS, MICROBATCHES, SIZE, LEARNING_RATE = 5, 3, 2, 0.1
# What eager PyTorch adds up in another order, or computes by another kernel, may differ by so much, relative to the
# largest number of a tensor. Where that is tiny (the bias of an attention's keys, whose gradient is zero but for
# rounding) it is relative to NOISE.
CLOSE = 1e-6
NOISE = 1e-3
# Beside fp32, bfloat16 has eight bits of a number.
NARROW_CLOSE = 0.02
NARROW_IN_CI = ["mlp", "cnn", "bert_masked"]
UNDER_AUTOCAST_IN_CI = [("vit", "autocast"), ("regions", "fp32")]
IN_CI = ["mlp", "cnn", "unet", "bert_masked", "bert_fused", "llama_fast", "t5", "mixtral"]

# AdamW, the job's defaults but for the rate; of the rules those that decide a parameter of the model. Every number of
# every tensor has to be within ADAMW_CLOSE of PyTorch's, relative to the largest of its tensor.
ADAMW_RATE = 1e-3
RULES = [{"names": ["*bias", "*norm*"], "weight_decay": 0}, {"dimensions": [0, 1], "learning_rate_factor": 0.5},
         {"names": ["*0*", "conv1.*"], "weight_decay": 0.02, "learning_rate_factor": 0.25}]
ADAMW_CLOSE = 1e-5
# AdamW divides by the gradient's size. Where that is zero but for rounding (the bias of an attention's keys, one in
# front of a BatchNorm), fp32 leaves the result open. A number or a loss may be further away only by so many times the
# most that PyTorch's own moves once the weights that it starts from are each moved to the next float, by one of these
# seeds. The table counts such numbers, and says how many times it is at most.
NUDGES = range(1, 9)
OPEN_FACTOR = 4
ADAMW_IN_CI = ["cnn", "bert"]


def read_tensors(path):
    """{name: (dtype, bytes)} of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]])
            for name, entry in header.items()}


def floats(data):
    return struct.unpack(f"<{len(data) // 4}f", data)


def distance(expected, found):
    """The largest difference of two float tensors, relative to the largest number."""
    a, b = floats(expected), floats(found)
    most = max((abs(x) for x in a), default=0.0)
    return max((abs(x - y) for x, y in zip(a, b)), default=0.0) / max(most, NOISE)


class Exported(standing.Standing):
    """One exported model with its data, and what plain PyTorch makes of it."""

    def export(self, name, dtype="fp32"):
        kept = self.systems_dir / "exports" / f"{name}-{dtype}"  # for all tests of the class, which may change theirs
        if not kept.exists():
            make_models.torch.set_num_threads(1)
            case = make_models.make(name)
            part = kept.parent / f"{kept.name}.part"  # what fails half-way is not taken for an export
            make_models.export(case.model, case.loss, case.batch, out=part, overwrite=True, check=False,
                               report=lambda text: None,
                               **{"name": name, "dropout": False, **case.options_in(dtype)})
            make_models.write_expected(name, part, STEPS, MICROBATCHES, SIZE, LEARNING_RATE, dtype)
            part.rename(kept)
        self.folder = pathlib.Path(shutil.copytree(kept, self.dir / kept.name, dirs_exist_ok=True))
        self.described = json.loads((self.folder / "model.json").read_text())
        self.expected = read_tensors(self.folder / "expected.safetensors")

    def job_of(self, name, **changes):
        inputs = {each["name"]: str(self.folder / "data" / f"{each['name']}.npy") for each in self.described["inputs"] if "derived" not in each}
        mixed = any(entry["role"] == "trained" and entry["dtype"] == "bfloat16"
                    for entry in self.described["parameters"])
        job = {"model_name_or_path": str(self.folder), "init": "pretrained", "data": {"inputs": inputs},
               "global_batch_size": MICROBATCHES * SIZE, "micro_batch_size": SIZE, "virtual_replicas": 1,
               "max_steps": STEPS, "optim": "sgd", "weight_decay": 0, "learning_rate": LEARNING_RATE,
               "bf16": mixed, "output_dir": str(self.dir / f"out-{name}")}
        if "sequence_length" in self.described:
            job["sequence_length"] = self.described["sequence_length"]
        job.update(changes)
        return harness.write_job(self.dir / f"{name}.yaml", job), pathlib.Path(job["output_dir"])

    def train(self, name, devices, *more, **changes):
        job, out = self.job_of(name, **changes)
        self.run_standing(job, devices, "--no-calibrate", *more)
        return out

    def final(self, out):
        return read_tensors(out / "final" / "model.safetensors")

    def compare_with_eager(self, out):
        """How many of the tensors are PyTorch's to the last bit, and the largest distance of the others."""
        final = self.final(out)
        state = {name.removeprefix("state."): tensor for name, tensor in self.expected.items() if name != "losses"}
        self.assertEqual(sorted(final), sorted(state))  # load_state_dict(strict=True) takes it
        equal, worst = 0, 0.0
        for name, (dtype, data) in state.items():
            self.assertEqual(final[name][0], dtype, name)
            if final[name][1] == data:
                equal += 1
            elif dtype == "F32":
                worst = max(worst, distance(data, final[name][1]))
            else:
                self.fail(f"{name} differs from PyTorch's")
        losses = struct.unpack(f"<{STEPS}d", self.expected["losses"][1])
        for ours, theirs in zip(harness.losses(out), losses):
            worst = max(worst, 0.0 if abs(ours - theirs) < 1e-14 * abs(theirs) else abs(ours - theirs) / abs(theirs))
        return equal, len(state), worst

    def compare_adamw(self, name):
        """Trains by AdamW with rules, in both ways: the largest distance, how many numbers are further away because
        fp32 leaves them open, by how many times PyTorch's own move at most, and of how many numbers."""
        def eagerly(seed=None):
            case = make_models.make(name)
            if seed is not None:
                eager.nudge(case.model, seed)
            optimizer = eager.adamw(case.model, ADAMW_RATE, rules)
            return make_models.expect(case, self.folder, STEPS, MICROBATCHES, SIZE, optimizer)

        rules = eager.deciding(RULES, make_models.make(name).model)
        self.assertTrue(rules, name)
        out = self.train(f"{name}-adamw", "sim*2:mem=64MiB", optim="adamw", learning_rate=ADAMW_RATE, weight_decay=0.1,
                         parameter_rules=rules)
        final = load_file(out / "final" / "model.safetensors")
        losses, state = eagerly()
        nudged_losses, nudged = zip(*map(eagerly, NUDGES))
        self.assertEqual(sorted(final), sorted(state))
        worst = moved = 0.0
        self.assertTrue(all(map(math.isfinite, harness.losses(out))), name)
        for step, (loss, ours) in enumerate(zip(losses, harness.losses(out), strict=True)):  # follow the weights
            apart = abs(loss - ours)
            if apart <= ADAMW_CLOSE * abs(loss):
                worst = max(worst, apart / abs(loss))
            else:
                moved = max(moved, apart / max(1e-300, *(abs(loss - other[step]) for other in nudged_losses)))
        open_numbers = numbers = 0
        for key, tensor in state.items():
            if not tensor.is_floating_point():
                self.assertTrue(tensor.equal(final[key]), key)
                continue
            self.assertTrue(final[key].isfinite().all(), key)
            distances = (final[key] - tensor).abs()
            moves = make_models.torch.stack([(other[key] - tensor).abs() for other in nudged]).amax(0)
            most = max(float(tensor.abs().max()), 1e-30)
            far = distances > ADAMW_CLOSE * most
            if far.any():
                moved = max(moved, float((distances[far] / moves[far].clamp(min=1e-30)).max()))
            numbers += tensor.numel()
            open_numbers += int(far.sum())
            worst = max(worst, float(distances.masked_fill(far, 0).max()) / most)
        return worst, open_numbers, moved, numbers

    def cut_and_resumed(self, first, then, **spec):
        """A job whose processes all die after a checkpoint, taken up again on other devices."""
        job, out = self.job_of("cut", **spec)
        run = self.start("run", job, "--devices", first, "--no-calibrate")
        harness.wait_for(lambda: (out / "checkpoint-2").exists(), "a checkpoint")
        self.kill_all(run)
        self.wait_run_folder_gone()
        self.harmony("run", job, "--devices", then, "--no-calibrate")
        return out

    def killed(self, name, devices=2):
        """The same job, with a worker killed after the first step."""
        flops = sum(graph["forward_flops"] for graph in self.described["graphs"]) * MICROBATCHES * SIZE * 3
        pace = max(int(flops / 0.5), 1_000_000)  # a step takes half a second, the smallest models' less
        job, out = self.job_of(name)
        run = self.start("run", job, "--devices", f"sim*{devices}:mem=64MiB,flops={pace}", "--no-calibrate")
        metrics = out / "metrics.jsonl"
        harness.wait_for(lambda: run.poll() is not None or (metrics.exists() and metrics.read_text()), "the first step")
        self.kill(self.processes()[("worker", devices - 1)]["pid"])
        self.wait_exit(run, 0)
        self.assertGreater(harness.read_metrics(out)[-1]["generation"], 1, "the kill came too late")
        return out

    def row(self, name):
        """Trains in all ways and checks that all have the same bits; one line of the table."""
        begin = time.monotonic()
        self.export(name)
        outs = [self.train(f"{name}-{n}", f"sim*{n}:mem=64MiB") for n in (1, 2, 3)]
        outs.append(self.killed(f"{name}-killed"))
        reference = self.final(outs[0])
        for out in outs[1:]:
            self.assertEqual(self.final(out), reference, f"{name}: {out.name} has other bits than {outs[0].name}")
            self.assertEqual(harness.losses(out), harness.losses(outs[0]))
        equal, count, worst = self.compare_with_eager(outs[1])
        self.assertLessEqual(worst, CLOSE, name)
        return {"model": name, "layers": len(self.described["layers"]), "graphs": len(self.described["graphs"]),
                "equal": equal, "of": count, "worst": worst, "seconds": time.monotonic() - begin}

    def adamw_row(self, name):
        """As the table's columns."""
        worst, open_numbers, moved, numbers = self.compare_adamw(name)
        self.assertLessEqual(moved, OPEN_FACTOR, name)
        return {"adamw": worst, "open": open_numbers, "moved": moved, "numbers": numbers}


class ExportedTest(Exported):

    def test_models_train_as_in_pytorch_on_any_number_of_devices(self):
        for name in IN_CI:
            with self.subTest(name):
                row = self.row(name)
                if name in ("mlp", "cnn", "mixtral"):  # nothing is tied: the same sums in the same order
                    self.assertEqual((row["equal"], row["worst"]), (row["of"], 0.0))

    def train_alike(self, name):
        """On one device, on two, and with a kill, with the same bits."""
        outs = [self.train(f"{name}-{n}", f"sim*{n}:mem=64MiB") for n in (1, 2)]
        outs.append(self.killed(f"{name}-killed"))
        for out in outs[1:]:
            self.assertEqual(self.final(out), self.final(outs[0]), out.name)
            self.assertEqual(harness.losses(out), harness.losses(outs[0]))
        return outs

    def test_in_bfloat16_they_train_as_in_pytorch_on_any_number_of_devices(self):
        for name in NARROW_IN_CI:
            with self.subTest(name):
                self.export(name)
                wide = struct.unpack(f"<{STEPS}d", self.expected["losses"][1])
                if name == "bert_masked":  # the others consist of gaps between tensors, and of norms in fp32
                    before = self.swapped(self.train(f"{name}-wide", "sim*2:mem=64MiB"))["weights"]
                self.export(name, dtype="bf16")
                outs = self.train_alike(name)
                equal, count, worst = self.compare_with_eager(outs[1])
                if name == "bert_masked":  # a table is tied: PyTorch rounds the sum of both uses' gradients
                    self.assertLessEqual(worst, NARROW_CLOSE)
                else:
                    self.assertEqual((equal, worst), (count, 0.0))
                for ours, fp32 in zip(harness.losses(outs[0]), wide):
                    self.assertLessEqual(abs(ours - fp32), NARROW_CLOSE * fp32)
                if name == "cnn":  # parameters of both types, and statistics
                    one, two = (self.train(f"{name}-gradients-{n}", f"sim*{n}:mem=64MiB", gradient_dtype="bf16")
                                for n in (1, 2))
                    self.assertEqual(self.final(one), self.final(two))
                    self.assertNotEqual(self.final(one), self.final(outs[0]))
                    self.assertLess(self.swapped(one)["gradients"], self.swapped(outs[0])["gradients"])
                if name == "bert_masked":
                    moved = self.swapped(outs[1])["weights"]
                    self.assertTrue(0.5 * before <= moved <= 0.55 * before, (moved, before))
                    self.assertEqual(self.summary(outs[1])["precision"], "bf16")
        for key, words in ((False, "set bf16: true"), (True, "--dtype bf16")):
            job, _ = self.job_of("another-type", bf16=key)
            self.assertIn(words, self.harmony("run", job, "--devices", "sim:mem=64MiB", check=2).stderr)
            self.export("mlp")

    def test_under_autocast_they_train_as_in_pytorch_on_any_number_of_devices(self):
        for name, dtype in UNDER_AUTOCAST_IN_CI:
            with self.subTest(name):
                self.export(name, dtype=dtype)
                outs = self.train_alike(name)
                equal, count, worst = self.compare_with_eager(outs[1])
                self.assertEqual((equal, worst), (count, 0.0))

    @staticmethod
    def summary(out):
        return json.loads((out / "summary.json").read_text())

    def swapped(self, out):
        return self.summary(out)["swap_bytes"]

    def test_adamw_with_rules_is_pytorchs_with_parameter_groups(self):
        for name in ADAMW_IN_CI:
            with self.subTest(name):
                self.export(name)
                row = self.adamw_row(name)
                self.assertLess(row["open"], 0.01 * row["numbers"])

    def test_a_checkpoint_has_what_final_lacks_and_goes_on_with_the_same_bits(self):
        self.export("cnn")  # with statistics
        whole = self.train("whole", "sim*2:mem=64MiB", optim="adamw", save_steps=2)
        out = self.cut_and_resumed("sim*2:mem=64MiB,flops=2M", "sim*3:mem=64MiB", optim="adamw", save_steps=2)
        self.assertEqual(self.final(out), self.final(whole))

    def test_a_checkpoint_of_it_is_exported_as_final_is(self):
        self.export("cnn")  # with buffers, some of them integers
        out = self.train("cnn", "sim*2:mem=64MiB", save_steps=2, save_total_limit=9)
        short = self.train("short", "sim*2:mem=64MiB", max_steps=2)
        for step, expected in ((STEPS, self.final(out)), (2, self.final(short))):
            made = self.dir / f"made-{step}"
            self.harmony("export", out, "--checkpoint", step, "-o", made)
            self.assertEqual(read_tensors(made / "model.safetensors"), expected)
            self.assertEqual([each.name for each in made.iterdir()],
                             [each.name for each in (short / "final").iterdir()])
        self.harmony("export", out, "--dtype", "bf16", "-o", self.dir / "bf16")
        whole, half = load_file(out / "final" / "model.safetensors"), load_file(self.dir / "bf16" / "model.safetensors")
        self.assertEqual(sorted(half), sorted(whole))
        for key, tensor in whole.items():
            expected = tensor.bfloat16() if tensor.is_floating_point() else tensor
            self.assertTrue(half[key].dtype == expected.dtype and half[key].equal(expected), key)
        (self.folder / "model.json").rename(self.folder / "elsewhere.json")
        refused = self.harmony("export", out, "-o", self.dir / "none", check=2)
        self.assertIn("model.json", refused.stderr)
        self.assertFalse((self.dir / "none").exists())

    def test_dropout_and_labels_that_do_not_count_know_neither_replicas_nor_devices(self):
        self.export("bert_masked")
        job, out = self.job_of("without", dropout=0)
        refused = self.harmony("run", job, "--devices", "sim:mem=64MiB", "--no-calibrate", check=2)
        self.assertIn("exported with its dropout", refused.stderr)
        self.assertFalse(out.exists())
        outs = [self.train(f"replicas-{n}", f"sim*{n}:mem=64MiB", virtual_replicas=4, mode=mode,
                           global_batch_size=4 * SIZE)
                for n, mode in ((1, "harmony-pp"), (3, "harmony-dp"))]
        self.assertEqual(self.final(outs[0]), self.final(outs[1]))
        self.assertEqual(harness.losses(outs[0]), harness.losses(outs[1]))
        whole = self.train("whole", "sim*2:mem=64MiB", virtual_replicas=1, global_batch_size=4 * SIZE)
        for a, b in zip(harness.losses(outs[0]), harness.losses(whole)):
            self.assertAlmostEqual(a, b, places=5)  # sums in another order

    def test_layer_groups_on_sets_of_devices_have_the_same_bits_and_bear_deaths(self):
        self.export("gpt2")
        changes = dict(virtual_replicas=4, global_batch_size=4 * SIZE, layer_groups=[2, 2], max_steps=16)
        whole = self.train("whole", "sim:mem=64MiB", **changes)
        job, out = self.job_of("sets", **changes)
        machine = "sim*3:mem=64MiB,flops=100M"
        plan = self.plan(job, machine)["plan"]
        path = self.put_on_sets(plan, ([1, 0], [2, 1], [0, 0, 0, 1]), parts=4)
        run = self.start("run", job, "--devices", machine, "--no-calibrate", "--plan", path)
        harness.wait_for(lambda: harness.steps_done(out) > 0 or run.poll() is not None, "a step")
        self.kill_one_by_one(run, out, (("worker", 1), ("swapper", 0), ("worker", 2)))
        self.wait_exit(run, 0)
        self.assertEqual(self.final(out), self.final(whole))
        self.assertEqual(harness.losses(out), harness.losses(whole))

    def test_words_that_are_masked_are_the_same_after_a_restart(self):
        self.export("bert")
        tokens = make_models.numpy.random.default_rng(0).integers(0, 128, 40 * 24 + 1, dtype="uint16")
        tokens.tofile(self.dir / "tokens.bin")
        data = {"path": str(self.dir / "tokens.bin"), "format": "tokens-u16", "mask_probability": 0.15,
                "mask_token": 3}
        whole = self.train("whole", "sim*2:mem=64MiB", data=data, save_steps=2)
        out = self.cut_and_resumed("sim*2:mem=64MiB,flops=100M", "sim:mem=64MiB", data=data, save_steps=2)
        self.assertEqual(self.final(out), self.final(whole))
        other = self.train("other", "sim:mem=64MiB", data=dict(data, mask_token=4))
        self.assertNotEqual(self.final(other), self.final(whole))

    def test_one_export_is_trained_at_any_length_as_one_for_that_length(self):
        for name in ("gpt2", "bert_masked"):  # a file of tokens; arrays, padding and dropout
            with self.subTest(name):
                self.export_at(name, None)
                any_length = self.folder
                for length in (9, 20):
                    data = self.data_of(name, length)
                    self.folder = any_length
                    free = self.train(f"{name}-free-{length}", "sim*2:mem=64MiB", data=data, sequence_length=length)
                    self.export_at(name, length)
                    fixed = self.train(f"{name}-fixed-{length}", "sim*2:mem=64MiB", data=data, sequence_length=length)
                    self.assertEqual(harness.losses(free), harness.losses(fixed))
                    self.assertEqual(self.final(free), self.final(fixed))
                self.folder = any_length
                most = json.loads((any_length / "model.json").read_text())["sequence_length"]["most"]
                job, _ = self.job_of("long", data=data, sequence_length=most + 1)
                refused = self.harmony("plan", job, "--devices", "sim:mem=64MiB", check=2)
                self.assertIn(f"sequence_length is {most + 1}, but the model was exported for 2 to {most}",
                              refused.stderr)

    def export_at(self, name, length):
        """Exports a model of sequences for one length, or for any."""
        self.folder = self.dir / f"{name}-{length or 'any'}"
        case = make_models.make(name)
        places = {key: 1 for key in case.batch}
        batch = of_length(case.batch, {key: [1] for key in places}, length) if length else case.batch
        options = {**case.options, "name": name, "sequence_length": length, "dynamic": None if length else places}
        make_models.export(case.model, case.loss, batch, out=self.folder, report=lambda text: None, **options)
        self.described = json.loads((self.folder / "model.json").read_text())

    def data_of(self, name, length):
        """The `data` of a job with sequences of a length."""
        random = make_models.numpy.random.default_rng(length)
        if name == "gpt2":
            random.integers(0, 256, 40 * length + 1, dtype="uint16").tofile(self.dir / "tokens.bin")
            return {"path": str(self.dir / "tokens.bin"), "format": "tokens-u16"}
        arrays = {key: random.integers(0, 128, (40, length)) for key in ("input_ids", "labels")}
        arrays["labels"][random.random((40, length)) < 0.7] = -100
        arrays["attention_mask"] = (make_models.numpy.arange(length) >= random.integers(0, 4, (40, 1))).astype("int64")
        for key, array in arrays.items():
            make_models.numpy.save(self.dir / f"{key}.npy", array)
        return {"inputs": {key: str(self.dir / f"{key}.npy") for key in arrays}}

    def test_its_layers_are_measured_and_a_plan_goes_by_that(self):
        self.export("cnn")
        job, _ = self.job_of("measured")
        self.harmony("profile", job, "--devices", "sim*2:mem=64MiB", "--quick", "-o", self.dir / "P.json")
        planned = self.harmony("plan", job, "--devices", "sim*2:mem=64MiB", "--profile", self.dir / "P.json")
        self.assertIn("on 2 devices", planned.stdout)

    def test_without_a_profile_its_layers_are_measured_once(self):
        self.export("cnn")
        self.env["XDG_CACHE_HOME"] = str(self.dir / "cache")
        job, _ = self.job_of("once", micro_batch_size="auto")

        def plan(*args, devices="sim*2:mem=64MiB"):
            done = self.harmony("plan", job, "--devices", devices, "--json", *args)
            return json.loads(done.stdout), done.stderr

        blind, _ = plan("--no-calibrate")
        first, said = plan()
        self.assertIn("measured each distinct layer", said)
        self.assertIn("each distinct layer measured", first["time_estimate"]["basis"])
        # What is measured differs from one time to the next, and must not decide about results.
        self.assertEqual(first["micro_batch_size"], blind["micro_batch_size"])
        again, said = plan()
        self.assertNotIn("measured each distinct layer", said)
        for key in ("step_seconds", "basis"):
            self.assertEqual(again["time_estimate"][key], first["time_estimate"][key])
        # Devices with a pace take FLOPs at that, whatever the layers are.
        paced, said = plan(devices="sim*2:mem=64MiB,flops=1G")
        self.assertNotIn("each distinct layer", said + paced["time_estimate"]["basis"])

    def test_what_was_trained_of_a_hugging_face_model_is_loaded_by_from_pretrained(self):
        source = self.dir / "tiny-bert"
        config = transformers.BertConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                                         vocab_size=64, max_position_embeddings=16)
        transformers.BertForMaskedLM(config).save_pretrained(source)
        (source / "tokenizer_config.json").write_text("{}")
        self.folder = self.dir / "exported"
        command = ["hf", str(source), "--task", "masked-lm", "--sequence-length", "8", "--no-check", "-o", str(self.folder)]
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(harmony_export_main(command), 0)
        self.described = json.loads((self.folder / "model.json").read_text())
        make_models.numpy.arange(500, dtype="uint16").__mod__(64).tofile(self.dir / "tokens.bin")
        data = {"path": str(self.dir / "tokens.bin"), "format": "tokens-u16", "mask_probability": 0.3, "mask_token": 3}
        out = self.train("bert", "sim*2:mem=64MiB", data=data, max_steps=2)
        model, report = transformers.AutoModelForMaskedLM.from_pretrained(out / "final", output_loading_info=True)
        self.assertFalse([names for names in report.values() if names], report)
        self.assertTrue((out / "final" / "tokenizer_config.json").exists())
        state = load_file(out / "final" / "model.safetensors")
        before = load_file(source / "model.safetensors")
        for name, tensor in model.state_dict().items():
            if name in state:  # one of tied names
                self.assertTrue(tensor.equal(state[name]), name)
        self.assertTrue(any(not tensor.equal(state[name]) for name, tensor in before.items()))

    def test_without_weights_it_is_planned_but_not_trained(self):
        self.export("cnn")
        (self.folder / "weights.safetensors").unlink()
        job, out = self.job_of("bare")
        planned = self.harmony("plan", job, "--devices", "sim*2:mem=64MiB,flops=1G", "--no-calibrate")
        self.assertIn("on 2 devices", planned.stdout)
        refused = self.harmony("run", job, "--devices", "sim*2:mem=64MiB", "--no-calibrate", check=None)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("weights.safetensors", refused.stdout + refused.stderr)
        self.assertFalse(out.exists())

    def test_what_does_not_fit_is_refused_before_anything_starts(self):
        self.export("mlp")
        job, out = self.job_of("bad")

        def refused(*changes, **spec):
            job, _ = self.job_of("bad", **spec)
            done = self.harmony("run", job, "--devices", "sim*2:mem=64MiB", "--no-calibrate", check=2)
            for words in changes:
                self.assertIn(words, done.stdout + done.stderr)
            self.assertFalse(out.exists())

        refused("init: random", "pretrained", init="random")
        inputs = json.loads(job.read_text())["data"]["inputs"]
        refused("'labels' is missing", data={"inputs": {"x": inputs["x"]}})
        refused("holds samples of", data={"inputs": {"x": inputs["labels"], "labels": inputs["labels"]}})
        refused("data.inputs and data.path exclude each other",
                data={"inputs": inputs, "path": str(self.dir / "data.txt"), "format": "text-bytes"})
        refused("the model reads x, labels", data={"path": str(self.dir / "data.txt"), "format": "text-bytes"})
        labels = make_models.numpy.load(inputs["labels"])
        labels[3] = 1000
        make_models.numpy.save(self.dir / "wrong.npy", labels)
        refused("sample 3 has 1000", data={"inputs": dict(inputs, labels=str(self.dir / "wrong.npy"))})
        described = self.folder / "model.json"
        text = described.read_text()
        described.write_text(text.replace('"harmony_model": 1', '"harmony_model": 7').replace(
            '"harmony_model":1', '"harmony_model":7'))
        refused("another version")
        described.write_text(text)
        graph = next((self.folder / "graphs").iterdir())
        text = graph.read_text()
        for change in (lambda: graph.write_text(text + " "), graph.unlink):
            change()
            job, _ = self.job_of("bad")
            done = self.harmony("run", job, "--devices", "sim*2:mem=64MiB", "--no-calibrate", check=None)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(graph.name, done.stdout + done.stderr)
            self.assertFalse(out.exists())

        def put(change):
            """The graph with a change, under the name that its contents then have."""
            file = json.loads(text)
            change(file)
            changed = json.dumps(file)
            name = hashlib.sha256(changed.encode()).hexdigest()
            graph.with_stem(name).write_text(changed)
            described.write_text(whole.replace(graph.stem, name))

        whole = described.read_text()
        graph.write_text(text)
        put(lambda file: file["slots"][0].update(dtype="int64"))
        refused("its slots are not of the types and shapes of its graph's")
        put(lambda file: file.pop("phases"))
        refused("phases")
        # Which operators there are LibTorch alone knows, in a worker. Nothing is trained, so that the folder stays free.
        phase = next(iter(json.loads(text)["phases"]))
        put(lambda file: file["phases"][phase]["ops"][-1].update(op="aten::of_another_version"))
        job, _ = self.job_of("bad")
        done = self.harmony("run", job, "--devices", "sim*2:mem=64MiB", "--no-calibrate", check=2)
        self.assertIn("has no operator 'aten::of_another_version'", done.stdout + done.stderr)
        self.assertIn(make_models.torch.__version__.split("+")[0], done.stdout + done.stderr)
        described.write_text(whole)
        job, _ = self.job_of("bad", seed=1)
        self.harmony("run", job, "--devices", "sim*2:mem=64MiB", "--no-calibrate")


def table_of_all_models():
    """Made where it is asked for, so that it is not among the tests."""
    class Table(Exported):
        runTest = print_table

    return Table()


def print_table(self):
    print(f"{'model':12} layers graphs  bit-equal   worst    seconds   adamw  moved   open of numbers", flush=True)
    for name in make_models.MODELS:
        row = self.row(name)
        row |= self.adamw_row(name)
        print("{model:12} {layers:6} {graphs:6} {equal:5}/{of:<5} {worst:8.1e} {seconds:6.1f} {adamw:11.1e} {moved:6.2f} {open:6}"
              " of {numbers}".format(**row), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["--table"]:
        sys.exit(not unittest.TextTestRunner().run(table_of_all_models()).wasSuccessful())
    unittest.main(verbosity=2)
