// Files that carry a checksum of their own: the input is read as it stands, and once more as what
// a file with the right checksum holds, so that the checksum does not keep everything out.
#include <fmt/format.h>
#include <xxhash.h>

#include "aio/profile.h"
#include "base/error.h"
#include "fuzz/targets.h"
#include "scheduler/saved_trace.h"

namespace headrace::fuzz {

namespace {

/// A trace file around a record; docs/formats.md.
std::string trace_file(std::string_view record) {
  std::string bytes("HRTRACE\0", 8);
  for (const uint64_t number : {uint64_t{1}, uint64_t{record.size()},
                                uint64_t{XXH3_64bits(record.data(), record.size())}}) {
    for (int i = 0; i < 8; ++i) {
      bytes.push_back(static_cast<char>(number >> (8 * i)));
    }
  }
  return bytes + std::string(record);
}

std::string profile_file(std::string_view profile) {
  proto::ProfileFile file;
  file.set_format_version(1);
  file.set_profile(std::string(profile));
  file.set_xxh3_64(XXH3_64bits(profile.data(), profile.size()));
  return file.SerializeAsString();
}

template <class Read>
void read_both(std::string_view input, const std::string& wrapped, const Read& read) {
  try {
    read(std::string(input));
  } catch (const InputError&) {
    read(wrapped);
  }
}

}  // namespace

void read_trace(std::string_view input) {
  read_both(input, trace_file(input), [](const std::string& bytes) {
    const scheduler::SavedTrace trace = scheduler::decode_trace(bytes, "input");
    for (const scheduler::SavedRound& round : trace.rounds) {
      scheduler::check_schedule(trace.input(round), round.schedule);
      scheduler::simulate(trace.input(round), round.schedule);
    }
  });
}

void read_profile(std::string_view input) {
  read_both(input, profile_file(input),
            [](const std::string& bytes) { aio::to_json(aio::decode_profile(bytes, "input")); });
}

}  // namespace headrace::fuzz
