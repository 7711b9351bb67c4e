#include "aio/simulated_backend.h"

#include <algorithm>

#include "base/log.h"

namespace headrace::aio {

int SimulatedBackend::open(const std::string& path, bool create, bool direct) {
  return disk_->open(path, create, direct);
}

void SimulatedBackend::register_memory(std::span<std::byte> memory) {
  if (disk_->options().refuse_registration) {
    log_message_once(LogLevel::info, "simulated memory",
                     "simulated disk: registering memory was refused; transfers work all the same");
    return;
  }
  has_buffers_ = has_buffers_ || !memory.empty();
}

void SimulatedBackend::submit(std::span<const PartRequest> parts) {
  const Clock::time_point now = Clock::now();
  for (const PartRequest& part : parts) {
    waiting_.push_back(Waiting{.part = part, .due = now + disk_->draw_delay()});
  }
}

int64_t SimulatedBackend::pick(Clock::time_point now) {
  std::vector<int64_t> due;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (waiting_[i].due <= now) {
      due.push_back(static_cast<int64_t>(i));
      if (!disk_->options().reorder) {
        break;
      }
    }
  }
  return due.empty() ? -1 : due[due.size() == 1 ? 0 : disk_->draw_below(due.size())];
}

size_t SimulatedBackend::reap(std::span<PartCompletion> ready) {
  Clock::time_point first_due = Clock::time_point::max();
  for (const Waiting& waiting : waiting_) {
    first_due = std::min(first_due, waiting.due);
  }
  disk_->await(first_due, woken_);
  size_t count = 0;
  while (count < ready.size() && !disk_->is_held()) {
    const int64_t index = pick(Clock::now());
    if (index < 0) {
      break;
    }
    const PartRequest part = waiting_[static_cast<size_t>(index)].part;
    waiting_.erase(waiting_.begin() + index);
    ready[count++] = PartCompletion{
        .token = part.token, .result = disk_->transfer(part), .expected = part.length};
  }
  return count;
}

std::string SimulatedBackend::features() const {
  return has_buffers_ ? "registered buffers" : "";
}

}  // namespace headrace::aio
