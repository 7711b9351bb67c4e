#pragma once

namespace headrace::model {

/// Floating point operations of a block, and what goes with them.
struct BlockFlops {
  double linear_forward = 0;  ///< outputs of linear layers: what fp8 products compute, where asked
  double rest = 0;
  double rounded = 0;  ///< elements of inputs and weights of those layers, which fp8 rounds before

  double total() const { return linear_forward + rest; }
};

}  // namespace headrace::model
