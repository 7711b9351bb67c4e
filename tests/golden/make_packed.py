#!/usr/bin/env python3
"""Writes tests/golden/data/parity/FAMILY/packed.safetensors: loss and gradients by PyTorch and transformers
of sequences that several documents share, for the models that make_parity.py has made. See README.md beside
this file for the format and how to run it."""

import argparse
import pathlib

import torch
import transformers
from safetensors.torch import save_file

from make_parity import FAMILIES, SEED, SEQ, parameters_of

DOCUMENT_END = 3
LENGTHS = [[7, 1, 16], [11, 13]]  # of the documents of each sequence; the last one has no end token


def make_batch(vocabulary, generator):
    """Tokens, and labels that are shifted already: an end token and a sequence's last one predict nothing."""
    tokens = torch.randint(DOCUMENT_END + 1, vocabulary, (len(LENGTHS), SEQ), generator=generator)
    for row, lengths in zip(tokens, LENGTHS):
        for end in torch.tensor(lengths).cumsum(0)[:-1]:
            row[end - 1] = DOCUMENT_END
    labels = torch.full_like(tokens, -100)
    labels[:, :-1] = tokens[:, 1:]
    labels[tokens == DOCUMENT_END] = -100
    return tokens, labels


def loss_of(model, tokens, labels, **arguments):
    """Sum of the losses of the counted labels; 0 where there are none."""
    logits = model(input_ids=tokens, use_cache=False, **arguments).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum",
                                             ignore_index=-100)


def loss_apart(model, tokens, labels):
    """Every document is a sequence of its own."""
    total = 0.0
    for row, row_labels, lengths in zip(tokens, labels, LENGTHS):
        begin = 0
        for length in lengths:
            part = slice(begin, begin + length)
            total = total + loss_of(model, row[None, part], row_labels[None, part])
            begin += length
    return total


def loss_together(model, tokens, labels):
    """The same by a mask and positions that begin again."""
    documents = torch.stack([torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
                             for lengths in LENGTHS])
    positions = torch.stack([torch.cat([torch.arange(length) for length in lengths])
                             for lengths in LENGTHS])
    seen = (documents[:, :, None] == documents[:, None, :]) & torch.ones(SEQ, SEQ).tril().bool()
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[:, None]
    return loss_of(model, tokens, labels, attention_mask=mask, position_ids=positions)


def write_case(model, loss, tokens, labels, path):
    """The batch, the sum of its losses and the gradients of that."""
    model.zero_grad()
    loss.backward()
    tensors = {"grad." + name: p.grad.contiguous() for name, p in parameters_of(model).items()}
    tensors["input_ids"] = tokens.to(torch.int32)
    tensors["labels"] = labels.to(torch.int32)
    tensors["loss_sum"] = loss.detach().reshape(1)
    save_file(tensors, path)


def write_family(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                              attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(SEED + 2)
    tokens, labels = make_batch(model.config.vocab_size, generator)
    loss = loss_apart(model, tokens, labels)
    together = loss_together(model, tokens, labels)
    assert abs(loss.item() - together.item()) < 1e-5 * loss.item(), (loss.item(), together.item())
    write_case(model, loss, tokens, labels, folder / "packed.safetensors")
    print(f"{folder.name}: loss {loss.item():.5f} apart, {together.item():.5f} together")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = pathlib.Path(__file__).parent / "data" / "parity"
    parser.add_argument("--models", type=pathlib.Path, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in FAMILIES:
        write_family(arguments.models / name)


if __name__ == "__main__":
    main()
