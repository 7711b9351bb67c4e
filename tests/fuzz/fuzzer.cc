// libFuzzer's entry points. HEADRACE_FUZZ_TARGET names the target.
#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "base/log.h"
#include "fuzz/targets.h"

namespace {

const headrace::fuzz::Target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  const char* const name = std::getenv("HEADRACE_FUZZ_TARGET");
  chosen = headrace::fuzz::find_target(name == nullptr ? "" : name);
  if (chosen == nullptr) {
    fmt::print(stderr, "HEADRACE_FUZZ_TARGET must be one of:");
    for (const headrace::fuzz::Target& target : headrace::fuzz::targets()) {
      fmt::print(stderr, " {}", target.name);
    }
    fmt::print(stderr, "\n");
    std::exit(2);
  }
  headrace::set_log_level(headrace::LogLevel::error);
  google::protobuf::SetLogHandler(nullptr);  // what cannot be parsed is no news here
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  headrace::fuzz::accepts(*chosen, {reinterpret_cast<const char*>(data), size});
  return 0;
}
