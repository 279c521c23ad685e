"""bench/gpu/measure.py, so that the command is whole on the day that there is a GPU: on the driver made for tests, and its
parts by themselves. Runs in the environment of deploy/setup.sh --with-tests."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = ROOT / "bench" / "gpu"
sys.path.insert(0, str(GPU))
import fast  # noqa: E402
import machine  # noqa: E402
import report  # noqa: E402
import steps  # noqa: E402


class Folder(unittest.TestCase):

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="hm-")
        self.addCleanup(holder.cleanup)
        self.dir = pathlib.Path(holder.name)


class StepsTest(Folder):
    """What becomes of steps, with Python programs of a line in their place."""

    def setUp(self):
        super().setUp()
        self.saved = []
        self.measurement = steps.Measurement(self.dir, self.dir / "logs", 60, lambda records: self.saved.append(list(records)))

    def run_step(self, name, program, limit=20, **keys):
        code = f"import sys; sys.path.insert(0, {str(GPU)!r}); import figures, subprocess, time\n{program}"
        self.measurement.run(steps.Step(name, [sys.executable, "-c", code], limit, **keys))
        return self.measurement.records[-1] if self.measurement.records else None

    def test_one_that_hangs_has_reported_and_leaves_nothing_behind(self):
        record = self.run_step("hangs", "figures.note('a', 1)\nprint('last words')\n"
                               "subprocess.Popen(['sleep', '300'], start_new_session=True)\ntime.sleep(300)", limit=3)
        self.assertEqual((record["status"], record["figures"][0]["value"]), ("hung", 1))
        self.assertIn("last words", record["last_lines"])
        self.assertEqual(steps.marked(self.measurement.mark, prefix=True), [])
        self.assertEqual(self.run_step("next", "pass")["status"], "ok")

    def test_one_that_fails_is_told_by_its_last_lines(self):
        record = self.run_step("fails", "with figures.attempt('a', []): raise ValueError('why')\nsys.exit(1)")
        self.assertEqual((record["status"], record["exit"]), ("failed", 1))
        self.assertEqual(record["figures"], [{"name": "a", "failed": "ValueError: why"}])
        self.assertIn("ValueError: why", record["last_lines"])

    def test_what_does_not_fit_the_budget_is_left_out(self):
        self.assertEqual(self.run_step("long", "pass", least=1000)["status"], "skipped")

    def test_what_another_step_did_not_make_is_left_out(self):
        self.run_step("beside", "time.sleep(0.5); sys.exit(1)", background=True)
        began = time.monotonic()
        self.assertEqual(self.run_step("after", "pass", after="beside")["status"], "skipped")
        self.assertGreater(time.monotonic() - began, 0.3)
        self.assertEqual([record["name"] for record in self.saved[-1]], ["beside", "after"])


def records(**figures):
    """Those of one step; dots of names are written as two underscores."""
    return [{"name": "step", "status": "ok", "seconds": 1, "figures": [
        {"name": name.replace("__", "."), **({"value": value} if not isinstance(value, dict) else value)}
        for name, value in figures.items()]}]


class ReportTest(unittest.TestCase):

    def bar(self, words, found):
        return next((text, met) for bar, text, met in report.bars(found) if words in bar)

    def test_without_figures_no_bar_is_met_or_missed(self):
        self.assertEqual({(text, met) for _, text, met in report.bars([])}, {("", None)})

    def test_a_group_is_met_only_where_all_of_it_was_measured(self):
        found = {"kills__expected": ["kills.worker.same_bits", "kills.host.same_bits"],
                 "kills__worker__same_bits": {"value": True, "met": True}}
        self.assertIsNone(self.bar("kill", records(**found))[1])
        found["kills__host__same_bits"] = {"value": True, "met": True}
        self.assertIs(self.bar("kill", records(**found))[1], True)
        del found["kills__host__same_bits"]
        text, met = self.bar("kill", records(**found, kills__host={"failed": "why"}))
        self.assertIn("failed: host", text)
        self.assertIs(met, False)

    def test_the_largest_run_decides(self):
        run = {"fast__2__12GiB__step": 1.0, "fast__2__12GiB__resident_share": 0.97, "fast__32__24GiB__step": 5.0,
               "fast__32__24GiB__resident_share": 0.9, "fast__32__24GiB__prediction_off": -0.02,
               "fast__32__24GiB__operations_rate": 300.0}
        text, met = self.bar("of resident", records(**run))
        self.assertEqual((text, met), ("32 layers in 24GiB: 0.9; 2 layers in 12GiB: 0.97", False))
        self.assertEqual(self.bar("predicted", records(**run)), ("32 layers in 24GiB: -2.0%", True))
        self.assertEqual(self.bar("product rate", records(**run)), ("", None))  # no rate to compare with
        text, met = self.bar("product rate", records(**run, plain__product__bfloat16=500.0))
        self.assertEqual((text, met), ("32 layers in 24GiB: 0.6", True))

    def test_an_update_on_the_gpu_counts_beside_what_is_resident(self):
        run = {"fast__32__24GiB__step": 5.0, "fast__32__24GiB__resident_step": 4.5, "fast__32__24GiB__parameters": 1000,
               "plain__update__seconds_of_a_parameter": 0.25e-3}
        share = report.derived(report.flat(records(**run)))["fast.32.24GiB.resident_share_with_update"]["value"]
        self.assertAlmostEqual(share, (4.5 + 0.25) / 5)


class ResidentTest(unittest.TestCase):
    """What a group's task takes where nothing is moved, by a profile's times: powers of two, which tell what was added."""

    TIMES = {0: {"forward": 1, "backward": 2},
             1: {"forward": 4, "backward": 8, "backward_inner": 16, "keeping_forward": 32, "kept_backward": 64},
             2: {"forward": 128, "backward": 256, "backward_inner": 512},
             3: {"backward": 1024}}

    def seconds(self, kind, first, last, kept=False):
        return fast.seconds_of({"kind": kind, "first_layer": first, "last_layer": last, "keep_activations": kept}, self.TIMES)

    def test_a_backward_computes_forwards_but_not_what_its_last_layer_hands_on(self):
        self.assertEqual(self.seconds("forward", 0, 2), 1 + 4 + 128)
        self.assertEqual(self.seconds("backward", 1, 2), 16 + 256)
        self.assertEqual(self.seconds("backward", 0, 0), 2)

    def test_what_was_kept_is_not_computed_again(self):
        self.assertEqual(self.seconds("forward", 0, 1, kept=True), 1 + 32)
        self.assertEqual(self.seconds("backward", 1, 1, kept=True), 64)

    def test_the_group_with_the_head_has_its_forward_within(self):
        self.assertEqual(self.seconds("forward+backward", 2, 3), 512 + 1024)
        self.assertEqual(self.seconds("forward+backward", 0, 3), 1 + 2 + 16 + 512 + 1024)


class CommandTest(Folder):

    def test_the_part_right_runs_on_the_driver_made_for_tests(self):
        done = subprocess.run([sys.executable, "-B", GPU / "measure.py", "--fake", "--parts", "right", "--quick", "--out",
                               self.dir / "out", "--scratch", self.dir], text=True, capture_output=True, timeout=900)
        document = json.loads((self.dir / "out" / "report.json").read_text())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr + json.dumps(document["steps"], indent=1))
        met = {bar["bar"]: bar["met"] for bar in document["bars"]}
        self.assertEqual(sum(value is True for value in met.values()), 6, met)
        self.assertEqual(sum(value is None for value in met.values()), 7, met)
        self.assertEqual(sorted(os.listdir(self.dir / "out")), ["logs.tar.gz", "report.json", "report.md"])
        self.assertEqual(os.listdir(self.dir), ["out"])

    def test_programs_have_what_the_library_for_gpus_shares_with_them(self):
        library = machine.programs() / "lib" / "harmony" / "libharmony_cuda.so"
        if not library.exists():
            self.skipTest("libharmony_cuda.so is built where nvcc is, which this machine lacks")

        def symbols(file, which):
            said = subprocess.run(["nm", "-D", which, file], text=True, capture_output=True, check=True).stdout
            return {line.split()[-1] for line in said.splitlines()}

        shared = {name for name in symbols(library, "--undefined-only") if name.startswith("_ZN7harmony")}
        self.assertTrue(shared)
        for program in ("harmony-worker", "kernels_check"):
            self.assertLessEqual(shared, symbols(machine.programs() / "bin" / program, "--defined-only"), program)

    def test_a_pack_has_what_the_programs_need_and_nothing_of_pytorch(self):
        if not (machine.programs() / "lib" / "harmony" / "libharmony_cuda.so").exists():
            self.skipTest("libharmony_cuda.so is built where nvcc is, which this machine lacks")
        pack = self.dir / "pack"
        subprocess.run([sys.executable, "-B", GPU / "pack.py", pack], check=True, capture_output=True)
        self.assertEqual(json.loads((pack / machine.MANIFEST).read_text())["torch"], machine.torch_version())
        brought = {path.name for path in (pack / "libs").iterdir()}
        self.assertTrue(any(name.startswith("libprotobuf") for name in brought), brought)
        self.assertFalse([name for name in brought if name.startswith(("libtorch", "libc10", "libcu", "libc.", "libstdc"))])
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": f"{pack / 'libs'}"}
        said = subprocess.run([pack / "bin" / "harmony", "--version"], text=True, capture_output=True, env=environment)
        self.assertIn("harmony ", said.stdout, said.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
