#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "tools/command.h"

namespace headrace::tools {

namespace {

// Process-wide state: a signal handler has no other way to say what it saw and to know what to do.
std::atomic<bool> stop_flag{false};
std::atomic<bool> terminal_taken{false};
static_assert(std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  if (stop_flag.exchange(true)) {
    if (terminal_taken) {
      // The process ends: there is nobody to tell that this failed.
      [[maybe_unused]] const auto written =
          ::write(STDOUT_FILENO, kTerminalRestore, std::strlen(kTerminalRestore));
    }
    std::_Exit(exit_code(ErrorKind::interrupted));
  }
}

}  // namespace

const std::atomic<bool>& stop_requested() {
  return stop_flag;
}

void set_terminal_taken(bool taken) {
  terminal_taken = taken;
}

void watch_signals() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  // The terminal is gone; with nohup the process is to go on all the same.
  if (std::signal(SIGHUP, on_signal) == SIG_IGN) {
    std::signal(SIGHUP, SIG_IGN);
  }
}

}  // namespace headrace::tools
