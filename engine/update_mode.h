#pragma once

#include <cstdint>

namespace headrace::engine {

/// When the optimizer works on a module. The numbers are the same in all of them.
enum class UpdateMode : uint8_t {
  after_norm,       ///< when the gradients of all modules are final and their norm is known
  during_backward,  ///< as soon as the module's gradient is final; where nothing depends on the
                    ///< norm
  /// As during_backward, under the assumption that the gradient is finite and not clipped. The old
  /// values stay until the norm is known; where the assumption was wrong, the updates are done
  /// again from them.
  speculative,
};

}  // namespace headrace::engine
