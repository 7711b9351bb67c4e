#include "scheduler/compiler.h"
#include "scheduler/victim_model.h"

namespace headrace::scheduler {

namespace {

class OptimalPolicy final : public Policy {
 public:
  std::string_view name() const override { return "optimal"; }
  Schedule compile(const CompileInput& input) const override {
    return compile_with(input, FarthestUse(input));
  }
};

class LruPolicy final : public Policy {
 public:
  std::string_view name() const override { return "lru"; }
  Schedule compile(const CompileInput& input) const override {
    return compile_with(input, LeastRecentlyUsed());
  }
};

}  // namespace

std::unique_ptr<Policy> make_optimal_policy() { return std::make_unique<OptimalPolicy>(); }
std::unique_ptr<Policy> make_lru_policy() { return std::make_unique<LruPolicy>(); }

}  // namespace headrace::scheduler
