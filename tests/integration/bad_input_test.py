"""Bad input: a clear error that names the key or file, exit code 2, nothing half-done."""
import json
import os
import re
import shutil
import socket
import struct
import unittest

import harness

DEVICES = "sim*2:mem=8MiB"


class BadInputTest(harness.Scratch):

    def refused(self, job, *words, devices=DEVICES, out=None):
        done = self.harmony("run", job, "--devices", devices, check=2)
        text = done.stderr + done.stdout
        for word in words:
            self.assertIn(word, text)
        if out is not None:
            self.assertFalse(out.exists(), f"{out} was made for a job that was refused")

    def test_job_files(self):
        cases = {
            "unknown key": ({"learning_rte": 1}, ["learning_rte", "learning_rate"]),
            "wrong type": ({"max_steps": "many"}, ["max_steps"]),
            "negative": ({"learning_rate": -1}, ["learning_rate"]),
            "not built yet": ({"eval_data": "x"}, ["eval_data"]),
            "does not divide": (
                {"micro_batch_size": 3}, ["does-not-divide.yaml: micro_batch_size 3", "8", "nearest that do: 2 and 4"]),
            "clipped too late": (
                {"update": "eager", "max_grad_norm": 1}, ["clipped-too-late.yaml: update: eager", "max_grad_norm"]),
            "missing data": ({"data": {"path": "/nowhere/data.txt", "format": "text-bytes"}}, ["/nowhere/data.txt"]),
            "missing model": ({"model_name_or_path": "/nowhere/model"}, ["/nowhere/model"]),
            "unknown optimizer": ({"optim": "adam"}, ["optim", "adamw"]),
            "too long": ({"sequence_length": 128}, ["sequence_length", "64"]),
            "too few tokens": ({"global_batch_size": 100000, "micro_batch_size": 100}, ["data.txt"]),
            "layer groups": ({"layer_groups": [1, 2]}, ["layer_groups", "6"]),
            "bf16": ({"bf16": 16}, ["bf16"]),
            "gradients": ({"gradient_dtype": "bf16"}, ["gradient_dtype", "bf16: true"]),
            "gradient-type": ({"bf16": True, "gradient_dtype": "fp16"}, ["gradient_dtype", "auto, fp32, bf16"]),
            "a rule for nothing": (
                {"parameter_rules": [{"dimensions": 1, "weight_decay": 0}, {"names": "*.ln_1.wait", "weight_decay": 1}]},
                ["parameter_rules: rule 2 decides no parameter", "'*.ln_1.wait'", "h.0.ln_1.weight"]),
            "a rule without effect": ({"parameter_rules": [{"names": "*"}]}, ["rule 1 changes nothing"]),
        }
        for name, (change, words) in cases.items():
            with self.subTest(name):
                job, out = self.job(name.replace(" ", "-"), **change)
                self.refused(job, *words, out=out)

    def test_models(self):
        cases = {
            "unknown architecture": ({"model_type": "bloom"}, ["bloom"]),
            "no vocabulary": ({"vocab_size": 0}, ["vocab_size"]),
            "heads": ({"n_head": 5}, ["n_head"]),
            "activation": ({"activation_function": "swishh"}, ["activation_function"]),
        }
        for name, (change, words) in cases.items():
            with self.subTest(name):
                self.model = self.make_model(name.replace(" ", "-"), dict(harness.TINY_GPT2, **change))
                job, out = self.job("m-" + name.replace(" ", "-"))
                self.refused(job, *words, "config.json", out=out)

    def test_a_sequence_longer_than_the_sliding_window_is_refused(self):
        self.model = self.make_model("window", {
            "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": 256,
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
            "hidden_act": "silu", "tie_word_embeddings": False, "sliding_window": 16})
        job, out = self.job("window")
        self.refused(job, "sliding_window", "16", out=out)

    def test_what_is_perhaps_not_meant_is_said_and_trained(self):
        self.model = self.make_model("longer", {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "max_position_embeddings": 16})
        (self.model / "tokenizer.json").write_text("{}")
        job, out = self.job("longer", sequence_length=24, max_steps=1)
        done = self.harmony("run", job, "--devices", DEVICES)
        self.assertIn("longer than the 16 positions", done.stdout + done.stderr)
        self.assertIn("has a tokenizer", done.stdout + done.stderr)
        self.assertTrue((out / "final").exists())

    def test_tokens_beyond_the_vocabulary_are_named_by_position(self):
        path = self.dir / "tokens.bin"
        values = [5] * 3000
        values[1234] = 999
        path.write_bytes(struct.pack("<3000H", *values))
        job, out = self.job("tokens", data={"path": str(path), "format": "tokens-u16"})
        self.refused(job, "tokens.bin", "999", "1234", out=out)

    def test_data_that_changed_since_the_run_began(self):
        data = self.dir / "changing.txt"
        data.write_text("some text to train on " * 300)
        job, out = self.job("changed", max_steps=2, data={"path": str(data), "format": "text-bytes"})
        self.harmony("run", job, "--devices", DEVICES)
        shutil.rmtree(out / "final")  # so that the run is not finished
        before = (out / "run.json").read_bytes()
        with data.open("a") as file:
            file.write("and more")
        self.refused(job, "data.path", "changing.txt", "has changed since the run began")
        self.assertEqual((out / "run.json").read_bytes(), before)
        data.write_text("some text to train on " * 300)
        self.harmony("run", job, "--devices", DEVICES)
        self.assertTrue((out / "final").exists())

    def test_overwrite_moves_nothing_that_the_job_reads(self):
        job, out = self.job("read", max_steps=1)
        self.harmony("run", job, "--devices", DEVICES)
        again, _ = self.job("again", model_name_or_path=str(out / "final"), output_dir=str(out))
        done = self.harmony("run", again, "--devices", DEVICES, "--overwrite", check=2)
        self.assertIn("model_name_or_path", done.stderr + done.stdout)
        self.assertTrue((out / "final").exists())

    def test_broken_safetensors(self):
        job, out = self.job("made", max_steps=1)
        self.harmony("run", job, "--devices", DEVICES)
        good = next((out / "final").glob("*.safetensors")).read_bytes()
        header = struct.unpack("<Q", good[:8])[0]
        entries = json.loads(good[8:8 + header])
        end = len(good) - 8 - header
        table = entries["transformer.wte.weight"]
        size = table["data_offsets"][1] - table["data_offsets"][0]
        entries["lm_head.weight"] = dict(table, data_offsets=[end, end + size])
        with_head = json.dumps(entries).encode()
        breakages = {
            "another-head": struct.pack("<Q", len(with_head)) + with_head + good[8 + header:] + bytes(size),
            "truncated": good[:-100],
            "no-header": good[:4],
            "huge-header": struct.pack("<Q", 1 << 60) + good[8:],
            "not-json": good[:8] + b"x" * header + good[8 + header:],
            "empty": b"",
        }
        for name, data in breakages.items():
            with self.subTest(name):
                directory = self.make_model(name, harness.TINY_GPT2)
                (directory / "model.safetensors").write_bytes(data)
                job, out = self.job("s-" + name, model_name_or_path=str(directory), init="pretrained")
                self.refused(job, "model.safetensors", out=out)

    def test_a_checkpoint_to_resume_from_must_fit_the_job(self):
        made, source = self.job("source", max_steps=4, optim="sgd", learning_rate=0.1)
        self.harmony("run", made, "--devices", DEVICES)
        checkpoint = source / "checkpoint-4"
        wider = self.make_model("wider", dict(harness.TINY_GPT2, n_embd=48))
        cases = {
            "not there": ({"resume_from_checkpoint": "/nowhere"}, ["/nowhere"]),
            "no checkpoint": ({"resume_from_checkpoint": str(source / "final")}, ["is no checkpoint"]),
            "all of a run": ({"resume_from_checkpoint": str(source)}, ["newest checkpoint is checkpoint-4"]),
            "no moments": ({"optim": "adamw"}, ["optimizer.safetensors"]),
            "another shape": ({"model_name_or_path": str(wider)}, ["model.safetensors", "shape"]),
            "beyond the end": ({"max_steps": 3}, ["max_steps"]),
            "another microbatch": ({"micro_batch_size": 4}, ["micro_batch_size 2"]),
            "a batch of no whole microbatches": (
                {"global_batch_size": 5, "micro_batch_size": "auto"}, ["checkpoint-4: was made with micro_batch_size 2"]),
            "a batch of unequal replicas": ({"global_batch_size": 12}, ["checkpoint-4: was made with virtual_replicas 4"]),
        }
        base = {"optim": "sgd", "learning_rate": 0.1, "resume_from_checkpoint": str(checkpoint), "max_steps": 6}
        for name, (change, words) in cases.items():
            with self.subTest(name):
                job, out = self.job(name.replace(" ", "-"), **{**base, **change})
                self.refused(job, "resume_from_checkpoint", *words, out=out)
        job, out = self.job("fits", **{**base, "micro_batch_size": "auto"})  # takes the checkpoint's
        self.harmony("run", job, "--devices", DEVICES)
        self.assertEqual(len(harness.losses(out)), 2)
        damaged = next(checkpoint.glob("model.safetensors"))
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
        job, out = self.job("damaged", **base)
        self.refused(job, "resume_from_checkpoint", "checksum", out=out)

    def test_a_file_that_does_not_answer_is_named_and_not_asked_for_again(self):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(self.dir / "data.sock"))  # which cannot be opened
            job, out = self.job("socket", **{"data": {"path": str(self.dir / "data.sock"), "format": "text-bytes"}})
            self.refused(job, "data.sock", "No such device or address", out=out)

    def test_an_output_may_not_take_the_place_of_the_data(self):
        data = self.dir / "data.txt"
        before = data.read_bytes()
        job, _ = self.job("traced")
        for command in (["run", job, "--trace", data], ["profile", job, "-o", data]):
            refused = self.harmony(*command, "--devices", DEVICES, check=2)
            self.assertIn("is a file that this command reads", refused.stderr)
        self.assertEqual(data.read_bytes(), before)

    def test_a_home_directory_is_not_made_beside_the_job_file(self):
        job, _ = self.job("home", output_dir="~/runs/x")
        self.assertIn("output_dir: ~ stands for no folder", self.harmony("run", job, "--devices", DEVICES, check=2).stderr)

    def test_a_device_that_is_too_small_is_told_by_how_much(self):
        job, out = self.job("small")
        self.refused(job, "does not fit device", "missing", devices="sim*2:mem=1MiB", out=out)

    def test_a_host_that_is_too_small_is_told_what_is_enough_for_a_run(self):
        job, out = self.job("host")
        text = self.harmony("plan", job, "--devices", DEVICES, "--host-memory", "1MiB", check=2).stderr
        enough = re.search(r"It fits with --host-memory (\d+)", text)
        self.assertIsNotNone(enough, text)
        self.harmony("run", job, "--devices", DEVICES, "--host-memory", enough[1])

    def test_device_strings(self):
        job, out = self.job("devices")
        for spec, word in (("sym*2:mem=8MiB", "sym"), ("sim*2:men=8MiB", "men"), ("sim*0:mem=8MiB", "0"),
                           ("sim:mem=abc", "abc"), ("", "--devices: must not be empty")):
            with self.subTest(spec):
                self.refused(job, word, devices=spec, out=out)

    def test_outputs_that_cannot_be_written_are_told_before_anything_starts(self):
        job, out = self.job("outputs", max_steps=100000)
        text = job.read_text()
        file = self.dir / "data.txt"
        cases = ((self.dir, "is a directory"), (self.dir / "data.txt" / "T.json", "cannot|no such folder"),
                 ("/proc/zz/T.json", "cannot|no such folder"), (job, "this command reads"), ("", "not be empty"))
        for path, words in cases:
            for command, option in (("run", "--trace"), ("profile", "--output")):
                with self.subTest(command, path=str(path)):
                    done = self.harmony(command, job, "--devices", DEVICES, option, path, check=2)
                    self.assertRegex(done.stderr, words)
                    self.assertNotIn("measur", done.stdout + done.stderr)
        self.assertFalse(out.exists())
        self.assertEqual(job.read_text(), text)

    def test_options_that_do_not_go_together_or_are_out_of_range(self):
        job, _ = self.job("options")
        done = self.harmony("plan", job, "--devices", DEVICES, "--json", "--explain", check=2)
        self.assertIn("--explain", done.stderr)
        done = self.harmony("trace", "job-1", "-o", self.dir / "t.json", "--last-steps", "-5", check=2)
        self.assertIn("--last-steps: must be 0 or more", done.stderr)

    def test_files_that_are_none_are_refused_at_once(self):
        job, out = self.job("files")
        fifo = self.dir / "fifo"
        os.mkfifo(fifo)
        for path in (fifo, "/dev/zero", self.dir):
            for args in ((path, "--devices", DEVICES), (job, "--devices", DEVICES, "--plan", path),
                         (job, "--devices", DEVICES, "--profile", path), (job, "--config", path)):
                done = self.harmony("plan", *args, check=2)
                self.assertRegex(done.stderr, f"{path}.*(not a regular file|is a directory)")
        for command in (("profile", job, "-o", self.dir / "P.json"), ("up",)):
            self.assertIn("not a regular file", self.harmony(*command, "--config", self.dir, check=2).stderr)

    def test_steps_of_too_many_microbatches_name_the_keys(self):
        for change, words in (({"global_batch_size": 1000000, "micro_batch_size": 4}, ("micro_batch_size 4", "16384")),
                              ({"global_batch_size": 1000000, "micro_batch_size": "auto", "virtual_replicas": 32768},
                               ("virtual_replicas 32768", "16384"))):
            job, _ = self.job("many", **change)
            done = self.harmony("plan", job, "--devices", DEVICES, check=2)
            for word in words:
                self.assertIn(word, done.stderr)

    def test_virtual_replicas_that_cannot_be_name_what_can(self):
        job, _ = self.job("replicas")  # 4 microbatches a step
        for value, words in (("3", ("virtual_replicas is '3'", "auto or a power of two")),
                             ("16", ("virtual_replicas 16 does not divide the 4 microbatches", "a power of two up to 4"))):
            done = self.harmony("plan", job, "--devices", DEVICES, "--set", f"virtual_replicas={value}", check=2)
            for word in words:
                self.assertIn(word, done.stderr)

    def test_a_run_with_another_order_of_sums_is_not_gone_on_with(self):
        job, out = self.job("summed", virtual_replicas=4, save_steps=3)
        self.harmony("run", job, "--devices", DEVICES)
        more = ("--set", "max_steps=9")
        for value in ("2", "1"):
            done = self.harmony("run", job, "--devices", DEVICES, *more, "--set", f"virtual_replicas={value}", check=2)
            self.assertIn(f"virtual_replicas (4 -> {value})", done.stderr)
        # As of before replicas were added up as a tree.
        path = out / "run.json"
        run = json.loads(path.read_text())
        self.assertEqual(run.pop("sum_order"), "pairwise")
        path.write_text(json.dumps(run))
        done = self.harmony("run", job, "--devices", DEVICES, *more, check=2)
        self.assertIn("were added up one after the other", done.stderr)
        self.assertIn("`harmony export`, then init: pretrained", done.stderr)
        self.assertEqual(len(harness.losses(out)), 6)

    def test_plan_files_name_the_field_that_is_out_of_range(self):
        job, _ = self.job("plan")
        plan = json.loads(self.harmony("plan", job, "--devices", DEVICES, "--no-calibrate", "--json").stdout)["plan"]
        path = self.dir / "plan.json"
        for field, value in (("stream_slots", 2**31), ("stream_slots", 2**32 + 1), ("stream_slots", 10**17),
                             ("forward_span", 2**32 + 1), ("devices", 2**32 + 2), ("num_microbatches", 2**32 + 4)):
            path.write_text(json.dumps(dict(plan, **{field: value})))
            done = self.harmony("plan", job, "--devices", DEVICES, "--plan", path, check=2)
            self.assertIn(f"plan.json: {field}: must be at most", done.stderr)

    def test_plan_knows_nothing_of_published_profiles(self):
        job, _ = self.job("plan")
        for args in (("--import-profile", "I.json"), ("--cost-model", "paper"), ("--schedule", "S.json")):
            done = self.harmony("plan", job, *args, check=2)
            self.assertIn(args[0], done.stderr + done.stdout)

    def test_a_loss_that_is_not_finite_stops_the_job_and_names_step_and_layers(self):
        for bf16 in (False, True):
            with self.subTest(bf16=bf16):
                job, out = self.job(f"nan-{bf16}", learning_rate=1e30, optim="sgd", max_steps=20, bf16=bf16)
                done = self.harmony("run", job, "--devices", DEVICES, check=1)
                self.assertRegex(done.stderr + done.stdout, r"(?s)step \d+.*layer|layer.*step \d+")
                self.assertFalse((out / "final").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
