#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>

#include "aio/fio_process.h"
#include "base/error.h"
#include "bench/io_run.h"

namespace headrace::bench {

namespace {

/// A signal handler can reach nothing else.
volatile std::sig_atomic_t stop_signal = 0;

std::vector<std::string> arguments_of(const IoJob& job) {
  std::vector<std::string> arguments{"--name=pass",
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
  if (job.mode == aio::LoadKind::mixed) {
    arguments.insert(arguments.end(), {"--rw=rw", "--rwmixread=50"});
  } else {
    arguments.push_back(std::string("--rw=") + to_string(job.mode));
  }
  if (job.kind == "io_uring") {
    arguments.insert(arguments.end(), {"--fixedbufs=1", "--registerfiles=1"});
  }
  return arguments;
}

}  // namespace

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
  const aio::FioOutput output = aio::run_fio_program("fio", arguments_of(job), nullptr);
  check_stopped();
  if (output.start_error != 0) {
    throw IoError("cannot run fio: install it",
                  {.path = "fio", .error_number = output.start_error});
  }
  if (!output.succeeded) {
    throw IoError("fio failed: " + output.text, {.path = "fio"});
  }
  try {
    // Notes may stand around the report.
    const size_t begin = output.text.find('{');
    const size_t end = output.text.rfind('}');
    const auto report = nlohmann::json::parse(output.text.substr(begin, end + 1 - begin));
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
