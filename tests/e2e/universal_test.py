"""DeepSpeed's own loader reads what `headrace export --format deepspeed-universal` writes."""

import json
import os
import pathlib
import subprocess
import unittest

from command import REPOSITORY, CommandTest

PYTHON = pathlib.Path(os.environ.get("HEADRACE_DEEPSPEED_PYTHON", REPOSITORY / "build/deepspeed-venv/bin/python"))
OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.8, 0.97], "eps": 1e-7, "weight_decay": 0.02}}


class UniversalTest(CommandTest):
    def setUp(self):
        super().setUp()
        # Not imported: that takes long.
        find = "import sys, importlib.util as u; sys.exit(not (u.find_spec('deepspeed') and u.find_spec('torch')))"
        if not PYTHON.exists() or subprocess.run([PYTHON, "-c", find], check=False).returncode != 0:
            print("SKIPPED: no DeepSpeed; HEADRACE_DEEPSPEED_PYTHON may name a Python that has it", flush=True)
            self.skipTest("no DeepSpeed")

    def export(self, **changes):
        """A run of 5 steps, as a universal checkpoint and as fp32 masters."""
        nvme, output = self.folder / "nvme", self.folder / "output"
        nvme.mkdir()
        self.check_ok("train", "--model", self.init_model(), "--data", self.write_text(), "--config",
                      self.write_config(optimizer=OPTIMIZER, **changes), "--output", output,
                      "--nvme-path", nvme, "--host-memory", "32MiB", "--steps", 5, "--seq-len", 64)  # fmt: skip
        universal = self.folder / "universal"
        self.check_ok("export", "--run", output, "--output", universal, "--format", "deepspeed-universal")
        self.check_ok("export", "--run", output, "--output", self.folder / "fp32", "--dtype", "fp32")
        return universal

    def load(self, universal, dtype, *stages):
        done = subprocess.run(
            [PYTHON, REPOSITORY / "tests/e2e/load_universal.py", universal, self.folder / "fp32/model.safetensors",
             dtype, *map(str, stages)],
            capture_output=True, text=True, check=False, cwd=self.folder, timeout=1500,
        )  # fmt: skip
        if f"Type {dtype} is not supported on your device" in done.stderr:
            self.skipTest(f"this processor has no {dtype} for DeepSpeed")
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        self.assertEqual(len(lines), len(stages))
        return [json.loads(line.removeprefix("RESULT ")) for line in lines]

    def check_loaded(self, loaded, updates):
        self.assertIn("global_step5", loaded["path"])
        self.assertEqual(loaded["equal"], 3 * loaded["parameters"], "masters and both moments, bit for bit")
        self.assertTrue(loaded["steps"])
        self.assertEqual(set(loaded["steps"]), {updates})
        self.assertEqual(loaded["global_steps"], 5)
        self.assertEqual(loaded["global_samples"], 10)
        self.assertEqual(loaded["skipped_steps"], 5 - updates)
        self.assertEqual(loaded["last_batch_iteration"], updates - 1)
        self.assertEqual(loaded["betas"], [0.8, 0.97])
        self.assertEqual(loaded["eps"], 1e-7)
        self.assertEqual(loaded["weight_decay"], 0.02)

    def test_bf16_with_stages_1_and_3(self):
        universal = self.export(bf16={"enabled": True})
        for loaded in self.load(universal, "bf16", 1, 3):
            with self.subTest(stage=loaded["stage"]):
                self.check_loaded(loaded, 5)

    def test_fp16_goes_on_with_the_loss_scale(self):
        # The first scales overflow; hysteresis 1 halves the scale each time.
        universal = self.export(fp16={"enabled": True, "initial_scale_power": 26, "hysteresis": 1})
        metrics = self.metrics(self.folder / "output")
        updates = sum(not step["skipped"] for step in metrics)
        self.assertLess(updates, 5)
        for loaded in self.load(universal, "fp16", 2):
            self.check_loaded(loaded, updates)
            self.assertEqual(loaded["loss_scale"], 2.0 ** (26 - (5 - updates)))
            self.assertEqual(loaded["cur_iter"], 5)


if __name__ == "__main__":
    unittest.main()
