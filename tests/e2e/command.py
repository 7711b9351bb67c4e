"""Runs the headrace command for the end-to-end tests."""

import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import venv

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get(
    "HEADRACE_COMMAND", str(REPOSITORY / "build" / "release" / "bin" / "headrace")
)

USAGE, BAD_INPUT, DOES_NOT_FIT, IO_FAILURE, INTERRUPTED = 2, 3, 4, 5, 130


class CommandTest(unittest.TestCase):
    """Gives each test a folder on a real file system that is removed afterwards."""

    def setUp(self):
        base = pathlib.Path(COMMAND).resolve().parent
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="e2e-", dir=base))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def run_command(self, *arguments, timeout=300):
        return subprocess.run(
            [COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
        )

    def check_ok(self, *arguments, timeout=300):
        result = self.run_command(*arguments, timeout=timeout)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def check_fails(self, code, texts, *arguments):
        """The command ends with `code`, and its message holds each of `texts`."""
        result = self.run_command(*arguments)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        for text in texts:
            self.assertIn(text, result.stderr)
        self.assertNotIn("internal error", result.stderr)
        return result

    def small_disk(self, mebibytes):
        """A file system of that size, where the sandbox lets us mount one."""
        small = self.folder / "small"
        small.mkdir()
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(small)],
            capture_output=True,
            check=False,
        )
        if mounted.returncode != 0:
            self.skipTest("cannot mount a small file system here: " + mounted.stderr.decode())
        self.addCleanup(subprocess.run, ["umount", str(small)], check=False)
        return small

    def init_model(self, name="model"):
        path = self.folder / name
        self.check_ok("init-model", "--preset", "tiny", "--output", path)
        return path

    def write_text(self, name="text.txt", size=200_000):
        path = self.folder / name
        licences = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
        text = b"".join(p.read_bytes() for p in licences if p.is_file())
        path.write_bytes((text * (size // max(len(text), 1) + 1))[:size])
        return path

    def write_config(self, name="config.json", **changes):
        config = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 1,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {
                "stage": 3,
                "offload_param": {"device": "nvme"},
                "offload_optimizer": {"device": "nvme"},
            },
            "headrace": {"activation_nvme": True},
        }
        config.update(changes)
        path = self.folder / name
        path.write_text(json.dumps(config))
        return path

    def metrics(self, output):
        lines = (output / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def read_safetensors(path):
    """Name -> (dtype, shape, bytes) of a safetensors file."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    body = data[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def python_with(packages, folder):
    """A Python that has the packages: this one, the repository's .venv, or a new venv. None if
    PyPI is out of reach."""
    probe = "import " + ", ".join(packages)
    for candidate in (sys.executable, str(REPOSITORY / ".venv" / "bin" / "python")):
        if pathlib.Path(candidate).exists():
            done = subprocess.run([candidate, "-c", probe], capture_output=True, check=False)
            if done.returncode == 0:
                return candidate
    venv.create(folder, with_pip=True)
    python = str(pathlib.Path(folder) / "bin" / "python")
    done = subprocess.run(
        [python, "-m", "pip", "install", "-q", *packages], capture_output=True, check=False
    )
    return python if done.returncode == 0 else None


def wait_for(condition, seconds=60):
    end = time.time() + seconds
    while time.time() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def interrupt(process):
    process.send_signal(signal.SIGINT)
