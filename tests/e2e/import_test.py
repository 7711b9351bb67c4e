"""Runs moved out to DeepSpeed's universal format and back in, and in from Hugging Face folders."""

import json
import os
import pathlib
import shutil
import subprocess
import unittest

from command import BAD_INPUT, REPOSITORY, read_safetensors
from checkpoint_test import RunSetup

CHECK_WITH_TORCH = """
import sys, torch, safetensors.torch
universal, masters, step = sys.argv[1], safetensors.torch.load_file(sys.argv[2]), int(sys.argv[3])
for name, master in masters.items():
    load = lambda key: torch.load(f"{universal}/zero/{name}/{key}.pt", weights_only=True)
    assert torch.equal(load("fp32")["param"], master), name
    assert load("exp_avg")["param"].shape == master.shape
    assert bool((load("exp_avg_sq")["param"] >= 0).all())
    assert load("step") == step
print(len(masters))
"""


class ImportTest(RunSetup):
    SAVE_INTERVAL = 0

    def export(self, *flags):
        folder = self.folder / "export"
        self.check_ok("export", "--run", self.output, "--output", folder, *flags)
        return folder

    def curve(self, output, first):
        kept = ("step", "loss", "gradient_norm", "learning_rate")
        return [[m[k] for k in kept] for m in self.metrics(output) if m["step"] >= first]

    def test_a_universal_checkpoint_goes_on_bit_for_bit(self):
        universal = self.export("--format", "deepspeed-universal")
        self.assertEqual((universal / "latest_universal").read_text(), "global_step6")
        moved = self.folder / "moved"
        # 6 steps of 2 sequences.
        self.check_ok("import", "--input", universal, "--model", self.model, "--output", moved,
                      "--nvme-path", self.nvme, "--next-sequence", 12)  # fmt: skip
        self.train(9, output=moved)
        self.train(9)
        self.assertEqual(self.curve(moved, 7), self.curve(self.output, 7))
        self.assertEqual(len(self.curve(moved, 7)), 3)
        self.assertEqual(
            (moved / "model.safetensors").read_bytes(),
            (self.output / "model.safetensors").read_bytes(),
        )

    def test_torch_reads_the_universal_checkpoint(self):
        python = pathlib.Path(os.environ.get("HEADRACE_TORCH_PYTHON", REPOSITORY / ".venv/bin/python"))
        probe = subprocess.run([python, "-c", "import torch, safetensors"], capture_output=True, check=False) \
            if python.exists() else None  # fmt: skip
        if probe is None or probe.returncode != 0:
            self.skipTest(f"{python} has no torch")
        universal = self.export("--format", "deepspeed-universal") / "global_step6"
        self.check_ok("export", "--run", self.output, "--output", self.folder / "m", "--dtype", "fp32")
        done = subprocess.run(
            [python, "-c", CHECK_WITH_TORCH, universal, self.folder / "m" / "model.safetensors", "6"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(int(done.stdout), len(read_safetensors(self.model / "model.safetensors")))

    def test_a_hugging_face_folder_trains_like_the_model(self):
        moved = self.folder / "moved"
        self.check_ok("import", "--input", self.model, "--output", moved, "--nvme-path", self.nvme)
        self.check_ok("verify", "--run", moved)
        self.train(6, output=moved)
        self.assertEqual(self.curve(moved, 1), self.curve(self.output, 1))
        self.assertEqual(
            (moved / "model.safetensors").read_bytes(),
            (self.output / "model.safetensors").read_bytes(),
        )

    def test_an_import_is_exported_again(self):
        moved = self.folder / "moved"
        self.check_ok("import", "--input", self.model, "--output", moved)
        self.check_ok("export", "--run", moved, "--output", self.folder / "again", "--dtype", "fp32")
        again = read_safetensors(self.folder / "again" / "model.safetensors")
        self.assertEqual(again, read_safetensors(self.model / "model.safetensors"))
        universal = self.folder / "universal"
        self.check_fails(BAD_INPUT, ["no moments", "train a step"], "export", "--run", moved, "--output", universal,
                         "--format", "deepspeed-universal")  # fmt: skip
        self.assertFalse(universal.exists())

    def test_what_cannot_be_imported(self):
        universal = self.export("--format", "deepspeed-universal")
        zero = universal / "global_step6" / "zero"
        arguments = ["import", "--input", universal, "--model", self.model, "--output"]
        shutil.copy(zero / "model.norm.weight" / "fp32.pt", zero / "lm_head.weight" / "fp32.pt")
        self.check_fails(BAD_INPUT, ["lm_head.weight", "shape"], *arguments, self.folder / "x")
        (zero / "model.norm.weight" / "exp_avg.pt").unlink()
        self.check_fails(BAD_INPUT, ["model.norm.weight"], *arguments, self.folder / "x")
        self.check_fails(BAD_INPUT, [], "import", "--input", self.nvme, "--output", self.folder / "x")
        self.assertFalse((self.folder / "x").exists())
        self.check_fails(BAD_INPUT, ["cannot be used as a folder"], "import", "--input", self.model, "--output",
                         self.folder / "x", "--nvme-path", self.model / "config.json")  # fmt: skip
        self.assertFalse((self.folder / "x").exists())
        config = json.loads((self.model / "config.json").read_text())
        (self.model / "config.json").write_text(json.dumps({**config, "hidden_size": 12}))
        self.check_fails(BAD_INPUT, [], "import", "--input", self.model, "--output", self.folder / "x")


del RunSetup  # not to be run by itself here

if __name__ == "__main__":
    unittest.main()
