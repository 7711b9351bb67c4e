"""What formats of optimizer moments cost: the error of a step, and the loss of a small training.

    python3 bench/moment_formats.py [--steps 300]

Needs PyTorch. Trains a byte-level transformer of 0.7 million parameters on the sources of this repository with AdamW,
its moments rounded after each step to the format. The 8-bit formats are simulated: `float` is docs/optimizers.md's,
`tree` the dynamic map of Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization".
"""

import argparse
import pathlib

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, HIDDEN, LAYERS, HEADS, LENGTH, SEQUENCES = 256, 128, 3, 4, 128, 8
BETA1, BETA2, EPS, DECAY, RATE = 0.9, 0.999, 1e-8, 0.01, 2e-3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x):
        parts = self.qkv(self.norms[0](x)).chunk(3, -1)
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.silu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
        self.positions = nn.Embedding(LENGTH, HIDDEN)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.RMSNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight
        return self.head(self.norm(self.blocks(x)))


def in_blocks(x, size):
    return functional.pad(x.flatten(), (0, -x.numel() % size)).view(-1, size)


def draws(x, stochastic):
    return torch.rand_like(x) if stochastic else torch.full_like(x, 0.5)


def small_float(x, exponent, mantissa, size, stochastic, above_zero):
    """Rounds to floating-point numbers with subnormals, relative to a power of two per block."""
    blocks = in_blocks(x, size)
    magnitude = blocks.abs()
    largest = magnitude.amax(1, keepdim=True)
    top = torch.frexp(largest).exponent - 1
    top = top + (largest > torch.ldexp(torch.full_like(largest, 2 - 2.0**-mantissa), top)).int()
    smallest = top - (2**exponent - 2)
    power = torch.maximum(torch.frexp(magnitude).exponent - 1, smallest) - mantissa
    steps = torch.floor(torch.ldexp(magnitude, -power) + draws(blocks, stochastic))
    if above_zero:
        steps = torch.where((steps == 0) & (magnitude > 0), 1.0, steps)
    rounded = torch.ldexp(steps, power) * blocks.sign()
    return rounded.flatten()[: x.numel()].view_as(x)


def tree(signed):
    """The values of the dynamic map: per power of ten, twice as many as in the one below it."""
    values = [0.0, 1.0]
    for power in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (power if signed else power + 1) + 1, dtype=torch.float64)
        centres = (10.0 ** (power - 6) * (edges[:-1] + edges[1:]) / 2).tolist()
        values += centres + ([-value for value in centres] if signed else [])
    return torch.tensor(sorted(values), dtype=torch.float32)


TREES = {signed: tree(signed) for signed in (True, False)}


def dynamic_tree(x, signed, size, stochastic):
    values = TREES[signed]
    blocks = in_blocks(x, size)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-38)
    relative = blocks / scale
    above = torch.searchsorted(values, relative.contiguous()).clamp(1, len(values) - 1)
    low, high = values[above - 1], values[above]
    rounded = torch.where((relative - low) / (high - low) + draws(blocks, stochastic) >= 1, high, low)
    if not signed:
        rounded = torch.where((rounded == 0) & (relative > 0), values[1], rounded)
    return (rounded * scale).flatten()[: x.numel()].view_as(x)


def floats(first, second, size, stochastic):
    return (
        lambda x: small_float(x, *first, size, stochastic, False),
        lambda x: small_float(x, *second, size, stochastic, True),
    )


def trees(size, stochastic):
    return (lambda x: dynamic_tree(x, True, size, stochastic), lambda x: dynamic_tree(x, False, size, stochastic))


FORMATS = {
    "fp32": (lambda x: x, lambda x: x),
    "bf16": (lambda x: x.bfloat16().float(),) * 2,
    "tree, blocks of 256, nearest": trees(256, False),
    "tree, blocks of 256, stochastic": trees(256, True),
    "float 3+4 and 4+4, blocks of 64, nearest": floats((3, 4), (4, 4), 64, False),
    "float 3+4 and 4+4, blocks of 64, stochastic": floats((3, 4), (4, 4), 64, True),
    "float 3+4 and 4+4, blocks of 256, stochastic": floats((3, 4), (4, 4), 256, True),
    "float 4+3 and 5+3, blocks of 64, stochastic": floats((4, 3), (5, 3), 64, True),
}


def train(text, steps, formats):
    """Losses, and the moments after the last step."""
    torch.manual_seed(0)
    model = Model()
    parameters = list(model.parameters())
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in parameters]
    batches = torch.Generator().manual_seed(7)
    losses = []
    for step in range(1, steps + 1):
        starts = torch.randint(0, len(text) - LENGTH - 1, (SEQUENCES,), generator=batches)
        windows = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        logits = model(windows[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for i, (parameter, gradient) in enumerate(zip(parameters, gradients)):
                first = moments[i][0] * BETA1 + gradient * (1 - BETA1)
                second = moments[i][1] * BETA2 + gradient * gradient * (1 - BETA2)
                parameter.mul_(1 - RATE * DECAY)
                root = (second / (1 - BETA2**step)).sqrt() + EPS
                parameter.sub_(first * (RATE / (1 - BETA1**step)) / root)
                moments[i] = (formats[0](first), formats[1](second))
    return losses, moments


def step_error(moments, formats):
    """Of m / sqrt(v), in root mean square, relative to its own."""
    error = total = 0.0
    for first, second in moments:
        used = second > 0
        exact = (first / (second.sqrt() + EPS))[used]
        rounded = (formats[0](first) / (formats[1](second).sqrt() + EPS))[used]
        error += (rounded - exact).square().sum().item()
        total += exact.square().sum().item()
    return (error / total) ** 0.5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    root = pathlib.Path(__file__).resolve().parents[1]
    files = sorted([*root.glob("docs/*.md"), *root.glob("engine/**/*.cc")])
    text = torch.tensor(list(b"".join(file.read_bytes() for file in files)), dtype=torch.long)
    exact_losses, exact_moments = train(text, steps, FORMATS["fp32"])
    print(f"{'format':46} {'step error':>10} {'loss':>8} {'of fp32':>8}   mean of the last 50 steps")
    for name, formats in FORMATS.items():
        losses = exact_losses if name == "fp32" else train(text, steps, formats)[0]
        mean, exact = (sum(values[-50:]) / len(values[-50:]) for values in (losses, exact_losses))
        error = step_error(exact_moments, formats)
        print(f"{name:46} {error:10.4f} {mean:8.4f} {mean - exact:+8.4f}", flush=True)


if __name__ == "__main__":
    main()
