#!/usr/bin/env python3
"""Writes tests/golden/data/fp8/: PyTorch's e4m3 conversions, and a small model whose decoder layers
compute their linear layers' outputs from operands rounded to e4m3 with a scale for each tensor, and their
gradients from the operands as they are. See README.md beside this file."""

import json
import math
import pathlib
import types

import torch
import transformers
from make_parity import BATCH, COMMON, SEED, SEQ, make_model, write_gradients

FOLDER = pathlib.Path(__file__).parent / "data/fp8"
LARGEST = 448.0


def conversions():
    """Codes of all bf16 values, as runs of equal ones, and values of all codes (None for NaN)."""
    bf16 = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    codes = bf16.to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    runs = [[i, code] for i, code in enumerate(codes) if i == 0 or codes[i - 1] != code]
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()
    return dict(runs=runs, values=[None if math.isnan(value) else value for value in values])


def rounded(tensor):
    """What remains of a tensor in e4m3, with the largest power of two as its scale that keeps all in range."""
    largest = float(tensor.abs().max())
    scale = 2.0 ** math.floor(math.log2(LARGEST / largest))
    return (tensor * scale).to(torch.float8_e4m3fn).float() / scale


class RoundedLinear(torch.autograd.Function):
    @staticmethod
    def forward(context, x, weight, bias):
        context.save_for_backward(x, weight)
        out = rounded(x) @ rounded(weight).T
        return out if bias is None else out + bias

    @staticmethod
    def backward(context, gradient):
        x, weight = context.saved_tensors
        flat = gradient.flatten(0, -2)
        dbias = flat.sum(0) if context.needs_input_grad[2] else None
        return gradient @ weight, flat.T @ x.flatten(0, -2), dbias


def round_linear_layers(model):
    for layer in model.model.layers:
        for module in layer.modules():
            if isinstance(module, torch.nn.Linear):
                module.forward = types.MethodType(
                    lambda self, x: RoundedLinear.apply(x, self.weight, self.bias), module)


def main():
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "conversions.json").write_text(json.dumps(conversions()) + "\n")
    config = transformers.Qwen3Config(
        **(COMMON | dict(attention_bias=True, hidden_size=32, num_attention_heads=4)), vocab_size=61,
        intermediate_size=48, head_dim=16, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=10000.0))
    model = make_model(config)
    model.save_pretrained(FOLDER, max_shard_size="10GB")
    (FOLDER / "generation_config.json").unlink(missing_ok=True)
    round_linear_layers(model)
    loss, _ = write_gradients(model, FOLDER, torch.Generator().manual_seed(SEED))
    numbers = dict(loss_sum=loss, batch=BATCH, seq=SEQ)
    (FOLDER / "gradients.json").write_text(json.dumps(numbers) + "\n")


if __name__ == "__main__":
    main()
