#include "aio/depth_tuner.h"

namespace headrace::aio {

DepthTuner::DepthTuner(int start, int least, int most, int64_t block_size)
    : block_size_(block_size),
      controllers_{DepthController(start, least, most), DepthController(start, least, most),
                   DepthController(start, least, most)} {}

void DepthTuner::begin_window() {
  window_seconds_ = 0;
  window_bytes_ = 0;
  bytes_at_full_ = last_.bytes_done;
}

int DepthTuner::note(const QueueState& state) {
  const int64_t in_flight = controller().depth() * block_size_;
  if (is_full_ && state.load == load_ && last_.bytes_done - bytes_at_full_ >= in_flight) {
    window_seconds_ += state.seconds - last_.seconds;
    window_bytes_ += state.bytes_done - last_.bytes_done;
  }
  const bool becomes_full = state.is_full && !is_full_;
  is_full_ = state.is_full;
  last_ = state;
  if (state.load != load_) {
    load_ = state.load;
    begin_window();
  } else if (becomes_full) {
    bytes_at_full_ = state.bytes_done;
  }
  if (window_bytes_ >= kWindowDepths * in_flight && window_seconds_ >= kWindowSeconds) {
    controller().note_window(static_cast<double>(window_bytes_) / window_seconds_);
    begin_window();
  }
  return controller().depth();
}

}  // namespace headrace::aio
