// Our I/O engine against fio, on the same file, on huge-page buffers, in alternated passes: GB/s
// (10^9 bytes) and CPU seconds per GB. Each side runs with the best block and depth of its own
// sweep.

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/command_line.h"
#include "base/error.h"
#include "bench/io_comparison.h"

namespace headrace::bench {
namespace {

struct Options {
  std::string path;
  std::string size = "4GiB";
  std::string sweep_size = "2GiB";
  std::vector<std::string> objects = {"1MiB", "1GiB"};
  std::string mode = "all";
  std::string submission = "interrupt";
  std::string json;
  int rounds = 5;
  bool single = false;
  std::string block = "1MiB";
  int depth = 256;
  std::string backend = "io_uring";
  bool adaptive = false;
};

/// A new file, written once in full so that no pass pays for a first use; removed at the end.
class BenchFile {
 public:
  BenchFile(std::string path, Bytes size) : path_(std::move(path)) {
    const int descriptor = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor < 0) {
      throw IoError("cannot make the file (one that exists is not touched)",
                    {.path = path_, .error_number = errno});
    }
    ::close(descriptor);
    try {
      fill(size);
    } catch (...) {
      remove();
      throw;
    }
  }
  BenchFile(const BenchFile&) = delete;
  BenchFile& operator=(const BenchFile&) = delete;
  ~BenchFile() { remove(); }

 private:
  void fill(Bytes size) const {
    const auto engine = aio::IoEngine::create({});
    const tiers::HostMemory memory(kMiB * 64, false);
    const aio::FileId file = engine->open(path_, false);
    engine->allocate(file, size);
    for (int64_t at = 0; at < size.count(); at += memory.size().count()) {
      check_stopped();
      engine
          ->submit({.operation = aio::IoOperation::write,
                    .io_class = aio::IoClass::write_back,
                    .file = file,
                    .offset = at,
                    .data = memory.data(),
                    .length = std::min(memory.size(), size - Bytes(at))})
          .wait();
    }
    engine->sync(file);
  }
  void remove() {
    if (::unlink(path_.c_str()) != 0) {
      fmt::print(stderr, "io_bench: {} is not removed\n", path_);
    }
  }

  std::string path_;
};

aio::SubmissionMode submission_of(const std::string& name) {
  return name == "sq_poll"   ? aio::SubmissionMode::sq_poll
         : name == "io_poll" ? aio::SubmissionMode::io_poll
                             : aio::SubmissionMode::interrupt;
}

std::vector<aio::LoadKind> modes_of(const std::string& name) {
  std::vector<aio::LoadKind> modes;
  for (const aio::LoadKind mode :
       {aio::LoadKind::read, aio::LoadKind::write, aio::LoadKind::mixed}) {
    if (name == "all" || name == to_string(mode)) {
      modes.push_back(mode);
    }
  }
  return modes;
}

void run_single(const Options& options, const IoJob& base, OurRunner& runner) {
  IoJob job = base;
  job.kind = options.backend;
  job.block = parse_bytes(options.block, "--block");
  job.depth = options.depth;
  for (int round = 0; round < options.rounds; ++round) {
    const IoResult result = runner.run(job);
    fmt::print("{} {} objects: {:.3f} GB/s, {:.4f} CPU s per GB ({}; {} huge pages)\n",
               to_string(job.mode), format_bytes(job.object), result.gb_per_second,
               result.cpu_seconds_per_gb, runner.description(), runner.huge_pages());
  }
}

void run(const Options& options) {
  install_stop_signals();
  const Bytes size = parse_bytes(options.size, "--size");
  ComparisonOptions comparison;
  comparison.path = options.path;
  comparison.size = size;
  comparison.sweep_size = std::min(size, parse_bytes(options.sweep_size, "--sweep-size"));
  comparison.rounds = options.rounds;
  std::vector<Bytes> objects;
  for (const std::string& object : options.objects) {
    objects.push_back(parse_bytes(object, "--object"));
    if (objects.back() * 2 > size) {
      throw UsageError(fmt::format("--size must be at least two objects of {}", object));
    }
  }
  const BenchFile file(options.path, size);
  nlohmann::json report = nlohmann::json::array();
  for (const Bytes object : objects) {
    const Bytes in_flight =
        options.single ? parse_bytes(options.block, "--block") * options.depth : kMiB * 256;
    OurRunner runner(submission_of(options.submission), options.adaptive,
                     OurRunner::memory_for(object, in_flight));
    for (const aio::LoadKind mode : modes_of(options.mode)) {
      if (options.single) {
        IoJob job;
        job.path = options.path;
        job.mode = mode;
        job.size = size;
        job.object = object;
        run_single(options, job, runner);
        continue;
      }
      const Comparison result = compare(comparison, mode, object, runner);
      fmt::print("{}\n", text_of(result));
      std::fflush(stdout);
      report.push_back(json_of(result));
    }
  }
  if (!options.json.empty()) {
    std::ofstream out(options.json);
    out << report.dump(2) << '\n';
    if (!out.flush()) {
      throw IoError("cannot write the report", {.path = options.json});
    }
  }
}

}  // namespace
}  // namespace headrace::bench

int main(int argc, char** argv) {
  headrace::bench::Options options;
  headrace::Command app("Our I/O engine against fio, in alternated passes over one file");
  app.add_option("path", options.path, "file to make; one that exists is refused")->required();
  app.add_option("--size", options.size, "bytes per pass")->capture_default_str();
  app.add_option("--sweep-size", options.sweep_size, "bytes per pass while looking for settings")
      ->capture_default_str();
  app.add_option("--object", options.objects, "bytes per request, one or more")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--mode", options.mode)
      ->check_one_of({"read", "write", "mixed", "all"})
      ->capture_default_str();
  app.add_option("--rounds", options.rounds)->check_positive()->capture_default_str();
  app.add_option("--submission", options.submission, "of ours")
      ->check_one_of({"interrupt", "sq_poll", "io_poll"})
      ->capture_default_str();
  app.add_option("--json", options.json, "file for the report");
  app.add_flag("--single", options.single, "ours alone, with --block and --depth");
  app.add_option("--block", options.block, "bytes per part")->capture_default_str();
  app.add_option("--depth", options.depth, "parts in flight")->capture_default_str();
  app.add_flag("--adaptive", options.adaptive, "ours looks for the depth while it runs");
  app.add_option("--backend", options.backend)
      ->check_one_of({"io_uring", "threads"})
      ->capture_default_str();
  if (const auto exit_code = app.parse(argc, argv)) {
    return *exit_code;
  }
  try {
    headrace::bench::run(options);
  } catch (const headrace::Error& error) {
    fmt::print(stderr, "io_bench: {}\n", error.what());
    return headrace::exit_code(error.kind());
  }
  return 0;
}
