"""A training process is killed with SIGKILL, at named places and at random moments, and started
again: its losses and its final weights are those of a run that was never killed, bit for bit.

HEADRACE_CRASH_ROUNDS: kills at random moments per configuration (default 4; hundreds with the ctest
label fault).
"""

import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from command import COMMAND, CommandTest  # noqa: E402  (the path is set above)

ROUNDS = int(os.environ.get("HEADRACE_CRASH_ROUNDS", "4"))
STEPS = 12
SAVE_INTERVAL = 3
HIDDEN, LAYERS, HEADS, INNER, VOCABULARY = 64, 3, 2, 160, 301


def write_model(folder, seed=1):
    """A small llama with random weights."""
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_act": "silu",
                "vocab_size": VOCABULARY,
                "hidden_size": HIDDEN,
                "intermediate_size": INNER,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "num_key_value_heads": HEADS,
                "max_position_embeddings": 128,
                "rms_norm_eps": 1e-5,
                "rope_theta": 10000.0,
                "tie_word_embeddings": False,
                "torch_dtype": "float32",
            }
        )
    )
    shapes = {"model.embed_tokens.weight": [VOCABULARY, HIDDEN], "lm_head.weight": [VOCABULARY, HIDDEN]}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name in ("q", "k", "v", "o"):
            shapes[f"{layer}self_attn.{name}_proj.weight"] = [HIDDEN, HIDDEN]
        shapes[f"{layer}mlp.gate_proj.weight"] = [INNER, HIDDEN]
        shapes[f"{layer}mlp.up_proj.weight"] = [INNER, HIDDEN]
        shapes[f"{layer}mlp.down_proj.weight"] = [HIDDEN, INNER]
        shapes[f"{layer}input_layernorm.weight"] = [HIDDEN]
        shapes[f"{layer}post_attention_layernorm.weight"] = [HIDDEN]
    shapes["model.norm.weight"] = [HIDDEN]
    numbers = random.Random(seed)
    header, body = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if len(shape) == 1 else [numbers.gauss(0, 0.05) for _ in range(count)]
        begin = len(body)
        body += struct.pack(f"<{count}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(body)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(body))


class CrashTest(CommandTest):
    """One configuration per subclass."""

    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        write_model(self.model)
        tokens = random.Random(2)
        self.data = self.folder / "tokens.bin"
        self.data.write_bytes(
            struct.pack("<6000H", *(tokens.randrange(VOCABULARY) for _ in range(6000)))
        )
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()

    def config(self, offload, durability, name="config.json"):
        return self.write_config(
            name,
            bf16={"enabled": True},
            zero_optimization={
                "stage": 3,
                "offload_param": {"device": offload},
                "offload_optimizer": {"device": offload},
            },
            headrace={
                "durability": durability,
                "save_interval": SAVE_INTERVAL,
                "keep_last": 1,
                "nvme_budget": "1GiB",
            },
        )

    def arguments(self, config, output):
        return [
            "train", "--model", self.model, "--data", self.data, "--config", config, "--output",
            output, "--nvme-path", self.nvme, "--host-memory", "8MiB", "--steps", STEPS, "--seq-len",
            32, "--eval-steps", 4, "--validation-fraction", 0.2,
        ]  # fmt: skip

    def start(self, arguments, kill_at=None):
        environment = dict(os.environ)
        if kill_at:
            environment["HEADRACE_KILL_AT"] = kill_at
        return subprocess.Popen(
            [COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def outcome(self, output):
        """Everything of the metrics that does not depend on time, and the final weights."""
        kept = ("step", "loss", "gradient_norm", "learning_rate", "loss_scale", "skipped",
                "validation_loss")  # fmt: skip
        lines = [tuple((k, m.get(k)) for k in kept) for m in self.metrics(output)]
        return sorted(lines, key=str), (output / "model.safetensors").read_bytes()

    def run_on(self, arguments, output):
        """To the end, over a torn generation by its last snapshot."""
        result = self.run_command(*arguments)
        if result.returncode == 3 and "is not whole" in result.stderr:
            if "there is no snapshot" in result.stderr:
                return self.check_ok(*arguments, "--resume", "never")
            snapshot = result.stderr.split("there are ")[1].split()[-1]
            self.check_ok("checkpoint", "restore", "--run", output, "--generation", snapshot)
            result = self.run_command(*arguments)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def check_same(self, output, reference, what):
        self.assertEqual(self.outcome(output), reference, what)
        self.check_ok("verify", "--run", output)

    def reference(self, offload, durability):
        config = self.config(offload, durability)
        output = self.folder / "reference"
        self.check_ok(*self.arguments(config, output))
        return config, self.outcome(output)

    def kill_at_named_places(self, offload, durability, places):
        config, reference = self.reference(offload, durability)
        for index, place in enumerate(places):
            with self.subTest(place):
                output = self.folder / f"named-{index}"
                arguments = self.arguments(config, output)
                process = self.start(arguments, place)
                out, error = process.communicate(timeout=120)
                self.assertEqual(process.returncode, -signal.SIGKILL, out + error)
                self.run_on(arguments, output)
                self.check_same(output, reference, place)

    def kill_at_random_moments(self, offload, durability, seed):
        config, reference = self.reference(offload, durability)
        numbers = random.Random(seed)
        kills, run = 0, 0
        while kills < ROUNDS:
            run += 1
            output = self.folder / f"random-{run}"
            arguments = self.arguments(config, output)
            for _ in range(numbers.randrange(1, 6)):
                process = self.start(arguments)
                time.sleep(numbers.uniform(0.0, 0.5))
                process.kill()
                _, error = process.communicate(timeout=120)
                self.assertIn(process.returncode, (0, 3, -signal.SIGKILL), error)
                if process.returncode == 3:
                    self.assertIn("is not whole", error)
                    break
                kills += process.returncode == -signal.SIGKILL
            self.run_on(arguments, output)
            self.check_same(output, reference, f"run {run} of seed {seed}")

    def test_named_places_on_nvme(self):
        self.kill_at_named_places(
            "nvme",
            "step",
            [
                "before data write:1", "before data write:3", "after data write:40", "before sync:1",
                "before sync:3", "after sync:1", "after sync:4", "before batch:1", "before batch:5",
                "after batch:1", "after batch:4", "before snapshot:1", "before snapshot:2",
                "after snapshot:1", "after snapshot:3",
            ],
        )  # fmt: skip

    def test_named_places_in_place(self):
        self.kill_at_named_places(
            "nvme",
            "in_place",
            ["before data write:30", "after data write:50", "before sync:2", "after sync:5",
             "before batch:3", "before batch:8", "after batch:7", "after batch:12",
             "after snapshot:2"],
        )  # fmt: skip

    def test_named_places_with_state_in_memory(self):
        self.kill_at_named_places(
            "cpu",
            "step",
            ["before data write:2", "after data write:12", "before sync:1", "after sync:2",
             "before batch:2", "after batch:1", "after batch:3", "before snapshot:1",
             "after snapshot:2"],
        )  # fmt: skip

    def test_random_moments_on_nvme(self):
        self.kill_at_random_moments("nvme", "step", 11)

    def test_random_moments_in_place(self):
        self.kill_at_random_moments("nvme", "in_place", 12)

    def test_random_moments_with_state_in_memory(self):
        self.kill_at_random_moments("cpu", "step", 13)

    def test_deleting_a_snapshot(self):
        config, reference = self.reference("nvme", "step")
        for place in ("before delete:1", "before batch:1", "after batch:1", "after delete:1"):
            with self.subTest(place):
                output = self.folder / place.replace(" ", "-")
                arguments = self.arguments(config, output)
                process = self.start(arguments, "after snapshot:2")
                process.communicate(timeout=120)
                process = self.start(["checkpoint", "delete", "--run", output, "--generation", "6"], place)
                out, error = process.communicate(timeout=120)
                self.assertEqual(process.returncode, -signal.SIGKILL, out + error)
                self.check_ok("verify", "--run", output)
                self.run_on(arguments, output)
                self.check_same(output, reference, place)


if __name__ == "__main__":
    unittest.main()
