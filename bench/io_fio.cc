#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "bench/io_run.h"

namespace headrace::bench {

namespace {

/// A signal handler can reach nothing else.
volatile std::sig_atomic_t stop_signal = 0;

/// Owns the reading end of a pipe.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_.data(), O_CLOEXEC) != 0) {
      throw IoError("cannot make a pipe", {.path = "fio", .error_number = errno});
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_write_end();
    ::close(ends_[0]);
  }
  int write_end() const { return ends_[1]; }
  void close_write_end() {
    if (ends_[1] >= 0) {
      ::close(ends_[1]);
      ends_[1] = -1;
    }
  }
  std::string read_all() const {
    std::string text;
    std::array<char, 4096> buffer{};
    for (;;) {
      const ssize_t got = ::read(ends_[0], buffer.data(), buffer.size());
      if (got > 0) {
        text.append(buffer.data(), static_cast<size_t>(got));
      } else if (got == 0) {
        return text;
      } else if (errno != EINTR) {
        throw IoError("cannot read fio's report", {.path = "fio", .error_number = errno});
      }
    }
  }

 private:
  std::array<int, 2> ends_{-1, -1};
};

std::vector<std::string> command_of(const IoJob& job) {
  std::vector<std::string> command{"fio",
                                   "--name=pass",
                                   "--filename=" + job.path,
                                   "--size=" + std::to_string(job.size.count()),
                                   "--bs=" + std::to_string(job.block.count()),
                                   "--iodepth=" + std::to_string(job.depth),
                                   "--ioengine=" + job.kind,
                                   "--direct=1",
                                   "--gtod_reduce=1",
                                   "--scramble_buffers=0",
                                   "--mem=malloc",
                                   "--iomem_align=2m",
                                   "--fallocate=none",
                                   "--output-format=json"};
  if (job.mode == IoMode::mixed) {
    command.insert(command.end(), {"--rw=rw", "--rwmixread=50"});
  } else {
    command.push_back(job.mode == IoMode::read ? "--rw=read" : "--rw=write");
  }
  if (job.kind == "io_uring") {
    command.insert(command.end(), {"--fixedbufs=1", "--registerfiles=1"});
  }
  return command;
}

/// Huge pages for fio: its own option (mmaphuge) needs pages that were set aside beforehand, so its
/// buffers come from malloc, which this tunable of glibc makes ask for transparent ones.
std::vector<std::string> environment() {
  std::vector<std::string> variables{"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("GLIBC_TUNABLES=")) {
      variables.emplace_back(*variable);
    }
  }
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    result.push_back(text.data());
  }
  result.push_back(nullptr);
  return result;
}

/// Runs the command and returns its output.
std::string output_of(std::vector<std::string> command) {
  std::vector<std::string> variables = environment();
  Pipe pipe;
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe.write_end(), STDOUT_FILENO);
  pid_t child = -1;
  const int refused = ::posix_spawnp(&child, command.front().c_str(), &actions, nullptr,
                                     pointers(command).data(), pointers(variables).data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (refused != 0) {
    throw IoError("cannot run fio: install it", {.path = "fio", .error_number = refused});
  }
  pipe.close_write_end();
  const std::string output = pipe.read_all();
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) {
      throw IoError("cannot wait for fio", {.path = "fio", .error_number = errno});
    }
  }
  check_stopped();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw IoError("fio failed: " + output, {.path = "fio"});
  }
  return output;
}

}  // namespace

const char* name_of(IoMode mode) {
  return mode == IoMode::read ? "read" : mode == IoMode::write ? "write" : "mixed";
}

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { stop_signal = signal; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (::sigaction(signal, &action, nullptr) != 0) {
      throw InternalError("sigaction failed");
    }
  }
}

void check_stopped() {
  if (stop_signal != 0) {
    throw InterruptedError("stopped by a signal; the file is removed");
  }
}

IoResult run_fio(const IoJob& job) {
  check_stopped();
  const std::string output = output_of(command_of(job));
  try {
    // Notes may come before the report.
    const auto report = nlohmann::json::parse(output.substr(output.find('{')));
    const auto& pass = report.at("jobs").at(0);
    double bytes = 0;
    double runtime_ms = 0;
    for (const char* direction : {"read", "write"}) {
      bytes += pass.at(direction).at("io_bytes").get<double>();
      runtime_ms = std::max(runtime_ms, pass.at(direction).at("runtime").get<double>());
    }
    const double cpu_share =
        (pass.at("usr_cpu").get<double>() + pass.at("sys_cpu").get<double>()) / 100;
    const double seconds = runtime_ms / 1000;
    return {.gb_per_second = bytes / 1e9 / seconds,
            .cpu_seconds_per_gb =
                cpu_share * pass.at("job_runtime").get<double>() / 1000 / (bytes / 1e9)};
  } catch (const std::exception& error) {
    throw IoError(std::string("fio's report cannot be read: ") + error.what(), {.path = "fio"});
  }
}

}  // namespace headrace::bench
