#!/usr/bin/env python3
"""DeepSpeed's aio at the defaults of its configuration against Headrace's I/O engine, in alternated
passes over files of the same size in one folder. compare_aio.sh prepares both and runs this."""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from deepspeed.ops.op_builder import AsyncIOBuilder

ROOT = pathlib.Path(__file__).resolve().parents[2]
# ds_config's defaults of the aio block: block_size, queue_depth, single_submit, overlap_events, threads.
DEFAULTS = (1 << 20, 8, False, True, 1)
MODES = ("read", "write", "mixed")


class DeepSpeed:
    """One handle for reads and one for writes, as its pipelined swapper has them, on locked memory."""

    def __init__(self, folder, size):
        aio = AsyncIOBuilder().load(verbose=False)
        self.size = size
        self.reader = aio.aio_handle(*DEFAULTS)
        self.writer = aio.aio_handle(*DEFAULTS)
        self.input = self.reader.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        self.output = self.writer.new_cpu_locked_tensor(size, torch.empty(0, dtype=torch.uint8))
        self.output.random_(256)
        self.files = [str(pathlib.Path(folder) / f"deepspeed-{n}") for n in range(2)]
        for file in self.files:
            self.writer.sync_pwrite(self.output, file)

    def run(self, mode):
        """GB/s (10^9 bytes), reads and writes together."""
        begin = time.perf_counter()
        if mode in ("read", "mixed"):
            self.reader.async_pread(self.input, self.files[0])
        if mode in ("write", "mixed"):
            self.writer.async_pwrite(self.output, self.files[1])
        if mode in ("read", "mixed"):
            self.reader.wait()
        if mode in ("write", "mixed"):
            self.writer.wait()
        seconds = time.perf_counter() - begin
        return self.size * (2 if mode == "mixed" else 1) / seconds / 1e9


def run_ours(folder, size, mode, block, depth):
    total = size * (2 if mode == "mixed" else 1)
    command = [ROOT / "build/release/bench/io_bench", f"{folder}/headrace", "--single", "--mode", mode,
               "--rounds", "1", "--size", str(total), "--object", "16MiB", "--block", block,
               "--depth", str(depth)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"([\d.]+) GB/s", output).group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="on the drive to measure")
    parser.add_argument("--size", type=float, default=2, help="GiB per file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--block", default="1MiB", help="of ours")
    parser.add_argument("--depth", type=int, default=256, help="of ours")
    parser.add_argument("--json", help="file for the result")
    arguments = parser.parse_args()
    size = int(arguments.size * (1 << 30))
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        theirs = DeepSpeed(folder, size)
        for mode in MODES:
            rates = [(theirs.run(mode), run_ours(folder, size, mode, arguments.block, arguments.depth))
                     for _ in range(arguments.rounds)]
            row = dict(name=f"{mode}, against DeepSpeed's aio at its defaults", unit="GB/s",
                       ours=statistics.median(our for _, our in rates),
                       other=statistics.median(their for their, _ in rates),
                       ratio=statistics.median(our / their for their, our in rates))
            rows.append(row)
            print(f"{mode:5}  ours {row['ours']:.3f} GB/s, DeepSpeed {row['other']:.3f} GB/s, "
                  f"ratio {row['ratio']:.2f}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
