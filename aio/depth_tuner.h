#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "aio/depth_controller.h"

namespace headrace::aio {

/// What an engine wants of its device at one moment.
enum class QueueLoad : uint8_t { read, write, both };

struct QueueState {
  double seconds = 0;  ///< on any clock that does not go back
  int64_t bytes_done = 0;
  QueueLoad load = QueueLoad::read;
  bool is_full = false;  ///< requests wait although the depth is used up
};

/// Feeds depth controllers, one per load, with the rates of windows. Only time with a full queue
/// counts, and only after as many bytes as are in flight have ended, so that filling the queue and
/// parts of the depth before are left out. Stretches of one load and depth add up to a window.
class DepthTuner {
 public:
  DepthTuner(int start, int least, int most, int64_t block_size);

  /// Takes the next state; the depth to use from here on.
  int note(const QueueState& state);

 private:
  static constexpr int64_t kWindowDepths = 4;  ///< a window is this many times the depth in bytes
  static constexpr double kWindowSeconds = 0.05;

  DepthController& controller() { return controllers_[static_cast<size_t>(load_)]; }
  void begin_window();

  int64_t block_size_;
  std::array<DepthController, 3> controllers_;
  QueueLoad load_ = QueueLoad::read;
  bool is_full_ = false;       ///< at the last state
  int64_t bytes_at_full_ = 0;  ///< ended when the queue became full, or when the window began
  QueueState last_;
  double window_seconds_ = 0;
  int64_t window_bytes_ = 0;
};

}  // namespace headrace::aio
