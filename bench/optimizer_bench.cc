// Optimizer updates against a kernel that moves the same bytes through the same arrays and computes
// nothing, alternated in one process: the memory of a shared machine changes its speed, the ratio
// of neighbours stays. Prints medians; the last column is the median of the ratios.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/command_line.h"
#include "base/error.h"
#include "base/median.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/seconds.h"
#include "bench/optimizer_traffic.h"
#include "engine/optimizer/update.h"
#include "tiers/host_memory.h"

namespace {

using headrace::Bytes;
using headrace::DType;
using headrace::Elements;
using headrace::median;
using headrace::bench::TrafficArrays;
using headrace::engine::OptimizerKind;
using headrace::engine::UpdateOptions;
using headrace::engine::UpdateShard;

enum class Master : uint8_t {
  f32,    ///< fp32 master and bf16 weight
  split,  ///< bf16 weight and the half that completes it
  none,   ///< bf16 weight
};

struct Variant {
  const char* name;
  OptimizerKind kind;
  double momentum;
  Master master;
  DType moments;
  DType gradient;
};

constexpr Variant kVariants[] = {
    {"adam, f32 gradient", OptimizerKind::adam, 0, Master::f32, DType::f32, DType::f32},
    {"adam, bf16 gradient", OptimizerKind::adam, 0, Master::f32, DType::f32, DType::bf16},
    {"adam, split, bf16 gradient", OptimizerKind::adam, 0, Master::split, DType::f32, DType::bf16},
    {"adam, split, bf16 moments and gradient", OptimizerKind::adam, 0, Master::split, DType::bf16,
     DType::bf16},
    {"adam, bf16 gradient, 8-bit moments", OptimizerKind::adam, 0, Master::f32, DType::u8,
     DType::bf16},
    {"adam, split, bf16 gradient, 8-bit moments", OptimizerKind::adam, 0, Master::split, DType::u8,
     DType::bf16},
    {"adam, all bf16, no master", OptimizerKind::adam, 0, Master::none, DType::bf16, DType::bf16},
    {"lion, f32 gradient", OptimizerKind::lion, 0, Master::f32, DType::f32, DType::f32},
    {"lion, split, bf16 gradient", OptimizerKind::lion, 0, Master::split, DType::f32, DType::bf16},
    {"lion, split, bf16 moments and gradient", OptimizerKind::lion, 0, Master::split, DType::bf16,
     DType::bf16},
    {"lion, split, bf16 gradient, 8-bit moments", OptimizerKind::lion, 0, Master::split, DType::u8,
     DType::bf16},
    {"adagrad, f32 gradient", OptimizerKind::adagrad, 0, Master::f32, DType::f32, DType::f32},
    {"adagrad, split, bf16 gradient", OptimizerKind::adagrad, 0, Master::split, DType::f32,
     DType::bf16},
    {"sgd, momentum, f32 gradient", OptimizerKind::sgd, 0.9, Master::f32, DType::f32, DType::f32},
    {"sgd, momentum, split, bf16 gradient", OptimizerKind::sgd, 0.9, Master::split, DType::f32,
     DType::bf16},
    {"sgd, split, bf16 gradient", OptimizerKind::sgd, 0, Master::split, DType::f32, DType::bf16},
};

/// The arrays of a variant, in one mapping on huge pages.
class Problem {
 public:
  Problem(const Variant& variant, int64_t count)
      : memory_(array_size(count, 4) * 5, false), count_(count) {
    const int moments = headrace::engine::moment_count(variant.kind, variant.momentum);
    shard_.count = Elements(count);
    shard_.moment_dtype = variant.moments;
    shard_.gradient_dtype = variant.gradient;
    int floats = 0;
    int words = 0;
    int bytes = 0;
    if (variant.master == Master::f32) {
      shard_.master = traffic_.read_write4[floats++] = take<float>();
      shard_.weight = traffic_.write2 = take<uint16_t>();
    } else {
      shard_.weight = traffic_.read_write2[words++] = take<uint16_t>();
      shard_.weight_is_master = variant.master == Master::none;
    }
    if (variant.master == Master::split) {
      shard_.master_low = traffic_.read_write2[words++] = take<uint16_t>();
    }
    for (int k = 0; k < moments; ++k) {
      void* moment = nullptr;
      if (variant.moments == DType::f32) {
        moment = traffic_.read_write4[floats++] = take<float>();
      } else if (variant.moments == DType::u8) {
        moment = traffic_.read_write1[bytes++] = take<uint8_t>();
        (k == 0 ? shard_.scale1 : shard_.scale2) = take<uint8_t>();  // a 64th of it is used
      } else {
        moment = traffic_.read_write2[words++] = take<uint16_t>();
      }
      (k == 0 ? shard_.moment1 : shard_.moment2) = moment;
    }
    if (variant.gradient == DType::f32) {
      shard_.gradient = traffic_.read4 = fill(take<float>());
    } else {
      shard_.gradient = traffic_.read2 = fill(take<uint16_t>());
    }
    traffic_.count = count;
    touch();
  }

  const UpdateShard& shard() const { return shard_; }
  const TrafficArrays& traffic() const { return traffic_; }
  /// Bytes read and written by one update.
  int64_t bytes_per_element() const {
    const TrafficArrays& t = traffic_;
    const auto fours = std::count_if(std::begin(t.read_write4), std::end(t.read_write4),
                                     [](const float* p) { return p != nullptr; });
    const auto twos = std::count_if(std::begin(t.read_write2), std::end(t.read_write2),
                                    [](const uint16_t* p) { return p != nullptr; });
    const auto ones = std::count_if(std::begin(t.read_write1), std::end(t.read_write1),
                                    [](const uint8_t* p) { return p != nullptr; });
    return fours * 8 + twos * 4 + ones * 2 + (t.read4 != nullptr ? 4 : 0) +
           (t.read2 != nullptr ? 2 : 0) + (t.write2 != nullptr ? 2 : 0);
  }

 private:
  /// A page more than the values, so that the arrays do not fall on the same sets of the caches.
  static Bytes array_size(int64_t count, int64_t element) {
    return align_up(Bytes(count * element), Bytes(4096)) + Bytes(4096 + 256);
  }

  template <class T>
  T* take() {
    std::byte* const at = memory_.data() + used_.count();
    used_ += array_size(count_, sizeof(T));
    return reinterpret_cast<T*>(at);
  }

  template <class T>
  T* fill(T* values) const {
    headrace::parallel_for_blocks(count_, 1 << 20, [&](int64_t begin, int64_t end) {
      headrace::Random random(1, static_cast<uint64_t>(begin));
      for (int64_t i = begin; i < end; ++i) {
        const float value = 2 * headrace::uniform_from(random.next_u32()) - 1;
        if constexpr (sizeof(T) == sizeof(float)) {
          values[i] = value;
        } else {
          values[i] = headrace::to_bf16(value).bits;
        }
      }
    });
    return values;
  }

  /// Writes every page once: what is only ever read and never written is one shared zero page.
  void touch() const {
    for (int64_t at = 0; at < used_.count(); at += 4096) {
      auto* const byte = reinterpret_cast<volatile char*>(memory_.data()) + at;
      *byte = *byte;
    }
  }

  headrace::tiers::HostMemory memory_;
  int64_t count_;
  Bytes used_;
  UpdateShard shard_;
  TrafficArrays traffic_;
};

nlohmann::json measure(const Variant& variant, const Problem& problem, int threads, int rounds) {
  headrace::set_parallel_threads(threads);
  UpdateOptions options;
  options.kind = variant.kind;
  options.momentum = variant.momentum;
  options.weight_decay = 0.01;
  options.lr = 1e-4;
  options.step = 100;
  std::vector<double> update_ns;
  std::vector<double> traffic_ns;
  std::vector<double> ratios;
  const double to_ns = 1e9 / static_cast<double>(problem.shard().count.count());
  for (int i = -1; i < rounds; ++i) {  // the first one warms up
    const double update =
        headrace::seconds_of([&] { headrace::engine::update(options, problem.shard()); });
    const double traffic =
        headrace::seconds_of([&] { headrace::bench::move_traffic(problem.traffic()); });
    if (i >= 0) {
      update_ns.push_back(update * to_ns);
      traffic_ns.push_back(traffic * to_ns);
      ratios.push_back(traffic / update);
    }
  }
  const auto bytes = static_cast<double>(problem.bytes_per_element());
  nlohmann::json result;
  result["variant"] = variant.name;
  result["elements"] = problem.shard().count.count();
  result["threads"] = threads;
  result["bytes_per_element"] = problem.bytes_per_element();
  result["update_ns_per_element"] = median(update_ns);
  result["traffic_ns_per_element"] = median(traffic_ns);
  result["update_gb_per_second"] = bytes / median(update_ns);
  result["traffic_gb_per_second"] = bytes / median(traffic_ns);
  result["ratio"] = median(ratios);
  result["ratios"] = ratios;
  return result;
}

struct Arguments {
  std::vector<int64_t> millions = {64, 256};
  std::vector<int> threads = {1, 2};
  int rounds = 9;
  std::string only;
  std::string json;
};

void run(const Arguments& arguments) {
  nlohmann::json results = nlohmann::json::array();
  fmt::print("{:40} {:>9} {:>7} {:>5} {:>9} {:>9} {:>7} {:>7} {:>6}\n", "variant", "elements",
             "threads", "bytes", "update ns", "moving ns", "GB/s", "GB/s", "ratio");
  for (const int64_t millions : arguments.millions) {
    for (const Variant& variant : kVariants) {
      if (std::string_view(variant.name).find(arguments.only) == std::string_view::npos) {
        continue;
      }
      const Problem problem(variant, millions << 20);
      for (const int threads : arguments.threads) {
        const nlohmann::json r = measure(variant, problem, threads, arguments.rounds);
        fmt::print("{:40} {:>7} M {:>7} {:>5} {:>9.3f} {:>9.3f} {:>7.1f} {:>7.1f} {:>6.3f}\n",
                   variant.name, millions, threads, r.at("bytes_per_element").get<int64_t>(),
                   r.at("update_ns_per_element").get<double>(),
                   r.at("traffic_ns_per_element").get<double>(),
                   r.at("update_gb_per_second").get<double>(),
                   r.at("traffic_gb_per_second").get<double>(), r.at("ratio").get<double>());
        std::fflush(stdout);
        results.push_back(r);
      }
    }
  }
  if (!arguments.json.empty()) {
    std::ofstream file(arguments.json);
    file << results.dump(2) << "\n";
    if (!file.flush()) {
      throw headrace::InputError(fmt::format("cannot write {}", arguments.json));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  headrace::Command app("Optimizer updates against moving the same bytes");
  app.add_option("--millions", arguments.millions, "elements, in units of 2^20");
  app.add_option("--threads", arguments.threads, "threads, one run each");
  app.add_option("--rounds", arguments.rounds, "pairs of runs per line")->check_range(1, 999);
  app.add_option("--only", arguments.only, "variants whose name has this in it");
  app.add_option("--json", arguments.json, "file for the results");
  if (const auto exit_code = app.parse(argc, argv)) {
    return *exit_code;
  }
  try {
    run(arguments);
  } catch (const headrace::Error& error) {
    fmt::print(stderr, "optimizer_bench: {}\n", error.what());
    return headrace::exit_code(error.kind());
  }
  return 0;
}
