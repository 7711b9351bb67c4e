#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/io_ours.h"
#include "bench/io_run.h"

namespace headrace::bench {

struct ComparisonOptions {
  std::string path;  ///< of the file, which is there and written
  Bytes size;
  Bytes sweep_size;  ///< of the passes that look for the best settings
  int rounds = 5;
};

/// Ours against fio, each with the best settings of its own sweep, and against fio with our
/// settings, in alternated passes. The CPU time per GB depends on the block size more than on
/// anything else, and ours cannot be larger than the object.
struct Comparison {
  IoJob fio_job;
  IoJob our_job;
  IoJob fio_same_job;         ///< our block and depth
  std::vector<IoResult> fio;  ///< by round
  std::vector<IoResult> fio_same;
  std::vector<IoResult> ours;

  double fio_rate() const;  ///< medians over the rounds
  double our_rate() const;
  double fio_cpu() const;
  double our_cpu() const;
  double rate_ratio() const;  ///< median of the rounds' ratios, ours to fio's
  double cpu_ratio() const;
  double rate_ratio_same() const;  ///< the same against fio with our settings
  double cpu_ratio_same() const;
};

Comparison compare(const ComparisonOptions& options, aio::LoadKind mode, Bytes object,
                   OurRunner& runner);
std::string text_of(const Comparison& comparison);
nlohmann::json json_of(const Comparison& comparison);

}  // namespace headrace::bench
