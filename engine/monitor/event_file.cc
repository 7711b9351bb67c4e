#include "engine/monitor/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/process.h"
#include "engine/rewrite_file.h"

namespace headrace::engine {

namespace {

namespace fs = std::filesystem;

constexpr const char* kFileVersion = "brain.Event:2";
constexpr uint64_t kLargestRecord = uint64_t{1} << 20;  ///< far more than any of ours

/// TFRecord's mask: a CRC of data that holds CRCs is weak.
uint32_t masked(uint32_t crc) {
  constexpr uint32_t kDelta = 0xa282ead8;
  return ((crc >> 15U) | (crc << 17U)) + kDelta;
}

template <class Number>
std::string little_endian(Number number) {
  std::string bytes(sizeof number, '\0');
  for (size_t i = 0; i < sizeof number; ++i) {
    bytes[i] = static_cast<char>(number >> (8 * i));
  }
  return bytes;
}

template <class Number>
Number from_little_endian(std::string_view bytes) {
  Number number = 0;
  for (size_t i = 0; i < sizeof number; ++i) {
    number |= static_cast<Number>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  }
  return number;
}

double now_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

std::optional<std::string> read_bytes(std::istream& file, size_t count) {
  std::string bytes(count, '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(count));
  return file ? std::optional(bytes) : std::nullopt;
}

/// Empty at the end of the file and where a record is not whole.
std::optional<std::string> read_record(std::istream& file) {
  const auto length = read_bytes(file, sizeof(uint64_t));
  const auto length_crc = read_bytes(file, sizeof(uint32_t));
  if (!length || !length_crc ||
      from_little_endian<uint32_t>(*length_crc) != masked(crc32c(*length)) ||
      from_little_endian<uint64_t>(*length) > kLargestRecord) {
    return std::nullopt;
  }
  auto data = read_bytes(file, from_little_endian<uint64_t>(*length));
  const auto data_crc = read_bytes(file, sizeof(uint32_t));
  if (!data || !data_crc || from_little_endian<uint32_t>(*data_crc) != masked(crc32c(*data))) {
    return std::nullopt;
  }
  return data;
}

/// Takes the points out of `path` that are not to be kept.
void trim(const std::string& path, const KeepScalar& keep) {
  rewrite_file(path, "cannot rewrite the event file", [&](std::ostream& kept) {
    for (tensorboard::Event event : read_events(path)) {
      if (event.has_summary()) {
        tensorboard::Summary summary;
        for (const auto& value : event.summary().value()) {
          if (keep(value.tag(), event.step())) {
            *summary.add_value() = value;
          }
        }
        if (summary.value_size() == 0) {
          continue;
        }
        *event.mutable_summary() = summary;
      }
      kept << tfrecord(event.SerializeAsString());
    }
  });
}

/// The event files in a folder whose names end so.
std::vector<std::string> event_files_of(const std::string& folder, const std::string& ending) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with("events.out.tfevents.") && name.ends_with(ending)) {
      files.push_back(at->path().string());
    }
  }
  if (error) {
    throw IoError("cannot list the folder of event files",
                  {.path = folder, .error_number = error.value()});
  }
  return files;
}

}  // namespace

std::string tfrecord(const std::string& bytes) {
  const std::string length = little_endian(static_cast<uint64_t>(bytes.size()));
  return length + little_endian(masked(crc32c(length))) + bytes +
         little_endian(masked(crc32c(bytes)));
}

std::vector<tensorboard::Event> read_events(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw IoError("cannot read the event file", {.path = path, .error_number = errno});
  }
  std::vector<tensorboard::Event> events;
  while (const auto record = read_record(file)) {
    if (!events.emplace_back().ParseFromString(*record)) {
      events.pop_back();
      break;
    }
  }
  // What could not be read must not be taken for the end of the file: the rest would be lost.
  if (file.bad()) {
    throw IoError("cannot read the event file", {.path = path, .error_number = errno});
  }
  return events;
}

TensorBoardSink::TensorBoardSink(const std::string& folder, const std::string& run,
                                 const KeepScalar& keep, int64_t samples) {
  if (const std::error_code error = folders_.make(folder)) {
    throw IoError("cannot make the folder of tensorboard.output_path and job_name",
                  {.path = folder, .error_number = error.value()});
  }
  const std::string ending = "." + (run.empty() ? "headrace" : run);
  if (keep && !run.empty()) {
    for (const std::string& file : event_files_of(folder, ending)) {
      trim(file, keep);
    }
  }
  const auto second = static_cast<int64_t>(now_seconds());
  std::error_code error;
  for (int number = 0; path_.empty() || fs::exists(path_, error); ++number) {
    path_ = fmt::format("{}/events.out.tfevents.{:010}.{}.{}.{}{}", folder, second, host_name(),
                        ::getpid(), number, ending);
  }
  later_.emplace(path_, "cannot make the event file");
  if (keep) {
    resumed_at_ = samples;
  }
}

void TensorBoardSink::begin() {
  file_ = later_->begin();
  later_.reset();
  tensorboard::Event version;
  version.set_file_version(kFileVersion);
  append(std::move(version));
  if (resumed_at_) {
    // For a TensorBoard that has already read what was taken out.
    tensorboard::Event start;
    start.set_step(*resumed_at_ + 1);
    start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
    append(std::move(start));
  }
}

void TensorBoardSink::write(const std::vector<Scalar>& scalars) {
  if (later_) {
    begin();
  }
  std::map<int64_t, tensorboard::Event> events;  // one for all points at the same place
  for (const Scalar& scalar : scalars) {
    tensorboard::Event& event = events[scalar.samples];
    event.set_step(scalar.samples);
    auto& value = *event.mutable_summary()->add_value();
    value.set_tag(scalar.tag);
    value.set_simple_value(static_cast<float>(scalar.value));
  }
  for (auto& [samples, event] : events) {
    append(std::move(event));
  }
}

void TensorBoardSink::append(tensorboard::Event event) {
  event.set_wall_time(now_seconds());
  file_ << tfrecord(event.SerializeAsString()) << std::flush;
  if (!file_) {
    throw IoError("cannot write the event file", {.path = path_, .error_number = errno});
  }
}

}  // namespace headrace::engine
