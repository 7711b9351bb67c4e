#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "aio/probe_load.h"

namespace headrace::aio {

/// What fio is to do; the same as our own load beside it.
struct FioJob {
  LoadKind kind = LoadKind::read;
  std::string path;  ///< an existing file
  Bytes file_size;
  Bytes block_size;
  int queue_depth = 1;
  double seconds = 1;
  bool direct = true;
  bool registered = false;  ///< buffers and files, where our engine has them registered
};

struct FioRun {
  std::string refused;  ///< why there is no rate; empty: there is
  double rate = 0;      ///< bytes per second, reads and writes
};

/// The arguments after the program's name.
std::vector<std::string> fio_arguments(const FioJob& job);

/// The rate in fio's JSON output; a refusal where it is not what fio prints.
FioRun parse_fio(const std::string& output);

/// Runs `program` with its buffers on huge pages and waits for it. A program that cannot be started
/// or fails is a refusal with the reason. InterruptedError, with the program ended, when cancelled.
FioRun run_fio(const FioJob& job, const std::atomic<bool>* cancelled,
               const std::string& program = "fio");

/// Our rate and fio's for one kind of load; medians over rounds that alternate.
struct FioRow {
  LoadKind kind = LoadKind::read;
  double ours = 0;
  double fio = 0;
  double ratio() const { return fio > 0 ? ours / fio : 0; }
};

struct FioComparison {
  std::string refused;  ///< why there are no rows
  std::vector<FioRow> rows;
};

/// Runs our load and fio's by turns, `rounds` times for each kind.
FioComparison compare_with_fio(const std::function<double(LoadKind)>& ours,
                               const std::function<FioRun(LoadKind)>& fio, int rounds);

/// "read", "write", "mixed".
const char* to_string(LoadKind kind);

}  // namespace headrace::aio
