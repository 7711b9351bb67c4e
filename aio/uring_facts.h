#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/io.h"

namespace headrace::aio {

/// One way to set a ring up that was tried.
struct RingTrial {
  std::string setup;  ///< "single issuer, deferred task work"
  int error = 0;      ///< errno; 0: it works
};

/// What decides whether io_uring can be used, and how.
struct UringFacts {
  std::string kernel;                  ///< "6.1.0-18-amd64"
  std::optional<int64_t> disabled;     ///< kernel.io_uring_disabled; nothing: no such setting
  bool has_seccomp_filter = false;     ///< on this process
  std::vector<RingTrial> setups;       ///< of the usual mode, the cheapest first, until one works
  std::optional<int> submission_poll;  ///< errno of the last trial of that mode; nothing: not tried
  bool has_operations = false;         ///< every operation that transfers need

  bool works() const { return !setups.empty() && setups.back().error == 0 && has_operations; }
};

/// The texts of the system, from /proc below `root`.
UringFacts read_uring_facts(const std::string& root = "");

/// The same with the rings tried on this machine. Nothing is logged; thread-safe.
UringFacts try_uring();

/// Tries the flag sets of a mode, cheapest first, until one works.
std::vector<RingTrial> try_ring_setups(SubmissionMode mode);

}  // namespace headrace::aio
