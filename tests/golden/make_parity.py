#!/usr/bin/env python3
"""Writes tests/golden/data/parity/: small models with gradients and training curves by PyTorch and
transformers, against which the native networks and the trainer are tested. See README.md beside this
file for the formats and how to run it."""

import argparse
import json
import math
import pathlib
import shutil

import numpy
import torch
import transformers
from safetensors.torch import save_file

SEED = 20240607
BATCH = 2
SEQ = 24
STEPS = 20
ACCUMULATION = 2
WARMUP_STEPS = 5
PEAK_LR = 1e-3
WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.999)
EPSILON = 1e-8
CLIP = 1.0

COMMON = dict(
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    attention_dropout=0.0,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)

# Odd sizes on purpose: vocabularies and widths that are no multiple of a vector or a tile.
FAMILIES = {
    "llama_llama3": lambda: transformers.LlamaConfig(
        **COMMON, vocab_size=131, intermediate_size=64, tie_word_embeddings=False, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=32)),
    "llama_linear": lambda: transformers.LlamaConfig(
        **COMMON, vocab_size=128, intermediate_size=70, tie_word_embeddings=True, attention_bias=True,
        mlp_bias=True, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=2.0)),
    "mistral": lambda: transformers.MistralConfig(
        **COMMON, vocab_size=130, intermediate_size=58, head_dim=16, tie_word_embeddings=False,
        sliding_window=64, rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "qwen2": lambda: transformers.Qwen2Config(
        **COMMON, vocab_size=157, intermediate_size=75, tie_word_embeddings=True,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    "qwen3": lambda: transformers.Qwen3Config(
        **(COMMON | dict(num_hidden_layers=3)), vocab_size=133, intermediate_size=42, head_dim=16,
        tie_word_embeddings=False,
        rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
}


def make_model(config):
    """Random weights with everything away from its neutral value, so that no part can hide. They are bf16
    values, so that a bf16 run starts from the same masters as an fp32 run."""
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            value = 1 + 0.1 * noise if name.endswith("norm.weight") else 0.05 * noise
            parameter.copy_(value.bfloat16().float())
    return model.float().eval()


def losses(model, tokens):
    """Per-token cross-entropy of token windows [batch, seq + 1]: position t predicts token t + 1."""
    logits = model(input_ids=tokens[:, :-1].long(), use_cache=False).logits.float()
    targets = tokens[:, 1:].long()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none",
                                             ignore_index=-100)


def parameters_of(model):
    """Trainable tensors by checkpoint name; tied weights once."""
    return dict(model.named_parameters())


def write_gradients(model, folder, generator):
    """One batch with ignored labels: the sum of the losses and its gradients, fp32."""
    tokens = torch.randint(0, model.config.vocab_size, (BATCH, SEQ + 1), generator=generator)
    labels = tokens[:, 1:].clone()
    labels[0, 3] = -100
    labels[1, SEQ - 1] = -100
    ids = tokens[:, :-1].clone()
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits.float()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum",
                                             ignore_index=-100)
    loss.backward()
    tensors = {"grad." + name: p.grad.contiguous() for name, p in parameters_of(model).items()}
    tensors["input_ids"] = ids.to(torch.int32)
    tensors["labels"] = labels.to(torch.int32)
    save_file(tensors, folder / "gradients.safetensors")
    model.zero_grad()
    return loss.item(), int((labels != -100).sum())


def learning_rate(step):
    """DeepSpeed's WarmupLR with warmup_type linear and warmup_min_lr 0. Its counter starts at -1 (the
    minimum) and is advanced after each step, so that steps 0 and 1 both run at the minimum."""
    return PEAK_LR * min(1.0, max(0, step - 1) / WARMUP_STEPS)


def set_master(model, masters):
    with torch.no_grad():
        for name, parameter in parameters_of(model).items():
            parameter.copy_(masters[name])


def train(model, windows, dtype):
    """The training loop that the goldens stand for. Masters, gradients and AdamW are fp32; forward and
    backward run in `dtype`. Returns losses, gradient norms and the masters at the end."""
    model = model.to(dtype)
    masters = {name: p.detach().float().clone().requires_grad_(True)
               for name, p in parameters_of(model).items()}
    optimizer = torch.optim.AdamW(masters.values(), lr=0.0, betas=BETAS, eps=EPSILON,
                                  weight_decay=WEIGHT_DECAY)
    curve = dict(loss=[], gradient_norm=[], learning_rate=[])
    for step in range(STEPS):
        sums = {name: torch.zeros_like(p) for name, p in masters.items()}
        step_loss = 0.0
        for micro in range(ACCUMULATION):
            model.zero_grad()
            loss = losses(model, windows[step, micro]).mean() / ACCUMULATION
            loss.backward()
            step_loss += loss.item()
            for name, parameter in parameters_of(model).items():
                sums[name] += parameter.grad.float()
        norm = math.sqrt(sum(float(g.double().square().sum()) for g in sums.values()))
        coefficient = 1.0 / max(1.0, (norm + 1e-6) / CLIP)
        for name, master in masters.items():
            master.grad = sums[name] * coefficient
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        set_master(model, masters)
        curve["loss"].append(step_loss)
        curve["gradient_norm"].append(norm)
        curve["learning_rate"].append(learning_rate(step))
    return curve, {name: p.detach().contiguous() for name, p in masters.items()}


def write_family(name, config, root):
    folder = root / name
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    model = make_model(config)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(SEED + 1)
    loss_sum, counted = write_gradients(model, folder, generator)

    # A learnable pattern: each sequence counts up from a random start by a random small stride.
    shape = (STEPS, ACCUMULATION, BATCH, 1)
    starts = torch.randint(0, config.vocab_size, shape, generator=generator)
    strides = torch.randint(1, 4, shape, generator=generator)
    windows = (starts + strides * torch.arange(SEQ + 1)) % config.vocab_size
    windows = windows.to(torch.int32)
    windows.numpy().astype("<i4").tofile(folder / "windows.i32")

    reload = lambda: transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager").eval()
    fp32_curve, final = train(reload(), windows, torch.float32)
    save_file(final, folder / "final.safetensors")
    bf16_curve, _ = train(reload(), windows, torch.bfloat16)
    frequencies = model.model.rotary_emb.inv_freq.tolist()
    parity = dict(
        rope_frequencies=frequencies,
        versions=dict(torch=torch.__version__, transformers=transformers.__version__),
        gradients=dict(loss_sum=loss_sum, counted_labels=counted, batch=BATCH, seq=SEQ),
        training=dict(steps=STEPS, gradient_accumulation_steps=ACCUMULATION, batch=BATCH, seq=SEQ,
                      betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY, gradient_clipping=CLIP,
                      warmup_min_lr=0.0, warmup_max_lr=PEAK_LR, warmup_num_steps=WARMUP_STEPS,
                      warmup_type="linear"),
        fp32=fp32_curve,
        bf16=bf16_curve,
    )
    (folder / "parity.json").write_text(json.dumps(parity, indent=1) + "\n")
    print(f"{name}: loss {fp32_curve['loss'][0]:.5f} -> {fp32_curve['loss'][-1]:.5f}, bf16 "
          f"{bf16_curve['loss'][-1]:.5f}, norms {fp32_curve['gradient_norm'][0]:.3f} -> "
          f"{fp32_curve['gradient_norm'][-1]:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    default = pathlib.Path(__file__).parent / "data" / "parity"
    parser.add_argument("--out", type=pathlib.Path, default=default)
    parser.add_argument("--family", choices=sorted(FAMILIES), action="append")
    arguments = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in arguments.family or FAMILIES:
        write_family(name, FAMILIES[name](), arguments.out)


if __name__ == "__main__":
    main()
