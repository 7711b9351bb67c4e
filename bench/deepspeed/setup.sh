# Sourced from the repository's root by the comparisons with DeepSpeed. Puts it from PyPI into
# build/deepspeed-venv, with the torch of .venv where that is there, and sets `venv`.

deepspeed_version=0.19.8
venv=$PWD/build/deepspeed-venv
if [ ! -x "$venv/bin/python" ]; then
  python=python3
  if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
  "$python" -m venv "$venv"
  packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  if [ -x .venv/bin/python ] && .venv/bin/python -c 'import torch' 2> /dev/null; then
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$packages/torch.pth"
  else
    "$venv/bin/pip" install --quiet torch --index-url https://download.pytorch.org/whl/cpu
  fi
fi
if ! DS_ACCELERATOR=cpu "$venv/bin/python" -c 'import deepspeed' 2> /dev/null; then
  "$venv/bin/pip" install --quiet wheel setuptools ninja numpy packaging psutil py-cpuinfo hjson einops \
    msgpack pydantic tqdm
  DS_ACCELERATOR=cpu "$venv/bin/pip" install --quiet --no-deps --no-build-isolation \
    "deepspeed==$deepspeed_version"
fi
export DS_ACCELERATOR=cpu TORCH_EXTENSIONS_DIR=$venv/torch_extensions PATH=$venv/bin:$PATH
