#include "aio/drive_lanes.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/seconds.h"

namespace headrace::aio {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

DriveLanes::Clock::time_point after(DriveLanes::Clock::time_point begin, double seconds) {
  return begin + std::chrono::duration_cast<DriveLanes::Clock::duration>(
                     std::chrono::duration<double>(seconds));
}

}  // namespace

DriveLanes::DriveLanes(const IoLimits& limits) {
  const double both = limits.both_bytes_per_second;
  const auto alone = [&](double own) {
    const double least = own > 0 && both > 0 ? std::min(own, both) : std::max(own, both);
    return least > 0 ? least : kNever;
  };
  Lane& reads = lanes_[index_of(IoOperation::read)];
  Lane& writes = lanes_[index_of(IoOperation::write)];
  reads.bytes_per_second = alone(limits.read_bytes_per_second);
  writes.bytes_per_second = alone(limits.write_bytes_per_second);
  if (both > 0) {
    share_ = std::min(1.0, both / (reads.bytes_per_second + writes.bytes_per_second));
  }
}

double DriveLanes::rate(const Lane& lane) const {
  const bool both = !lanes_[0].items.empty() && !lanes_[1].items.empty();
  return lane.bytes_per_second * (both ? share_ : 1);
}

void DriveLanes::admit(IoOperation operation, uint32_t token, Bytes size, Clock::time_point now) {
  serve_until(now);
  Lane& lane = lanes_[index_of(operation)];
  if (lane.bytes_per_second == kNever) {
    served_.push_back({token, now});
    return;
  }
  const auto bytes = static_cast<double>(size.count());
  lane.items.push_back({token, bytes});
  lane.bytes += bytes;
}

void DriveLanes::end_first(Lane& lane) {
  served_.push_back({lane.items.front().token, after(start_, seconds_)});
  lane.items.pop_front();
  if (lane.items.empty()) {
    lane.bytes = 0;  // what rounding has left
  }
}

void DriveLanes::serve_until(Clock::time_point until) {
  if (lanes_[0].items.empty() && lanes_[1].items.empty()) {
    start_ = std::max(start_, until);
    seconds_ = 0;
    return;
  }
  const double end = seconds_between(start_, until);
  while (seconds_ < end) {
    Lane* first = nullptr;  // whose item ends first
    double least = kNever;
    for (Lane& lane : lanes_) {
      const double left = lane.items.empty() ? kNever : lane.items.front().bytes / rate(lane);
      if (left < least) {
        least = left;
        first = &lane;
      }
    }
    if (first == nullptr) {
      seconds_ = end;
      return;
    }
    const bool ends = seconds_ + least <= end;
    const double step = ends ? least : end - seconds_;
    for (Lane& lane : lanes_) {
      if (!lane.items.empty()) {
        const double bytes = std::min(lane.items.front().bytes, step * rate(lane));
        lane.items.front().bytes -= bytes;
        lane.bytes -= bytes;
      }
    }
    seconds_ = ends ? seconds_ + least : end;
    if (ends) {
      end_first(*first);
    }
  }
}

std::vector<DriveLanes::End> DriveLanes::take_served(Clock::time_point now) {
  serve_until(now);
  return std::exchange(served_, {});
}

DriveLanes::Clock::time_point DriveLanes::next_end() const {
  double least = kNever;
  for (const Lane& lane : lanes_) {
    if (!lane.items.empty()) {
      least = std::min(least, lane.items.front().bytes / rate(lane));
    }
  }
  return least == kNever ? Clock::time_point::max() : after(start_, seconds_ + least);
}

double DriveLanes::seconds_for(IoOperation operation, double bytes) const {
  return bytes / rate(lanes_[index_of(operation)]);
}

double DriveLanes::bytes_waiting(IoOperation operation) const {
  return lanes_[index_of(operation)].bytes;
}

}  // namespace headrace::aio
