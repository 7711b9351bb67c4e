#!/usr/bin/env python3
"""Writes tests/golden/data/adamw.json: parameters and moments after steps of torch.optim.AdamW and
torch.optim.Adam in fp32, with random hyperparameters. Gradients come from an integer generator that
the test repeats: see gradient() here and in tests/engine/optimizer/update_golden_test.cc."""

import argparse
import json
import pathlib
import random

import torch

SEED = 20240607
CASES = 10
ELEMENTS = 37
STEPS = 200
CHECKPOINTS = (1, 2, 10, 200)


def gradient(case, step):
    """Element i: uniform in [-1, 1) * 2^-e from 24 bits, e = i % 13; exact in fp32."""
    values = []
    for i in range(ELEMENTS):
        word = (case * 1000003 + step * 7919 + i * 104729 + 12345) & 0xFFFFFFFF
        word = (word * 1664525 + 1013904223) & 0xFFFFFFFF
        word ^= word >> 16
        word = (word * 0x85EBCA6B) & 0xFFFFFFFF
        word ^= word >> 13
        values.append(((word >> 8) - (1 << 23)) * 2.0 ** -(23 + i % 13))
    return torch.tensor(values, dtype=torch.float32)


def options(generator, case):
    return {
        "lr": 10 ** generator.uniform(-5, -1.5),
        "beta1": generator.choice([0.0, 0.9, generator.uniform(0.5, 0.99)]),
        "beta2": generator.choice([0.999, 0.95, generator.uniform(0.8, 0.9999)]),
        "eps": 10 ** generator.uniform(-10, -4),
        "weight_decay": 0.0 if case == 0 else generator.uniform(0, 0.3),
        "adam_w_mode": case % 2 == 0,
    }


def run(case, choice):
    start = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(SEED + case))
    parameter = torch.nn.Parameter(start.clone())
    kind = torch.optim.AdamW if choice["adam_w_mode"] else torch.optim.Adam
    optimizer = kind([parameter], lr=choice["lr"], betas=(choice["beta1"], choice["beta2"]),
                     eps=choice["eps"], weight_decay=choice["weight_decay"], foreach=False)
    snapshots = []
    for step in range(1, STEPS + 1):
        parameter.grad = gradient(case, step)
        optimizer.step()
        if step in CHECKPOINTS:
            state = optimizer.state[parameter]
            snapshots.append({
                "step": step,
                "master": parameter.detach().tolist(),
                "exp_avg": state["exp_avg"].tolist(),
                "exp_avg_sq": state["exp_avg_sq"].tolist(),
            })
    return {"options": choice, "start": start.tolist(), "snapshots": snapshots}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--out", type=pathlib.Path, default=here / "data" / "adamw.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = random.Random(SEED)
    cases = [run(case, options(generator, case)) for case in range(CASES)]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"torch": torch.__version__, "elements": ELEMENTS, "steps": STEPS, "cases": cases}
    arguments.out.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
