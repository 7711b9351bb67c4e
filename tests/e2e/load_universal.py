"""Loads a universal checkpoint with DeepSpeed's own engine and compares what arrived:

    load_universal.py CHECKPOINT MASTERS.safetensors DTYPE STAGE...

Prints one line of JSON per ZeRO stage. Runs on the CPU, one rank.
"""

import json
import os
import socket
import sys

os.environ["DS_ACCELERATOR"] = "cpu"
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    PORT = probe.getsockname()[1]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT), RANK="0", LOCAL_RANK="0", WORLD_SIZE="1")

import deepspeed  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402


def module_of(shapes):
    """A model that consists of parameters of these names, all zero."""
    model = torch.nn.Module()
    for name, shape in shapes.items():
        *path, leaf = name.split(".")
        owner = model
        for part in path:
            if not hasattr(owner, part):
                owner.add_module(part, torch.nn.Module())
            owner = getattr(owner, part)
        owner.register_parameter(leaf, torch.nn.Parameter(torch.zeros(shape)))
    return model


def load(root, masters, dtype, stage):
    model = module_of({name: value.shape for name, value in masters.items()})
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "checkpoint": {"load_universal": True},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_max_lr": 2e-3}},
    }
    if dtype != "fp32":
        config[dtype] = {"enabled": True}
    # Other hyper-parameters than the run's: they must come from the checkpoint.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, betas=(0.1, 0.2), eps=0.3, weight_decay=0.4)
    engine, wrapped, _, schedule = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    path, _ = engine.load_checkpoint(root)
    tag = open(os.path.join(root, "latest_universal")).read()
    equal = 0
    for name, parameter in engine.module.named_parameters():
        folder = os.path.join(root, tag, "zero", name)
        equal += torch.equal(safe_get_full_fp32_param(parameter).reshape(masters[name].shape), masters[name])
        for key in ("exp_avg", "exp_avg_sq"):
            there = safe_get_full_optimizer_state(parameter, key).reshape(masters[name].shape)
            equal += torch.equal(there, torch.load(os.path.join(folder, f"{key}.pt"))["param"])
    group = wrapped.param_groups[0]
    scaler = getattr(wrapped, "loss_scaler", None)
    return {
        "stage": stage,
        "path": path,
        "equal": equal,
        "parameters": len(masters),
        "steps": [float(state["step"]) for state in wrapped.state.values() if "step" in state],
        "global_steps": engine.global_steps,
        "global_samples": engine.global_samples,
        "skipped_steps": engine.skipped_steps,
        "last_batch_iteration": schedule.last_batch_iteration,
        "betas": list(group["betas"]),
        "eps": group["eps"],
        "weight_decay": group["weight_decay"],
        "loss_scale": None if scaler is None else float(scaler.cur_scale),
        "cur_iter": getattr(scaler, "cur_iter", None),
    }


def main():
    root, masters, dtype = sys.argv[1], safetensors.torch.load_file(sys.argv[2]), sys.argv[3]
    for stage in map(int, sys.argv[4:]):
        print("RESULT " + json.dumps(load(root, masters, dtype, stage)), flush=True)


if __name__ == "__main__":
    main()
