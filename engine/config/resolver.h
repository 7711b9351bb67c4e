#pragma once

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/config/resolve.h"
#include "proto/config_parser.h"

// Inside of resolve(): one object per call, one function per part of the settings.

namespace headrace::engine {

std::string show(double value);
std::string show(int64_t value);
std::string show(uint64_t value);
std::string show(Bytes value);
std::string show(Elements value);
std::string show(DType value);

inline double number_of(Bytes value) {
  return static_cast<double>(value.count());
}
template <class T>
double number_of(T value) {
  return static_cast<double>(value);
}

class Resolver {
 public:
  Resolver(const proto::DsConfig& config, const ResolveContext& context)
      : config_(config), context_(context) {}

  Resolution run(const std::string& source);

 private:
  // resolve_training.cc
  void resolve_batch();
  void override_batch(std::optional<int64_t>& train, std::optional<int64_t>& micro,
                      std::optional<int64_t>& accumulation);
  void resolve_dtype();
  void resolve_gradient_dtype();
  void resolve_loss_scale();
  void resolve_optimizer();
  void resolve_state();
  void resolve_8bit_moments();
  void resolve_scheduler();
  void resolve_schedule_length();
  void resolve_packing();
  // resolve_memory.cc
  void resolve_offload();
  void check_stages();
  void resolve_nvme_paths();
  void resolve_liveness();
  void note_unread_limits();
  void resolve_aio();
  void resolve_headrace();
  void resolve_keeping();
  void resolve_reports();  // resolve_reports.cc
  void resolve_compute();
  void resolve_fp8(bool wants_device);
  void note_idle_ratio(bool wants_device);
  void note_idle_limits();

  bool automatic(std::string_view path) const { return proto::is_automatic(config_, path); }

  template <class... Args>
  void note(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    result_.notes.push_back({level, fmt::format(format, std::forward<Args>(args)...)});
  }
  /// Notes what the "auto" at `path` became, if there is one.
  void note_auto(const std::string& path, const std::string& value, std::string_view why);
  /// Notes that the default was taken for every "auto" without a rule of its own.
  void note_other_autos();

  /// Adds a problem where a value that is not the file's is out of the range of the key at `path`.
  bool accepts(const std::string& path, double value);

  /// The command line's value, else the file's: `value` is what it has, or its default where not
  /// `given`.
  template <class T>
  T choose(const std::string& path, bool given, T value, const std::optional<T>& command_line) {
    if (!command_line || !accepts(path, number_of(*command_line))) {
      note_auto(path, show(value), "the default");
      return value;
    }
    note_auto(path, show(*command_line), "from the command line");
    if (given && *command_line != value) {
      note(LogLevel::info, "{}: {} from the command line replaces {}", path, show(*command_line),
           show(value));
    }
    return *command_line;
  }

  const proto::DsConfig& config_;
  const ResolveContext& context_;
  Resolution result_;
  proto::Problems problems_;
  std::set<std::string> noted_autos_;
};

}  // namespace headrace::engine
