#pragma once

#include <functional>
#include <optional>

#include "bench/io_run.h"
#include "tiers/host_memory.h"

namespace headrace::bench {

/// Passes through our engine, all from and to one memory on huge pages.
class OurRunner {
 public:
  OurRunner(aio::SubmissionMode submission, bool adaptive_depth, Bytes memory_size);

  /// The CPU time is that between the first request and the last end, without the set-up.
  IoResult run(const IoJob& job);
  /// What the last engine used.
  const std::string& description() const { return description_; }
  const char* huge_pages() const { return memory_.huge_pages(); }

  /// Memory that jobs up to this object size, block size and depth need.
  static Bytes memory_for(Bytes object, Bytes in_flight_max);

 private:
  aio::SubmissionMode submission_;
  bool adaptive_depth_;
  tiers::HostMemory memory_;
  std::string description_;
};

}  // namespace headrace::bench
