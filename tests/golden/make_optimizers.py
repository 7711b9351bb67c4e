#!/usr/bin/env python3
"""Writes tests/golden/data/optimizers.json: parameters and state after steps of torch.optim.Adagrad,
torch.optim.SGD and Lion in fp32, with random hyperparameters. Lion is algorithm 2 of Chen et al. 2023
("Symbolic discovery of optimization algorithms") in plain tensor operations. Gradients come from the
integer generator of make_adamw.py, which the test repeats."""

import argparse
import json
import pathlib
import random

import torch

from make_adamw import ELEMENTS, gradient

SEED = 20240811
CASES = 4  # of each optimizer
STEPS = 300
CHECKPOINTS = (1, 2, 10, 300)


class Lion:
    def __init__(self, parameters, lr, beta1, beta2, weight_decay):
        (self.parameter,) = parameters
        self.lr, self.beta1, self.beta2, self.weight_decay = lr, beta1, beta2, weight_decay
        self.exp_avg = torch.zeros_like(self.parameter)

    @torch.no_grad()
    def step(self):
        grad = self.parameter.grad
        update = torch.sign(self.beta1 * self.exp_avg + (1 - self.beta1) * grad)
        self.parameter -= self.lr * (update + self.weight_decay * self.parameter)
        self.exp_avg = self.beta2 * self.exp_avg + (1 - self.beta2) * grad


def options(generator, kind, case):
    choice = {"kind": kind, "lr": 10 ** generator.uniform(-4, -1.5),
              "weight_decay": 0.0 if case == 0 else generator.uniform(0, 0.3)}
    if kind == "adagrad":
        choice |= {"lr_decay": 0.0 if case == 0 else generator.uniform(0, 0.05),
                   "eps": 10 ** generator.uniform(-10, -4)}
    elif kind == "lion":
        choice |= {"beta1": generator.uniform(0.5, 0.95), "beta2": generator.uniform(0.9, 0.999)}
    else:
        nesterov = case == 2
        choice |= {"momentum": 0.0 if case == 0 else generator.uniform(0.5, 0.95),
                   "dampening": 0.0 if nesterov or case == 0 else generator.uniform(0, 0.9),
                   "nesterov": nesterov}
    return choice


def make(parameter, choice):
    keywords = {key: value for key, value in choice.items() if key != "kind"}
    if choice["kind"] == "lion":
        return Lion([parameter], **keywords)
    kind = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}[choice["kind"]]
    return kind([parameter], foreach=False, **keywords)


def moment(optimizer, parameter, choice):
    if choice["kind"] == "lion":
        return optimizer.exp_avg.tolist()
    state = optimizer.state[parameter]
    found = state.get("sum" if choice["kind"] == "adagrad" else "momentum_buffer")
    return [] if found is None else found.tolist()


def run(number, choice):
    start = torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(SEED + number))
    parameter = torch.nn.Parameter(start.clone())
    optimizer = make(parameter, choice)
    snapshots = []
    for step in range(1, STEPS + 1):
        parameter.grad = gradient(number, step)
        optimizer.step()
        if step in CHECKPOINTS:
            snapshots.append({"step": step, "master": parameter.detach().tolist(),
                              "moment": moment(optimizer, parameter, choice)})
    return {"options": choice, "start": start.tolist(), "snapshots": snapshots}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    here = pathlib.Path(__file__).resolve().parent
    parser.add_argument("--out", type=pathlib.Path, default=here / "data" / "optimizers.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    generator = random.Random(SEED)
    cases = []
    for kind in ("adagrad", "lion", "sgd"):
        for case in range(CASES):
            cases.append(run(len(cases), options(generator, kind, case)))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    document = {"torch": torch.__version__, "elements": ELEMENTS, "steps": STEPS, "cases": cases}
    arguments.out.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
