#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "tools/command.h"

namespace headrace::tools {

namespace {

// The one piece of process-wide state: a signal handler has no other way to say what it saw.
std::atomic<bool> stop_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  if (stop_flag.exchange(true)) {
    std::_Exit(exit_code(ErrorKind::interrupted));
  }
}

}  // namespace

const std::atomic<bool>& stop_requested() {
  return stop_flag;
}

void watch_signals() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

}  // namespace headrace::tools
