#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/error.h"
#include "engine/executor.h"
#include "tests/engine/three_tiers.h"

namespace headrace::engine {
namespace {

using scheduler::Access;
using scheduler::Lane;

constexpr Bytes kSlot{4096};

/// A value that is written on host and that the compute stream reads, updates and reads on the
/// device.
class ComputeBehindCopies : public testing::Test {
 protected:
  static constexpr uint32_t kFirstOnDevice = 1;
  static constexpr std::chrono::milliseconds kDelay{20};

  ComputeBehindCopies() {
    tiers_.store->add({"a", kSlot, false});
    add(Lane::cpu_optimizer, Tier::host, Access::write);
    add(Lane::compute, Tier::device, Access::read);
    add(Lane::compute, Tier::device, Access::update);
    add(Lane::compute, Tier::device, Access::read);
    trace_.operations.back().uses.front().discard_after = true;
  }

  void add(Lane lane, Tier tier, Access access) {
    scheduler::Operation operation{"work", lane, {{ObjectId{0}, tier, access, false}}, 1e-5};
    operation.in_order = lane == Lane::compute;
    trace_.operations.push_back(operation);
  }

  /// The copy waits until the first operation behind it has been posted, then calls `then`.
  RunReport run(std::function<void()> then) {
    tiers_.down->run_on_host([this, then = std::move(then)] {
      const auto limit = std::chrono::seconds(30);
      EXPECT_EQ(posted_.get_future().wait_for(limit), std::future_status::ready);
      then();
    });
    const std::vector<scheduler::ObjectFacts> objects{{"a", kSlot, Tier::host, std::nullopt}};
    scheduler::CompileInput input;
    input.trace = &trace_;
    input.objects = &objects;
    input.budgets = {kSlot, kSlot, kSlot};
    const auto schedule = scheduler::make_optimal_policy()->compile(input);
    Executor executor(*tiers_.store, *tiers_.compute);
    return executor.run(
        trace_, schedule,
        [this](uint32_t number, UseBytes uses) {
          if (number == kFirstOnDevice) {
            posted_.set_value();
          }
          const std::span<std::byte> bytes = uses.front();
          if (number == 0) {
            bytes[0] = std::byte{1};
          } else {
            tiers_.compute->run_on_host([this, bytes, number] {
              seen_[number] = static_cast<int>(bytes[0]);
              bytes[0] = std::byte{static_cast<uint8_t>(number == 2 ? 2 : seen_[number])};
              ++ran_;
            });
          }
        },
        true);
  }

  test::Tiers tiers_{kSlot, kSlot, test::io_engine(aio::BackendKind::thread_pool)};
  scheduler::Trace trace_;
  std::promise<void> posted_;
  int seen_[4] = {};
  std::atomic<int> ran_ = 0;
};

TEST_F(ComputeBehindCopies, IsPostedBeforeTheyEndAndSeesTheirValues) {
  const RunReport report = run([] { std::this_thread::sleep_for(kDelay); });
  EXPECT_EQ(seen_[1], 1);
  EXPECT_EQ(seen_[2], 1);
  EXPECT_EQ(seen_[3], 2);
  const double delay = std::chrono::duration<double>(kDelay).count();
  EXPECT_GE(report.split.host_to_device, delay) << "the wait is the copy's";
  EXPECT_GE(report.split.total, delay + report.operation_seconds[kFirstOnDevice]);
  EXPECT_LE(report.busy[static_cast<size_t>(Lane::compute)], report.split.total - delay);
}

TEST_F(ComputeBehindCopies, DoesNotRunWhereTheyFail) {
  EXPECT_THROW(run([] { throw IoError("the link is down", {}); }), IoError);
  EXPECT_EQ(ran_, 0);
  EXPECT_EQ(tiers_.store->state(ObjectId{0}, Tier::device), tiers::CopyState::absent);
  EXPECT_EQ(tiers_.store->used(Tier::device), Bytes(0));
  EXPECT_EQ(tiers_.store->state(ObjectId{0}, Tier::host), tiers::CopyState::valid);
}

}  // namespace
}  // namespace headrace::engine
