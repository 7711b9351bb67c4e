"""What the tests of scripts/*.py share."""

import contextlib
import importlib.util
import io
import json
import struct
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def load_script(name):
    """The script as a module."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def has_packages(*names):
    return all(importlib.util.find_spec(name) for name in names)


def run_main(module, *arguments):
    """(exit code, stdout, stderr) of main()."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = module.main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
    return code, out.getvalue(), err.getvalue()


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}, read by the format's description."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        result[name] = (entry["dtype"], entry["shape"], data[8 + length:][begin:end])
    return result


def read_tokens(path):
    """{name: list of ints} and the shape of a token file."""
    tensors = read_safetensors(path)
    values = {name: list(struct.unpack(f"<{len(data) // 4}i", data))
              for name, (_, _, data) in tensors.items()}
    return values, tensors["input_ids"][1]
