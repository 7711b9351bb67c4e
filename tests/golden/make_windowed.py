#!/usr/bin/env python3
"""Writes tests/golden/data/parity/mistral/windowed.safetensors and windowed_packed.safetensors: loss and
gradients by PyTorch and transformers with a sliding window that is shorter than the sequences, and than
the documents that share them. See README.md beside this file for the format and how to run it."""

import argparse
import pathlib

import torch
import transformers

from make_packed import loss_apart, loss_of, make_batch, write_case
from make_parity import SEED

FAMILY = "mistral"
WINDOW = 5


def load(folder, window):
    config = transformers.AutoConfig.from_pretrained(folder)
    config.sliding_window = window
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = pathlib.Path(__file__).parent / "data" / "parity"
    parser.add_argument("--models", type=pathlib.Path, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    folder = arguments.models / FAMILY
    model = load(folder, WINDOW)
    wide = load(folder, 1000)
    tokens, labels = make_batch(model.config.vocab_size, torch.Generator().manual_seed(SEED + 3))
    for name, loss in (("windowed", loss_of), ("windowed_packed", loss_apart)):
        value = loss(model, tokens, labels)
        assert abs(value.item() - loss(wide, tokens, labels).item()) > 1e-3 * value.item()
        write_case(model, value, tokens, labels, folder / f"{name}.safetensors")
        print(f"{name}: loss {value.item():.5f}")


if __name__ == "__main__":
    main()
