#include "aio/probe_fio.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <system_error>

#include "aio/probe_search.h"
#include "base/error.h"

namespace headrace::aio {

namespace {

constexpr double kRampSeconds = 0.3;
constexpr size_t kMessageLength = 200;
constexpr int kPollMilliseconds = 50;

/// glibc asks for huge pages for large blocks of malloc: fio's buffers are one such block.
constexpr const char* kHugePages = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";

std::string error_text(int number) {
  return std::generic_category().message(number);
}

/// The reading end of a pipe and a process that writes into it. The destructor ends the process.
class Child {
 public:
  Child(const std::string& program, const std::vector<std::string>& arguments) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw InternalError("pipe2 failed: " + error_text(errno));
    }
    output_ = ends[0];
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    start_error_ = start(program, arguments, actions);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (is_running()) {
      ::kill(process_, SIGKILL);
      wait();
    }
    ::close(output_);
  }

  int start_error() const { return start_error_; }

  /// Everything it writes, until it ends.
  std::string read_all(const std::atomic<bool>* cancelled) const {
    std::string text;
    std::array<char, 4096> buffer{};
    for (;;) {
      if (cancelled != nullptr && cancelled->load()) {
        throw InterruptedError("the probe was stopped; its test file is removed");
      }
      pollfd waiting{.fd = output_, .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, kPollMilliseconds) <= 0) {
        continue;  // nothing yet, or a signal
      }
      const ssize_t length = ::read(output_, buffer.data(), buffer.size());
      if (length < 0 && errno == EINTR) {
        continue;
      }
      if (length <= 0) {
        return text;
      }
      text.append(buffer.data(), static_cast<size_t>(length));
    }
  }

  /// Its exit status as of waitpid.
  int wait() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return status;
  }

 private:
  bool is_running() const { return process_ > 0; }

  int start(const std::string& program, const std::vector<std::string>& arguments,
            const posix_spawn_file_actions_t& actions) {
    std::vector<std::string> texts = {program};
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    pointers.reserve(texts.size() + 1);
    for (std::string& text : texts) {
      pointers.push_back(text.data());
    }
    pointers.push_back(nullptr);
    std::string huge_pages = kHugePages;
    std::vector<char*> environment = {huge_pages.data()};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (!std::string_view(*entry).starts_with("GLIBC_TUNABLES=")) {
        environment.push_back(*entry);
      }
    }
    environment.push_back(nullptr);
    const int error = ::posix_spawnp(&process_, program.c_str(), &actions, nullptr, pointers.data(),
                                     environment.data());
    process_ = error == 0 ? process_ : -1;
    return error;
  }

  int output_ = -1;
  pid_t process_ = -1;
  int start_error_ = 0;
};

FioRun refusal(const std::string& reason) {
  return {.refused = reason, .rate = 0};
}

}  // namespace

const char* to_string(LoadKind kind) {
  switch (kind) {
    case LoadKind::read:
      return "read";
    case LoadKind::write:
      return "write";
    case LoadKind::mixed:
      return "mixed";
  }
  return "";
}

std::vector<std::string> fio_arguments(const FioJob& job) {
  const char* const pattern = job.kind == LoadKind::mixed ? "rw" : to_string(job.kind);
  return {"--name=headrace",
          "--filename=" + job.path,
          fmt::format("--rw={}", pattern),
          "--rwmixread=50",
          fmt::format("--size={}", job.file_size),
          fmt::format("--bs={}", job.block_size),
          fmt::format("--iodepth={}", job.queue_depth),
          "--ioengine=io_uring",
          fmt::format("--direct={}", job.direct ? 1 : 0),
          fmt::format("--fixedbufs={}", job.registered ? 1 : 0),
          fmt::format("--registerfiles={}", job.registered ? 1 : 0),
          "--mem=malloc",
          "--allow_file_create=0",
          "--time_based=1",
          fmt::format("--ramp_time={}ms", std::lround(kRampSeconds * 1e3)),
          fmt::format("--runtime={}ms", std::lround(job.seconds * 1e3)),
          "--output-format=json"};
}

FioRun parse_fio(const std::string& output) {
  const size_t begin = output.find('{');  // warnings may stand before it
  const auto json = begin == std::string::npos
                        ? nlohmann::json()
                        : nlohmann::json::parse(output.substr(begin), nullptr, false);
  try {
    const auto& job = json.at("jobs").at(0);
    if (const int error = job.at("error").get<int>(); error != 0) {
      return refusal("fio: " + error_text(error));
    }
    return {.refused = {},
            .rate = job.at("read").at("bw_bytes").get<double>() +
                    job.at("write").at("bw_bytes").get<double>()};
  } catch (const nlohmann::json::exception&) {
    return refusal("fio printed no report: " + output.substr(0, kMessageLength));
  }
}

FioRun run_fio(const FioJob& job, const std::atomic<bool>* cancelled, const std::string& program) {
  Child child(program, fio_arguments(job));
  if (child.start_error() == ENOENT) {
    return refusal("fio is not installed: apt-get install fio");
  }
  if (child.start_error() != 0) {
    return refusal("fio cannot be started: " + error_text(child.start_error()));
  }
  const std::string output = child.read_all(cancelled);
  const int status = child.wait();
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return refusal("fio failed: " + output.substr(0, kMessageLength));
  }
  return parse_fio(output);
}

FioComparison compare_with_fio(const std::function<double(LoadKind)>& ours,
                               const std::function<FioRun(LoadKind)>& fio, int rounds) {
  FioComparison comparison;
  for (const LoadKind kind : {LoadKind::read, LoadKind::write, LoadKind::mixed}) {
    std::vector<double> our_rates;
    std::vector<double> fio_rates;
    for (int round = 0; round < rounds; ++round) {
      const FioRun run = fio(kind);
      if (!run.refused.empty()) {
        return {.refused = run.refused, .rows = {}};
      }
      fio_rates.push_back(run.rate);
      our_rates.push_back(ours(kind));
    }
    comparison.rows.push_back(
        {.kind = kind, .ours = median_of(our_rates), .fio = median_of(fio_rates)});
  }
  return comparison;
}

}  // namespace headrace::aio
