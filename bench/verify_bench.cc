// `headrace verify`'s check of every extent of a run, against fio reading the same file: reading
// and checksums overlap, so checking should take no longer than reading. The two alternate.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "aio/io.h"
#include "base/command_line.h"
#include "base/error.h"
#include "base/median.h"
#include "base/random.h"
#include "base/seconds.h"
#include "bench/io_run.h"
#include "tiers/extent_store.h"
#include "tiers/host_memory.h"

namespace headrace {
namespace {

struct Options {
  std::string path;
  std::string size = "4GiB";
  std::string object = "64MiB";
  int rounds = 5;
  std::string json;
};

/// A store whose committed generation is `size` bytes of random values.
std::unique_ptr<tiers::ExtentStore> make_store(const std::string& folder, Bytes size,
                                               Bytes object) {
  tiers::ExtentStoreOptions options;
  options.paths = {folder};
  options.run_id = "verify-bench";
  options.disk_budget = size + size / 4 + kGiB;
  auto store = tiers::ExtentStore::create(options, aio::IoEngine::create({}));
  const tiers::HostMemory value(object, false);
  Random random(1, 0);
  auto* words = reinterpret_cast<uint32_t*>(value.data());
  std::generate_n(words, value.size().count() / 4, [&] { return random.next_u32(); });
  for (int64_t i = 0; i < size / object; ++i) {
    store->write(fmt::format("value.{}", i), value.bytes(), true, aio::IoClass::write_back).wait();
  }
  store->commit(1, {});
  return store;
}

double verify_rate(tiers::ExtentStore& store) {
  Bytes checked;
  const auto begin = std::chrono::steady_clock::now();
  const auto damage = store.verify([&](Bytes done, Bytes) { checked = done; });
  const double seconds = seconds_since(begin);
  if (!damage.empty()) {
    throw IoError("what was just written is damaged: " + damage.front().text, {});
  }
  return static_cast<double>(checked.count()) / 1e9 / seconds;
}

void run(const Options& options) {
  bench::install_stop_signals();
  const Bytes object = parse_bytes(options.object, "--object");
  const Bytes size = object * (parse_bytes(options.size, "--size") / object);
  const auto store = make_store(options.path, size, object);
  bench::IoJob read;
  read.path = store->directories().front() + "/data-0";
  read.size = size;
  read.kind = "io_uring";
  read.block = kMiB;
  read.depth = 32;
  std::vector<double> ours;
  std::vector<double> fio;
  std::vector<double> ratios;
  for (int round = 0; round < options.rounds; ++round) {
    bench::check_stopped();
    // In turn, for who comes second may find the file in a cache below the virtual drive.
    const bool is_first = round % 2 == 0;
    if (is_first) {
      ours.push_back(verify_rate(*store));
    }
    fio.push_back(bench::run_fio(read).gb_per_second);
    if (!is_first) {
      ours.push_back(verify_rate(*store));
    }
    ratios.push_back(ours.back() / fio.back());
    fmt::print("verify {:.2f} GB/s, fio {:.2f} GB/s, ratio {:.3f}\n", ours.back(), fio.back(),
               ratios.back());
  }
  fmt::print("{} in {} values: verify {:.2f} GB/s, fio {:.2f} GB/s, ratio {:.3f} (medians)\n",
             format_bytes(size), size / object, median(ours), median(fio), median(ratios));
  if (!options.json.empty()) {
    std::ofstream out(options.json);
    out << nlohmann::json{{"name", "verify"},
                          {"ours", median(ours) * 1e9},
                          {"other", median(fio) * 1e9},
                          {"ratio", median(ratios)}};
    out.close();
    if (!out) {
      throw IoError("cannot write the report", {.path = options.json});
    }
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::Options options;
  headrace::Command app("headrace verify against fio reading the same file");
  app.add_option("folder", options.path, "on the drive to measure")->required();
  app.add_option("--size", options.size, "bytes to check");
  app.add_option("--object", options.object, "bytes of each value");
  app.add_option("--rounds", options.rounds, "alternated measurements");
  app.add_option("--json", options.json, "also write the report here");
  if (const auto exit_code = app.parse(argc, argv)) {
    return *exit_code;
  }
  try {
    headrace::run(options);
  } catch (const headrace::Error& error) {
    fmt::print(stderr, "verify_bench: {}\n", error.what());
    return headrace::exit_code(error.kind());
  }
  return 0;
}
