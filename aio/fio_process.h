#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace headrace::aio {

/// How a run of fio ended.
struct FioOutput {
  int start_error = 0;  ///< errno where the program could not be started
  bool succeeded = false;
  std::string text;  ///< what it printed, errors included
};

/// Runs `program` with its buffers (--mem=malloc) on huge pages and waits for it.
/// InterruptedError, with the program ended, when cancelled (may be null). Thread-safe.
FioOutput run_fio_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::atomic<bool>* cancelled);

}  // namespace headrace::aio
