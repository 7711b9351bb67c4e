#!/usr/bin/env bash
# From a fresh clone to a fine-tuned model: installs what is missing, builds, makes a small model
# and trains it on English text with its state streaming through device, host and NVMe budgets.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=${STEPS:-60}
work=${HEADRACE_QUICKSTART_DIR:-runs/quickstart}
nvme=${NVME_PATH:-$work/nvme}

echo "== 1/4 build"
./scripts/build.sh release
headrace=build/release/bin/headrace

echo "== 2/4 a small model with random weights and English text"
rm -rf "$work/model" "$work/output" "$work/nvme"
mkdir -p "$work" "$nvme"
"$headrace" init-model --preset tiny --output "$work/model"
# The licences that every Debian system carries, as plain text.
find /usr/share/common-licenses -type f -print0 | sort -z | xargs -0 cat > "$work/text.txt"
echo "text: $(wc -c < "$work/text.txt") bytes from /usr/share/common-licenses"

echo "== 3/4 train, weights and optimizer state on NVMe"
"$headrace" train --model "$work/model" --data "$work/text.txt" \
  --config configs/zero3_nvme.json --output "$work/output" --nvme-path "$nvme" \
  --device-memory 16MiB --host-memory 24MiB --steps "$steps" --seq-len 256

echo "== 4/4 what it did"
echo "first and last steps of $work/output/metrics.jsonl:"
sed -n '1p;$p' "$work/output/metrics.jsonl"
echo "the model is in $work/output; transformers loads it with AutoModelForCausalLM.from_pretrained"
