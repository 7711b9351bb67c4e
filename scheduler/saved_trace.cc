#include "scheduler/saved_trace.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <string_view>

#include "base/error.h"
#include "scheduler/trace_codec.h"

namespace headrace::scheduler {

namespace {

/// "HRTRACE", a zero, then three little-endian numbers of 8 bytes: the format, the length of the
/// record and its XXH3; then the record.
constexpr std::string_view kMagic{"HRTRACE\0", 8};
constexpr uint64_t kFormatVersion = 1;
constexpr size_t kHeaderBytes = 32;

void append_number(std::string& to, uint64_t number) {
  for (size_t i = 0; i < sizeof(number); ++i) {
    to.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  }
}

uint64_t number_at(std::string_view bytes, size_t offset) {
  uint64_t number = 0;
  for (size_t i = sizeof(number); i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[offset + i]);
  }
  return number;
}

std::string_view record_of(std::string_view bytes, const std::string& source) {
  if (!bytes.starts_with(kMagic)) {
    throw InputError(source + " is not a saved trace; `headrace trace record` makes one");
  }
  if (bytes.size() < kHeaderBytes) {
    throw InputError(fmt::format("{} is truncated: {} bytes are no whole header; record it again",
                                 source, bytes.size()));
  }
  const uint64_t version = number_at(bytes, 8);
  if (version > kFormatVersion) {
    throw InputError(fmt::format(
        "{} has format {}, this version of Headrace knows formats up to {}; use a newer one",
        source, version, kFormatVersion));
  }
  const uint64_t length = number_at(bytes, 16);
  const std::string_view record = bytes.substr(kHeaderBytes);
  if (record.size() < length) {
    throw InputError(
        fmt::format("{} is truncated: {} of {} bytes of its record are there; record it again",
                    source, record.size(), length));
  }
  if (version == 0 || record.size() > length ||
      XXH3_64bits(record.data(), record.size()) != number_at(bytes, 24)) {
    throw InputError(source + " is damaged: its checksum is wrong; record it again");
  }
  return record;
}

}  // namespace

CompileInput SavedTrace::input(const SavedRound& round) const {
  return {&trace, &objects, budgets, rates, round.schedule.initial};
}

std::string encode_trace(const SavedTrace& trace) {
  const proto::TraceRecord record = to_record(trace);
  if (static_cast<int64_t>(record.ByteSizeLong() + kHeaderBytes) > kLongestTraceFile.count()) {
    throw InputError(fmt::format("a trace of {} operations is too long to be saved",
                                 trace.trace.operations.size()));
  }
  const std::string text = record.SerializeAsString();
  std::string bytes(kMagic);
  append_number(bytes, kFormatVersion);
  append_number(bytes, text.size());
  append_number(bytes, XXH3_64bits(text.data(), text.size()));
  return bytes + text;
}

SavedTrace decode_trace(const std::string& bytes, const std::string& source) {
  const std::string_view text = record_of(bytes, source);
  proto::TraceRecord record;
  if (!record.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    throw InputError(source + " is damaged: its record cannot be read");
  }
  try {
    return from_record(record);
  } catch (const InputError& error) {
    throw InputError(fmt::format("{} is no sound trace: {}", source, error.what()));
  }
}

}  // namespace headrace::scheduler
