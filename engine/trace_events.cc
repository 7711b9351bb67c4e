#include "engine/trace_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/seconds.h"
#include "model/checkpoint_file.h"

namespace headrace::engine {

using scheduler::Lane;

namespace {

constexpr int kProcess = 1;
// Track ids, which are also the order of the tracks in a viewer.
constexpr int kStepTrack = 1;
constexpr int kChargeTrack = 2;
constexpr int kFirstLaneTrack = 10;
constexpr int kTracksPerLane = 100000;

struct LaneNames {
  Lane lane;
  const char* lane_name;
  const char* charge_name;
};

/// In the order in which a viewer shows them.
constexpr std::array kLanes = {
    LaneNames{Lane::compute, "compute", "compute"},
    LaneNames{Lane::cpu_optimizer, "CPU optimizer", "CPU optimizer"},
    LaneNames{Lane::host_to_device, "host to device", "waiting for host to device"},
    LaneNames{Lane::device_to_host, "device to host", "waiting for device to host"},
    LaneNames{Lane::nvme_read, "nvme read", "waiting for nvme read"},
    LaneNames{Lane::nvme_write, "nvme write", "waiting for nvme write"}};
static_assert(kLanes.size() == scheduler::kLaneCount);

size_t position_of(Lane lane) {
  const auto found = std::find_if(kLanes.begin(), kLanes.end(),
                                  [&](const LaneNames& names) { return names.lane == lane; });
  return static_cast<size_t>(found - kLanes.begin());
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Puts spans of one lane on as few tracks as it takes for none to overlap.
class TrackAssignment {
 public:
  /// Spans must come in the order of their begins.
  int take(double begin, double end) {
    size_t track = 0;
    while (track < free_from_.size() && free_from_[track] > begin) {
      ++track;
    }
    if (track == free_from_.size()) {
      free_from_.push_back(0);
    }
    free_from_[track] = end;
    return static_cast<int>(track);
  }

 private:
  std::vector<double> free_from_;
};

/// Nanoseconds, so that ends and begins which are equal stay so when they are printed.
double rounded(double seconds) {
  return std::round(seconds * 1e9);
}

}  // namespace

TraceEventText::TraceEventText(TimelineTitle title) : title_(std::move(title)) {}

std::string TraceEventText::head() const {
  nlohmann::ordered_json budgets;
  if (title_.device) {
    budgets["device"] = title_.device->budget.count();
  }
  budgets["host"] = title_.host.budget.count();
  return fmt::format(
      "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"run\":{},\"budgets\":{}}},\n"
      "\"traceEvents\":[\n"
      "{{\"ph\":\"M\",\"pid\":{},\"name\":\"process_name\",\"args\":{{\"name\":{}}}}}",
      quoted(title_.name), budgets.dump(), kProcess, quoted("headrace: " + title_.name));
}

std::string TraceEventText::tail() {
  return "\n]}\n";
}

std::string TraceEventText::step(const StepTimeline& timeline) {
  if (!origin_) {
    origin_ = timeline.begin;
  }
  offset_ = seconds_between(*origin_, timeline.begin);
  name_track(kStepTrack, "step");
  add_span(kStepTrack, fmt::format("step {}", timeline.step), "step", 0, timeline.seconds,
           fmt::format("\"step\":{}", timeline.step));
  name_track(kChargeTrack, "time charged to");
  for (const Charge& charge : timeline.charges) {
    const char* name = charge.lane ? kLanes[position_of(*charge.lane)].charge_name : "other";
    const std::string_view cause = charge.lane ? scheduler::to_string(*charge.lane) : "other";
    add_span(kChargeTrack, name, "charge", charge.begin, charge.end,
             fmt::format("\"cause\":\"{}\"", cause));
  }
  add_lanes(timeline);
  add_memory(timeline);
  add_in_flight(timeline);
  return std::exchange(events_, {});
}

void TraceEventText::add(const std::string& event) {
  events_ += events_.empty() ? event : ",\n" + event;
}

void TraceEventText::name_track(int track, const std::string& name) {
  if (!named_tracks_.insert(track).second) {
    return;
  }
  add(
      fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_name\","
                  "\"args\":{{\"name\":{}}}}}",
                  kProcess, track, quoted(name)));
  add(
      fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"thread_sort_index\","
                  "\"args\":{{\"sort_index\":{}}}}}",
                  kProcess, track, track));
}

void TraceEventText::add_span(int track, const std::string& name, std::string_view category,
                              double begin, double end, const std::string& arguments) {
  const double from = rounded(offset_ + begin);
  const double to = rounded(offset_ + end);
  add(fmt::format(
      "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f},\"name\":{},"
      "\"cat\":\"{}\",\"args\":{{{}}}}}",
      kProcess, track, from / 1e3, (to - from) / 1e3, quoted(name), category, arguments));
}

void TraceEventText::add_counter(const std::string& name, double time, const std::string& values) {
  add(fmt::format("{{\"ph\":\"C\",\"pid\":{},\"ts\":{:.3f},\"name\":{},\"args\":{{{}}}}}", kProcess,
                  rounded(offset_ + time) / 1e3, quoted(name), values));
}

void TraceEventText::add_lanes(const StepTimeline& timeline) {
  std::vector<const StepTimeline::Event*> by_begin;
  for (const StepTimeline::Event& event : timeline.events) {
    by_begin.push_back(&event);
  }
  std::stable_sort(by_begin.begin(), by_begin.end(),
                   [](const auto* a, const auto* b) { return a->begin < b->begin; });
  std::array<TrackAssignment, kLanes.size()> tracks;
  for (const StepTimeline::Event* event : by_begin) {
    const size_t lane = position_of(event->lane);
    const int number = tracks[lane].take(event->begin, event->end);
    const int track = kFirstLaneTrack + static_cast<int>(lane) * kTracksPerLane + number;
    name_track(track, number == 0 ? kLanes[lane].lane_name
                                  : fmt::format("{} {}", kLanes[lane].lane_name, number + 1));
    add_span(track, event->name, scheduler::to_string(event->lane), event->begin, event->end,
             event->bytes > Bytes(0) ? fmt::format("\"bytes\":{}", event->bytes.count()) : "");
  }
}

void TraceEventText::add_memory(const StepTimeline& timeline) {
  for (const ArenaLevel& level : timeline.levels) {
    if (level.tier == Tier::device && !title_.device) {
      continue;
    }
    const TimelineTitle::Memory& memory = level.tier == Tier::device ? *title_.device : title_.host;
    const Bytes used = level.used + memory.fixed;
    add_counter(
        fmt::format("{} memory of {}", to_string(level.tier), format_bytes(memory.budget)),
        level.time,
        fmt::format("\"used\":{},\"free\":{}", used.count(), (memory.budget - used).count()));
  }
}

/// How many transfers the nvme lanes have under way: what the queue depth is made of.
void TraceEventText::add_in_flight(const StepTimeline& timeline) {
  struct Change {
    int read = 0;
    int write = 0;
  };
  std::map<double, Change> changes;  // by time
  for (const StepTimeline::Event& event : timeline.events) {
    if (event.lane == Lane::nvme_read) {
      ++changes[event.begin].read;
      --changes[event.end].read;
    } else if (event.lane == Lane::nvme_write) {
      ++changes[event.begin].write;
      --changes[event.end].write;
    }
  }
  Change now;
  for (const auto& [time, change] : changes) {
    now.read += change.read;
    now.write += change.write;
    add_counter("nvme transfers in flight", time,
                fmt::format("\"read\":{},\"write\":{}", now.read, now.write));
  }
}

TraceEventFile::TraceEventFile(std::string path, const TimelineTitle& title)
    : path_(std::move(path)), text_(title), file_(path_, std::ios::trunc) {
  put(text_.head());
  end_of_events_ = file_.tellp();
  put(TraceEventText::tail());
}

void TraceEventFile::write(const StepTimeline& timeline) {
  file_.seekp(end_of_events_);
  put(",\n" + text_.step(timeline));
  end_of_events_ = file_.tellp();
  put(TraceEventText::tail());
}

void TraceEventFile::put(const std::string& text) {
  file_ << text << std::flush;
  if (!file_) {
    throw IoError("cannot write the timeline", {.path = path_, .error_number = errno});
  }
}

void write_timeline_file(const std::string& path, const TimelineTitle& title,
                         const StepTimeline& timeline) {
  TraceEventText events(title);
  std::string text = events.head() + ",\n";
  text += events.step(timeline) + TraceEventText::tail();
  model::replace_file(path, text);
}

}  // namespace headrace::engine
