#include "engine/run_account.h"

#include <gtest/gtest.h>

#include "engine/three_tiers.h"

namespace headrace::engine {
namespace {

using scheduler::Lane;
using Clock = RunAccount::Clock;

class RunAccountTest : public ::testing::Test {
 protected:
  Clock::time_point at(double seconds) const {
    return start_ +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  RunAccount::Work transfer(Lane lane, int64_t bytes, double begin) const {
    RunAccount::Work work;
    work.lane = lane;
    work.moved = Bytes(bytes);
    work.could_begin = at(begin);
    work.begin = at(begin);
    return work;
  }
  std::vector<BusyPeriod> periods(RunReport& report, Lane lane) const {
    return report.busy_periods[static_cast<size_t>(lane)];
  }

  test::Tiers tiers_{Bytes(0), kMiB, test::io_engine(aio::BackendKind::thread_pool)};
  RunAccount account_{*tiers_.store, 0, false};
  Clock::time_point start_ = account_.start();
};

TEST_F(RunAccountTest, TellsHowLongBothDirectionsOfTheDriveWereBusy) {
  // Reads from 0 to 4 and from 5 to 6, writes from 1 to 3 and from 3.5 to 5.5, a copy meanwhile.
  const auto read = transfer(Lane::nvme_read, 100, 0);
  const auto write = transfer(Lane::nvme_write, 200, 1);
  const auto copy = transfer(Lane::host_to_device, 50, 1);
  const auto second_write = transfer(Lane::nvme_write, 300, 3.5);
  const auto second_read = transfer(Lane::nvme_read, 400, 5);
  account_.launched(read);
  account_.launched(write);
  account_.launched(copy);
  account_.ended(copy, at(2));
  account_.ended(write, at(3));
  account_.launched(second_write);
  account_.ended(read, at(4));
  account_.launched(second_read);
  account_.ended(second_write, at(5.5));
  account_.ended(second_read, at(6));
  RunReport report = account_.finish();

  const auto reads = periods(report, Lane::nvme_read);
  const auto writes = periods(report, Lane::nvme_write);
  ASSERT_EQ(reads.size(), 2U);
  ASSERT_EQ(writes.size(), 2U);
  EXPECT_EQ(reads[0].bytes, 100);
  EXPECT_NEAR(reads[0].seconds, 4, 1e-8);
  EXPECT_NEAR(reads[0].shared, 2.5, 1e-8);
  EXPECT_NEAR(reads[1].shared, 0.5, 1e-8);
  EXPECT_NEAR(writes[0].shared, 2, 1e-8);
  EXPECT_NEAR(writes[1].seconds, 2, 1e-8);
  EXPECT_NEAR(writes[1].shared, 1, 1e-8);
  EXPECT_EQ(periods(report, Lane::host_to_device).front().shared, 0);
}

}  // namespace
}  // namespace headrace::engine
