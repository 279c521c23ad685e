"""Harmony PP gives the bits of the plain in-process trainer, for any devices, grouping and clipping."""
import json
import re
import unittest

import harness
import standing


class ExactnessTest(standing.Standing):
    DEVICES = [1, 2, 3, 4]
    GROUPINGS = ["auto", [1, 1, 1, 1, 1, 1], [2, 3, 1]]
    FEW_DEVICES = [1, 3]

    def check_against_plain(self, name, devices_list, groupings, **changes):
        job, _ = self.job(f"{name}-plain", **changes)
        plain = self.plain(job, self.dir / f"{name}-plain-out")
        expected = harness.losses(plain), harness.weights_digest(plain / "final")
        for devices in devices_list:
            for grouping in groupings:
                label = f"{name}-{devices}-{'auto' if grouping == 'auto' else '-'.join(map(str, grouping))}"
                with self.subTest(label):
                    job, out = self.job(label, layer_groups=grouping, **changes)
                    self.run_standing(job, f"sim*{devices}:mem=8MiB")
                    self.assertEqual(harness.losses(out), expected[0], f"losses of {label}")
                    self.assertEqual(harness.weights_digest(out / "final"), expected[1], f"weights of {label}")

    def test_every_device_count_and_grouping_gives_the_same_bits(self):
        self.check_against_plain("eager", self.DEVICES, self.GROUPINGS)

    def test_on_up_to_eight_devices_alike_or_not_in_both_modes(self):
        changes = dict(global_batch_size=16, micro_batch_size=1)
        job, _ = self.job("modes-plain", **changes)
        plain = self.plain(job, self.dir / "modes-plain-out")
        shared = "h2d=1GB/s,d2h=1GB/s,root=a"
        for mode, devices in (("harmony-dp", "sim*8:mem=8MiB"), ("harmony-pp", "sim*8:mem=8MiB"),
                              ("harmony-dp", f"sim:mem=8MiB sim:mem=5MiB sim*2:mem=6MiB,{shared}"),
                              ("harmony-pp", f"sim:mem=8MiB sim*2:mem=5MiB,{shared}")):
            if harness.DEVICE_KIND != "sim" and harness.of_kind(devices) == devices:
                continue  # paced ones are simulated in any case
            with self.subTest(mode=mode, devices=devices):
                job, out = self.job("modes", mode=mode, **changes)
                self.run_standing(job, devices, "--overwrite")
                self.assertEqual(json.loads((out / "run.json").read_text())["virtual_replicas"], 16)
                self.assertEqual(harness.losses(out), harness.losses(plain))
                self.assertEqual(harness.weights_digest(out / "final"), harness.weights_digest(plain / "final"))

    def test_each_group_on_its_own_set_of_devices(self):
        of_four = [1, 0], [3], [0, 1, 2, 3], [0, 0, 0, 1], [2, 3]
        of_five = [4, 0], [3], [1, 2, 3, 4], [4, 4, 4, 1], [2, 3]
        of_six = [4, 5], [3], [0, 2, 4, 5], [5, 1], [2, 3]
        of_seven = [6, 5], [4], [6, 4, 2, 0], [3, 3, 1, 5], [5, 6]
        of_eight = [5, 4], [7], [7, 6, 5, 4, 3, 2, 1, 0], [1, 1, 6, 7], [0, 2, 3, 5]
        clip = {"max_grad_norm": 0.5}
        for name, devices, sets, more in (("sets", 4, of_four, {}), ("sets-clip", 4, of_four, clip), ("sets-5", 5, of_five, {}),
                                          ("sets-6", 6, of_six, clip), ("sets-7", 7, of_seven, {}), ("sets-8", 8, of_eight, clip)):
            machine = f"sim*{devices}:mem=8MiB"
            changes = dict(global_batch_size=16, micro_batch_size=1, layer_groups=[2, 2, 2], **more)
            job, _ = self.job(f"{name}-plain", **changes)
            plain = self.plain(job, self.dir / f"{name}-plain-out")
            job, out = self.job(name, **changes)
            self.put_on_sets(self.plan(job, machine)["plan"], sets, parts=4)
            self.run_standing(job, machine, "--plan", self.dir / "plan.json")
            self.assertEqual(harness.losses(out), harness.losses(plain))
            self.assertEqual(harness.weights_digest(out / "final"), harness.weights_digest(plain / "final"))
            self.check_swap_is_minimal(out, ["weights", "gradients", "stash"])
            said = self.harmony("plan", job, "--devices", machine, "--no-calibrate", "--plan", self.dir / "plan.json",
                                "--explain").stdout
            self.assertIn("4 of 5 groups (forward and backward) run on several devices", said)

    def test_with_gradients_that_leave_in_many_parts(self):
        changes = dict(global_batch_size=16, micro_batch_size=1, layer_groups=[2, 2, 2])
        job, _ = self.job("parts-plain", **changes)
        plain = self.plain(job, self.dir / "parts-plain-out")
        # Fewer parts than devices: these add up among themselves.
        for devices, parts in ((1, 4), (1, 16), (2, 4), (2, 16), (2, 1), (4, 2), (4, 1)):
            with self.subTest(devices=devices, parts=parts):
                machine = f"sim*{devices}:mem=8MiB"
                job, out = self.job(f"parts-{devices}-{parts}", mode="harmony-dp", **changes)
                plan = self.plan(job, machine)["plan"]
                for group in plan["backward_groups"]:
                    group.update(gradient_parts=parts, keep_weights=False, keep_stash=False, keep_activations=False)
                (self.dir / "plan.json").write_text(json.dumps(plan))
                self.run_standing(job, machine, "--plan", self.dir / "plan.json")
                self.assertEqual(harness.losses(out), harness.losses(plain))
                self.assertEqual(harness.weights_digest(out / "final"), harness.weights_digest(plain / "final"))
                self.check_swap_is_minimal(out, ["weights", "gradients", "stash"])

    def test_with_clipping(self):
        self.check_against_plain("clip", self.FEW_DEVICES, ["auto"], max_grad_norm=0.5)

    def test_with_deferred_updates_and_a_schedule(self):
        self.check_against_plain("deferred", [2], [[3, 3]], update="deferred", lr_scheduler_type="cosine",
                                 warmup_steps=2)

    @harness.whatever_the_devices
    def test_sgd(self):
        self.check_against_plain("sgd", [2], ["auto"], optim="sgd", learning_rate=0.1)

    @harness.whatever_the_devices
    def test_with_rules_for_parameters(self):
        rules = [{"names": ["*.bias", "*.ln_2.*", "*.post_attention_layernorm.*"], "learning_rate_factor": 0.5},
                 {"dimensions": 1, "weight_decay": 0.3},
                 {"names": "*.[01].*", "weight_decay": 0, "learning_rate_factor": 3}]
        self.check_against_plain("rules", [2], ["auto"], parameter_rules=rules)
        self.check_against_plain("no-rules", [2], ["auto"])
        with_rules, without = (harness.weights_digest(self.dir / f"{name}-plain-out" / "final")
                               for name in ("rules", "no-rules"))
        self.assertNotEqual(with_rules, without)
        job, _ = self.job("rules-2-auto", parameter_rules=rules[:2])
        refused = self.harmony("run", job, "--devices", "sim*2:mem=8MiB", check=2)
        self.assertIn("parameter_rules", refused.stdout + refused.stderr)

    def check_swap_is_minimal(self, out, classes):
        summary = json.loads((out / "summary.json").read_text())
        for name in classes:
            self.assertEqual(summary["swap_bytes"][name], 6 * summary["swap_minimum_per_step"].get(name, 0), name)

    def test_with_weights_kept_from_forward_to_backward(self):
        job, out = self.job("kept-2-2-2-2", layer_groups=[2, 2, 2])
        kept = [g["keep_weights"] for g in self.plan(job, "sim*2:mem=8MiB")["groups"] if g["kind"] == "backward"]
        self.assertEqual(set(kept), {True})
        self.check_against_plain("kept", [2], [[2, 2, 2]])
        self.check_swap_is_minimal(out, ["weights", "gradients", "stash"])

    def test_with_stashes_on_the_devices(self):
        changes = dict(stash="device", layer_groups=[2, 2, 2])
        job, out = self.job("stash-2-2-2-2", **changes)
        self.assertEqual(self.plan(job, "sim*2:mem=8MiB")["stash"], "device")
        self.check_against_plain("stash", [2, *self.FEW_DEVICES], [[2, 2, 2]], stash="device")
        self.check_swap_is_minimal(out, ["weights", "gradients", "stash"])
        self.check_against_plain("stash-deferred", [2], ["auto"], stash="device", max_grad_norm=0.5)

    def test_with_forward_tasks_of_two_microbatches(self):
        job, _ = self.job("span-plain")
        plain = self.plain(job, self.dir / "span-plain-out")
        for devices in self.FEW_DEVICES:
            job, out = self.job(f"span-{devices}", micro_batch_size="auto", layer_groups=[2, 2, 1, 1])
            plan = self.plan(job, f"sim*{devices}:mem=8MiB")["plan"]
            self.assertEqual((plan["micro_batch_size"], plan["num_microbatches"]), (2, 4))
            plan["forward_span"] = 2
            for group in plan["backward_groups"]:
                group["keep_activations"] = False  # of forward tasks of one microbatch only
            (self.dir / "plan.json").write_text(json.dumps(plan))
            self.harmony("run", job, "--devices", f"sim*{devices}:mem=8MiB", "--plan", self.dir / "plan.json",
                         "--trace", self.dir / "trace.json")
            self.assertIn("microbatches 3-4 of 4", (self.dir / "trace.json").read_text())
            self.assertEqual(harness.losses(out), harness.losses(plain))
            self.assertEqual(harness.weights_digest(out / "final"), harness.weights_digest(plain / "final"))

    def test_with_activations_kept_from_forward_to_backward(self):
        changes = dict(layer_groups=[2, 2, 2])
        job, _ = self.job("activations-plain", **changes)
        plain = self.plain(job, self.dir / "activations-plain-out")
        for devices in self.FEW_DEVICES:
            with self.subTest(devices=devices):
                machine = f"sim*{devices}:mem=8MiB"
                job, out = self.job(f"activations-{devices}", **changes)
                plan = self.kept_plan(job, machine)
                said = json.loads(self.harmony("plan", job, "--devices", machine, "--no-calibrate", "--plan", plan,
                                               "--json").stdout)
                kept = [g["keep_activations"] for g in said["groups"] if g["kind"] == "backward"]
                self.assertEqual(set(kept), {True})
                self.run_standing(job, machine, "--plan", plan)
                self.assertEqual(harness.losses(out), harness.losses(plain))
                self.assertEqual(harness.weights_digest(out / "final"), harness.weights_digest(plain / "final"))
                self.check_swap_is_minimal(out, ["weights", "gradients", "stash"])

    def test_in_mixed_precision(self):
        self.check_against_plain("bf16", self.FEW_DEVICES, ["auto", [2, 2, 2]], bf16=True)
        self.check_against_plain("bf16-clip", [2], ["auto"], bf16=True, max_grad_norm=0.5)
        job, wide = self.job("wide", layer_groups=[2, 2, 2])
        self.run_standing(job, "sim*3:mem=8MiB")
        narrow = self.dir / "out-bf16-3-2-2-2"
        moved, before = (json.loads((out / "summary.json").read_text())["swap_bytes"] for out in (narrow, wide))
        for name in ("weights", "stash", "boundary_commit"):
            # But for the gaps between tensors, which are as large.
            self.assertTrue(0.5 * before[name] <= moved[name] <= 0.53 * before[name], (name, moved, before))
        self.check_swap_is_minimal(narrow, ["weights", "gradients", "stash"])
        job, kept = self.job("bf16-kept", bf16=True, layer_groups=[2, 2, 2])
        self.run_standing(job, "sim*2:mem=8MiB", "--plan", self.kept_plan(job, "sim*2:mem=8MiB"))
        self.assertEqual(harness.weights_digest(kept / "final"), harness.weights_digest(narrow / "final"))

    def test_with_gradients_of_bf16(self):
        changes = dict(bf16=True, gradient_dtype="bf16")
        self.check_against_plain("narrow", self.FEW_DEVICES, ["auto", [2, 2, 2]], **changes)
        self.check_against_plain("narrow-clip", [2], ["auto"], max_grad_norm=0.5, **changes)
        self.check_against_plain("narrow-replicas", [3], ["auto"], virtual_replicas=2, mode="harmony-dp", **changes)
        self.check_swap_is_minimal(self.dir / "out-narrow-3-2-2-2", ["weights", "gradients", "stash"])
        pipeline = dict(layer_groups=[2, 2, 2], mode="harmony-pp")  # gradients leave once whatever is faster
        job, narrow = self.job("narrow-gradients", **pipeline, **changes)
        self.run_standing(job, "sim*3:mem=8MiB")
        job, wide = self.job("wide-gradients", **pipeline, bf16=True)
        self.run_standing(job, "sim*3:mem=8MiB")
        moved, before = (json.loads((out / "summary.json").read_text())["swap_bytes"] for out in (narrow, wide))
        self.assertEqual(2 * moved["gradients"], before["gradients"])
        self.assertNotEqual(harness.weights_digest(narrow / "final"), harness.weights_digest(wide / "final"))
        for out, name in ((narrow, "bf16"), (wide, "fp32")):
            self.assertEqual(json.loads((out / "run.json").read_text())["gradient_dtype"], name)

    # Where there is no room for those of fp32, gradients are bf16, and stay so for the life of the run.
    @harness.whatever_the_devices
    def test_gradients_are_of_the_type_that_there_is_room_for(self):
        changes = dict(bf16=True, max_grad_norm=0.5)
        machine = ["--devices", "sim:mem=8MiB", "--no-calibrate", "--host-memory"]
        need = {}
        for name in ("fp32", "bf16"):
            job, _ = self.job(f"need-{name}", gradient_dtype=name, **changes)
            refused = self.harmony("plan", job, *machine, "1MiB", check=2)
            need[name] = int(re.search(r"--host-memory (\d+)", refused.stdout + refused.stderr)[1])
        little = str((need["fp32"] + need["bf16"]) // 2)
        job, _ = self.job("need-fp32", gradient_dtype="fp32", **changes)
        refused = self.harmony("plan", job, *machine, little, check=2)
        self.assertIn("gradient_dtype: bf16", refused.stdout + refused.stderr)
        job, out = self.job("auto", save_steps=3, **changes)
        self.harmony("run", job, *machine, little)
        job, rest = self.job("rest", resume_from_checkpoint=str(out / "checkpoint-3"), **changes)
        self.harmony("run", job, *machine, "256MiB")
        job, named = self.job("named", gradient_dtype="bf16", **changes)
        self.harmony("run", job, *machine, "256MiB")
        for folder in (out, rest, named):
            self.assertEqual(json.loads((folder / "run.json").read_text())["gradient_dtype"], "bf16")
            self.assertEqual(harness.weights_digest(folder / "final"), harness.weights_digest(named / "final"))
        job, _ = self.job("another", resume_from_checkpoint=str(out / "checkpoint-3"), gradient_dtype="fp32", **changes)
        refused = self.harmony("run", job, *machine, "256MiB", check=2)
        self.assertIn("made with gradient_dtype bf16", refused.stdout + refused.stderr)

    @harness.whatever_the_devices
    def test_mixed_precision_goes_on_from_its_checkpoint_and_is_no_other_run(self):
        job, out = self.job("whole", bf16=True)
        self.run_standing(job, "sim:mem=64MiB")
        job, part = self.job("part", bf16=True, max_steps=3, save_steps=3)
        self.run_standing(job, "sim*2:mem=8MiB")
        job, rest = self.job("rest", bf16=True, resume_from_checkpoint=str(part / "checkpoint-3"),
                             export_dtype="bf16")
        self.run_standing(job, "sim*3:mem=8MiB")
        # What was trained is the same; what is written of it is rounded, as `harmony export` rounds it.
        for folder, more in ((out, ["--dtype", "bf16"]), (rest, [])):
            self.harmony("export", folder, "-o", self.dir / f"exported-{folder.name}", *more)
            self.assertEqual(harness.weights_digest(self.dir / f"exported-{folder.name}"),
                             harness.weights_digest(rest / "final"))
        self.harmony("export", rest, "-o", self.dir / "wide", "--dtype", "fp32")
        self.assertEqual(harness.weights_digest(self.dir / "wide"), harness.weights_digest(out / "final"))
        job, _ = self.job("part", max_steps=3, save_steps=3)
        self.assertIn("bf16 (true -> false)", self.harmony("run", job, "--devices", "sim:mem=64MiB", check=None).stderr)

    @harness.whatever_the_devices
    def test_losses_fall(self):
        job, out = self.job("fall", max_steps=30, learning_rate=3e-3)
        self.run_standing(job, "sim*2:mem=8MiB")
        values = harness.losses(out)
        self.assertEqual(len(values), 30)
        self.assertLess(values[-1], values[0] - 1.0)


# Devices do not see of which family their layers are.
@harness.whatever_the_devices
class UntiedTest(ExactnessTest):
    """For a llama with grouped-query attention and an untied head: what depends on the model."""
    DEVICES = FEW_DEVICES = [3]
    GROUPINGS = ["auto", [2, 3, 1]]
    test_sgd = test_with_deferred_updates_and_a_schedule = test_losses_fall = None
    test_with_rules_for_parameters = test_gradients_are_of_the_type_that_there_is_room_for = None
    test_mixed_precision_goes_on_from_its_checkpoint_and_is_no_other_run = None

    def setUp(self):
        super().setUp()
        self.model = self.make_model("llama", {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "max_position_embeddings": 64, "hidden_act": "silu", "tie_word_embeddings": False,
            "initializer_range": 0.02, "attention_bias": False, "mlp_bias": False})


if __name__ == "__main__":
    unittest.main(verbosity=2)
