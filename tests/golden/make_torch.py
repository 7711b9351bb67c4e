"""Files of torch.save for the tests of model/torch_file: python make_torch.py [folder]."""

import pathlib
import sys

import torch

folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "data" / "torch")
folder.mkdir(parents=True, exist_ok=True)
values = torch.arange(12, dtype=torch.float32).reshape(3, 4) / 4 - 1


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


def save(name, value):
    torch.save(value, folder / f"{name}.pt")


save("dictionary", {"cat_dim": 0, "param": values, "vocab_tensor": True, "note": None, "x": 0.5})
save("tensor", values)
save("bf16", values.to(torch.bfloat16))
save("f16", {"param": values.half()})
save("flat", values.view(-1))
save("view", values[1:])
save("parameter", {"param": torch.nn.Parameter(values)})
save("number", 7)
save("number_as_tensor", torch.tensor(7.0))
save("transposed", values.t())
save("integers", torch.arange(4))
save("nothing", {"other": values})
save("evil", {"param": Evil()})
