#!/usr/bin/env python3
"""Headrace's fused Adam update against DeepSpeed's CPU Adam and the copies around it, alternated in one
process on the same memory. Started by compare_adam.sh, which builds both.

Cases (each: what DeepSpeed's ZeRO-Offload step does with a shard | the one update() that does the same):
  a  fp32 gradients:  adam_update, then the 16-bit weights copied   | fp32 master, fused bf16 weight
  b  bf16 gradients:  up-cast, adam_update, 16-bit weights copied   | split master, fp32 moments
  c  all in bf16:     adam_update on bf16 weights and moments       | the same arrays, no master
  d  all in bf16:     as c                                          | split master, bf16 moments
In d Headrace keeps an fp32 master, which DeepSpeed does not have there, and moves 18 bytes per element
against 14; it has no target."""

import argparse
import ctypes
import json
import mmap
import statistics
import time

import torch
from deepspeed.ops.op_builder.cpu import CPUAdamBuilder

LR, WEIGHT_DECAY, EPS, BETAS = 1e-4, 0.01, 1e-8, (0.9, 0.999)


class AdamStep(ctypes.Structure):
    """HeadraceAdamStep in update_c.cc."""
    _fields_ = [("count", ctypes.c_int64), ("step", ctypes.c_int64), ("lr", ctypes.c_double),
                ("weight_decay", ctypes.c_double), ("master", ctypes.c_void_p),
                ("master_low", ctypes.c_void_p), ("weight", ctypes.c_void_p),
                ("exp_avg", ctypes.c_void_p), ("exp_avg_sq", ctypes.c_void_p),
                ("gradient", ctypes.c_void_p), ("weight_is_master", ctypes.c_int32),
                ("moments_are_bf16", ctypes.c_int32), ("gradient_is_bf16", ctypes.c_int32)]


def huge(count, dtype):
    """A zero tensor on transparent huge pages."""
    size = count * dtype.itemsize
    memory = mmap.mmap(-1, size + (2 << 20), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    raw = torch.frombuffer(memory, dtype=torch.uint8)
    skip = -raw.data_ptr() % (2 << 20)
    return raw[skip:skip + size].view(dtype).zero_()


class DeepSpeed:
    def __init__(self, module):
        self.module = module
        module.create_adam(0, LR, *BETAS, EPS, WEIGHT_DECAY, True, False)

    def step(self, number, weight, gradient, exp_avg, exp_avg_sq):
        self.module.adam_update(0, number, LR, *BETAS, EPS, WEIGHT_DECAY, True, weight, gradient,
                                exp_avg, exp_avg_sq)


class Headrace:
    def __init__(self, path, threads):
        self.update = ctypes.CDLL(path)
        self.threads = threads

    def step(self, number, gradient, exp_avg, exp_avg_sq, weight, master=None, low=None):
        pointer = lambda tensor: None if tensor is None else tensor.data_ptr()
        arguments = AdamStep(gradient.numel(), number, LR, WEIGHT_DECAY, pointer(master), pointer(low),
                             pointer(weight), pointer(exp_avg), pointer(exp_avg_sq), pointer(gradient),
                             master is None and low is None, exp_avg.dtype == torch.bfloat16,
                             gradient.dtype == torch.bfloat16)
        if self.update.headrace_adam_step(ctypes.byref(arguments), self.threads) != 0:
            raise RuntimeError("headrace_adam_step refuses its arguments")


class Problem:
    """The arrays of one shard; both sides work on the same ones."""

    def __init__(self, count):
        float32, bfloat16 = torch.float32, torch.bfloat16
        generator = torch.Generator().manual_seed(1)
        self.master, self.gradient = huge(count, float32), huge(count, float32)
        self.exp_avg, self.exp_avg_sq = huge(count, float32), huge(count, float32)
        self.start, self.weight = huge(count, bfloat16), huge(count, bfloat16)
        self.gradient16, self.low = huge(count, bfloat16), huge(count, bfloat16)
        self.start.copy_(self.master.normal_(generator=generator))
        self.gradient16.copy_(self.gradient.normal_(generator=generator))
        self.exp_avg16, self.exp_avg_sq16 = (
            moment.view(bfloat16)[:count] for moment in (self.exp_avg, self.exp_avg_sq))

    def begin(self):
        for tensor in (self.exp_avg, self.exp_avg_sq, self.low):
            tensor.zero_()
        self.weight.copy_(self.start)
        self.master.copy_(self.start)


def cases(p, deepspeed, headrace):
    """(name, target, DeepSpeed's work, Headrace's work)"""
    def two_passes(number):
        deepspeed.step(number, p.master, p.gradient, p.exp_avg, p.exp_avg_sq)
        p.weight.copy_(p.master)

    def three_passes(number):
        p.gradient.copy_(p.gradient16)
        two_passes(number)

    def fused(number):
        headrace.step(number, p.gradient, p.exp_avg, p.exp_avg_sq, p.weight, master=p.master)

    def split(number):
        headrace.step(number, p.gradient16, p.exp_avg, p.exp_avg_sq, p.weight, low=p.low)

    def all_bf16(number):
        deepspeed.step(number, p.weight, p.gradient16, p.exp_avg16, p.exp_avg_sq16)

    def only_bf16(number):
        headrace.step(number, p.gradient16, p.exp_avg16, p.exp_avg_sq16, p.weight)

    def split_bf16(number):
        headrace.step(number, p.gradient16, p.exp_avg16, p.exp_avg_sq16, p.weight, low=p.low)

    return [("a fp32 gradients", 1.25, two_passes, fused), ("b bf16 gradients", 1.7, three_passes, split),
            ("c all bf16", 1.8, all_bf16, only_bf16), ("d all bf16, split", 0.0, all_bf16, split_bf16)]


def seconds(work, number):
    begin = time.perf_counter()
    work(number)
    return time.perf_counter() - begin


def check(problem, name, works):
    """Both must take the same three steps, up to the rounding of bf16 weights in each."""
    results = []
    for work in works:
        problem.begin()
        for number in (1, 2, 3):
            work(number)
        results.append(problem.weight.clone())
    difference = (results[0].float() - results[1].float()).abs() / (results[0].float().abs() + LR)
    if difference.max().item() > 3 * 2.0 ** -8:
        raise RuntimeError(f"{name}: the weights differ by {difference.max().item()}")
    if torch.equal(results[1], problem.start):
        raise RuntimeError(f"{name}: no weight has moved")


def measure(problem, case, rounds):
    name, target, theirs, ours = case
    count = problem.weight.numel()
    check(problem, name, (theirs, ours))
    problem.begin()
    pairs = []
    for number in range(1, rounds + 2):
        pairs.append([seconds(work, number) * 1e9 / count for work in (theirs, ours)])
    pairs = pairs[1:]  # the first one warms up
    return {"case": name, "elements": count, "deepspeed_ns": statistics.median(a for a, _ in pairs),
            "headrace_ns": statistics.median(b for _, b in pairs),
            "ratio": statistics.median(a / b for a, b in pairs), "target": target,
            "ratios": [a / b for a, b in pairs]}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", required=True, help="the shared object made of update_c.cc")
    parser.add_argument("--millions", type=int, default=64, help="elements, in units of 2^20")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2, help="must be OMP_NUM_THREADS")
    parser.add_argument("--json", help="file for the results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    problem = Problem(arguments.millions << 20)
    deepspeed = DeepSpeed(CPUAdamBuilder().load(verbose=False))
    headrace = Headrace(arguments.update, arguments.threads)
    print(f"{'case':20} {'threads':>7} {'elements':>9} {'DeepSpeed':>10} {'Headrace':>9} {'ratio':>6} "
          f"{'target':>6}   (ns per element)")
    results = []
    for case in cases(problem, deepspeed, headrace):
        r = measure(problem, case, arguments.rounds) | {"threads": arguments.threads}
        print(f"{r['case']:20} {r['threads']:7} {arguments.millions:7} M {r['deepspeed_ns']:10.3f} "
              f"{r['headrace_ns']:9.3f} {r['ratio']:6.2f} {r['target']:6.2f}", flush=True)
        results.append(r)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"torch": torch.__version__, "results": results}, file, indent=2)


if __name__ == "__main__":
    main()
