#pragma once

#include "support.h"

namespace headrace::scheduler::test {

/// Shapes and times of one training step of a small transformer, in bytes and seconds.
struct TransformerShape {
  int layers = 8;
  int micro_batches = 1;
  int64_t block_weights = 8 << 20;
  int64_t embedding_weights = 12 << 20;
  int64_t activation = 2 << 20;
  double forward_seconds = 2e-3;  ///< of one block
  double update_seconds = 1e-3;   ///< CPU Adam of one block
};

/// embed, blocks, head, blocks backward, accumulation of gradients in the host, optimizer shard by
/// shard. Weights (W) and optimizer state (S) are at home on nvme, accumulators (G) live in the
/// host, gradients (D) and activations (A) are made on the device.
Case transformer(const TransformerShape& shape, Tier weights_home = Tier::nvme);

}  // namespace headrace::scheduler::test
