#include "aio/probe_fio.h"

#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "aio/fio_process.h"
#include "base/error.h"
#include "base/median.h"

namespace headrace::aio {

namespace {

constexpr double kRampSeconds = 0.3;
constexpr size_t kMessageLength = 200;

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
      return refusal("fio: " + errno_text(error));
    }
    return {.refused = {},
            .rate = job.at("read").at("bw_bytes").get<double>() +
                    job.at("write").at("bw_bytes").get<double>()};
  } catch (const nlohmann::json::exception&) {
    return refusal("fio printed no report: " + output.substr(0, kMessageLength));
  }
}

FioRun run_fio(const FioJob& job, const std::atomic<bool>* cancelled, const std::string& program) {
  const FioOutput output = run_fio_program(program, fio_arguments(job), cancelled);
  if (output.start_error == ENOENT) {
    return refusal("fio is not installed: apt-get install fio");
  }
  if (output.start_error != 0) {
    return refusal("fio cannot be started: " + errno_text(output.start_error));
  }
  if (!output.succeeded) {
    return refusal("fio failed: " + output.text.substr(0, kMessageLength));
  }
  return parse_fio(output.text);
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
    comparison.rows.push_back({.kind = kind, .ours = median(our_rates), .fio = median(fio_rates)});
  }
  return comparison;
}

}  // namespace headrace::aio
