"""Fine-tunes a real pretrained model, SmolLM2-135M-Instruct, with its state on NVMe."""

import json
import os
import pathlib
import subprocess
import unittest

from command import REPOSITORY, CommandTest, python_with


class PretrainedTest(CommandTest):
    def test_smollm2_starts_low_and_improves(self):
        python = python_with(["numpy", "tokenizers", "safetensors"], self.folder / "venv")
        if python is None:
            print("SKIPPED: PyPI is out of reach: numpy, tokenizers, safetensors cannot be had")
            self.skipTest("PyPI is out of reach")
        cache = REPOSITORY / "build" / "smollm2"
        if not (cache / "model.safetensors").exists():
            script = REPOSITORY / "scripts" / "get_smollm2.py"
            done = subprocess.run(
                [python, script, "--output", cache], capture_output=True, text=True, check=False
            )
            if done.returncode == 69:
                print("SKIPPED: PyPI is out of reach: " + done.stderr.strip())
                self.skipTest("PyPI is out of reach")
            self.assertEqual(done.returncode, 0, done.stderr)

        # Few sequences, seen several times: the fall is far larger than the spread between them.
        text = self.write_text(size=3_000)
        tokens = self.folder / "tokens.safetensors"
        done = subprocess.run(
            [python, REPOSITORY / "scripts" / "prepare_data.py", "--tokenizer", cache,
             "--output", tokens, "--seq-len", "128", text],
            capture_output=True, text=True, check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)

        nvme = self.folder / "nvme"
        nvme.mkdir()
        config = self.write_config(
            bf16={"enabled": True},
            train_micro_batch_size_per_gpu=2,
            optimizer={"type": "AdamW", "params": {"lr": 3e-5}},
        )
        output = self.folder / "output"
        self.check_ok(
            "train", "--model", cache, "--data", tokens, "--config", config, "--output", output,
            "--nvme-path", nvme, "--device-memory", "384MiB", "--host-memory", "384MiB",
            "--steps", os.environ.get("HEADRACE_PRETRAINED_STEPS", "10"), "--seq-len", "128",
            timeout=800,
        )
        losses = [m["loss"] for m in self.metrics(output)]
        print("losses:", json.dumps([round(loss, 3) for loss in losses]))
        self.assertLess(losses[0], 4.5, "a pretrained model, not ln(49152) = 10.8")
        self.assertGreater(losses[0], 1.0)
        self.assertLess(sum(losses[-4:]), sum(losses[:4]) - 1.0)


if __name__ == "__main__":
    unittest.main()
