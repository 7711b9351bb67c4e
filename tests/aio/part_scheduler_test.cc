// Which parts go out, in tables of numbers: no threads, no I/O.

#include "aio/part_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace headrace::aio {
namespace {

constexpr int64_t kBlock = 4096;

class Scheduler {
 public:
  explicit Scheduler(int depth) : scheduler_(Bytes(kBlock), depth) {}

  std::shared_ptr<PendingRequest> add(IoOperation operation, IoClass io_class, int64_t blocks) {
    auto pending = std::make_shared<PendingRequest>();
    pending->file = file_;
    pending->request = IoRequest{.operation = operation,
                                 .io_class = io_class,
                                 .offset = next_offset_,
                                 .data = nullptr,
                                 .length = Bytes(blocks * kBlock)};
    next_offset_ += blocks * kBlock;
    scheduler_.add(pending);
    return pending;
  }
  /// Sends what may go; the number of parts.
  size_t send() {
    const auto parts = scheduler_.next_parts();
    flying_.insert(flying_.end(), parts.begin(), parts.end());
    return parts.size();
  }
  /// Ends the oldest part of an operation well.
  size_t end_one(IoOperation operation) {
    const auto place = std::find_if(flying_.begin(), flying_.end(), [&](const PartRequest& part) {
      return part.operation == operation;
    });
    EXPECT_NE(place, flying_.end());
    PartScheduler::Requests ended;
    scheduler_.settle({.token = place->token,
                       .result = static_cast<int32_t>(place->length),
                       .expected = place->length},
                      ended);
    flying_.erase(place);
    return ended.size();
  }
  int flying(IoOperation operation) const { return scheduler_.in_flight(operation); }
  const std::vector<PartRequest>& parts() const { return flying_; }
  PartScheduler& scheduler() { return scheduler_; }

 private:
  PartScheduler scheduler_;
  std::shared_ptr<OpenFile> file_ = std::make_shared<OpenFile>();
  std::vector<PartRequest> flying_;
  int64_t next_offset_ = 0;
};

TEST(PartScheduler, ManySmallAndOneHugeFillTheDepthAlike) {
  Scheduler small(64);
  for (int i = 0; i < 1000; ++i) {
    small.add(IoOperation::read, IoClass::demand, 1);
  }
  EXPECT_EQ(small.send(), 64U);
  Scheduler huge(64);
  huge.add(IoOperation::read, IoClass::demand, 1000);
  EXPECT_EQ(huge.send(), 64U);
}

TEST(PartScheduler, PartsCoverTheRequestOnce) {
  Scheduler tested(7);
  const auto pending = tested.add(IoOperation::read, IoClass::demand, 50);
  pending->request.length = Bytes(49 * kBlock + 100);
  std::vector<std::pair<int64_t, uint32_t>> seen;
  size_t ended = 0;
  while (ended == 0) {
    tested.send();
    seen.emplace_back(tested.parts().front().offset, tested.parts().front().length);
    ended += tested.end_one(IoOperation::read);
  }
  ASSERT_EQ(seen.size(), 50U);
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i].first, static_cast<int64_t>(i) * kBlock);
    EXPECT_EQ(seen[i].second, i == 49 ? 100U : static_cast<uint32_t>(kBlock));
  }
  EXPECT_TRUE(tested.scheduler().is_idle());
  EXPECT_EQ(tested.scheduler().bytes_done(IoOperation::read), 49 * kBlock + 100);
}

TEST(PartScheduler, DemandReadStartsAtOnceBehindAFloodOfWriteBack) {
  Scheduler tested(64);
  tested.add(IoOperation::write, IoClass::write_back, 10000);
  EXPECT_EQ(tested.send(), 56U);
  tested.add(IoOperation::read, IoClass::demand, 4);
  EXPECT_EQ(tested.send(), 4U);
  EXPECT_EQ(tested.flying(IoOperation::read), 4);
}

TEST(PartScheduler, DemandGoesBeforePrefetchAndWriteBack) {
  Scheduler tested(8);
  tested.add(IoOperation::read, IoClass::prefetch, 100);
  tested.send();
  const auto demand = tested.add(IoOperation::read, IoClass::demand, 1);
  tested.end_one(IoOperation::read);
  EXPECT_EQ(tested.send(), 1U);
  EXPECT_EQ(tested.parts().back().offset, demand->request.offset);
}

TEST(PartScheduler, NeitherSideStarves) {
  for (const int depth : {2, 3, 8, 64, 256}) {
    Scheduler tested(depth);
    tested.add(IoOperation::write, IoClass::write_back, 100000);
    tested.add(IoOperation::read, IoClass::demand, 100000);
    tested.send();
    for (int i = 0; i < 3 * depth; ++i) {  // writes are slow, reads are fast
      tested.end_one(IoOperation::read);
      tested.send();
    }
    EXPECT_GE(tested.flying(IoOperation::write), std::max(1, depth / 4)) << depth;
    EXPECT_GE(tested.flying(IoOperation::read), depth / 2) << depth;
    for (int i = 0; i < 3 * depth; ++i) {  // and the other way round
      tested.end_one(IoOperation::write);
      tested.send();
    }
    EXPECT_GE(tested.flying(IoOperation::read), depth / 2) << depth;
    EXPECT_EQ(tested.flying(IoOperation::write) + tested.flying(IoOperation::read), depth);
  }
}

TEST(PartScheduler, DepthMayChangeWhilePartsFly) {
  Scheduler tested(64);
  tested.add(IoOperation::read, IoClass::demand, 10000);
  EXPECT_FALSE(tested.scheduler().is_waiting(IoOperation::write));
  tested.scheduler().set_depth(16);
  EXPECT_EQ(tested.send(), 16U);
  EXPECT_TRUE(tested.scheduler().is_waiting(IoOperation::read));
  tested.scheduler().set_depth(40);
  EXPECT_EQ(tested.send(), 24U);
  tested.scheduler().set_depth(4);
  for (int left = 39; left >= 4; --left) {
    tested.end_one(IoOperation::read);
    EXPECT_EQ(tested.send(), 0U) << left;
  }
  tested.end_one(IoOperation::read);
  EXPECT_EQ(tested.send(), 1U);
  EXPECT_THROW(tested.scheduler().set_depth(65), InternalError);
  EXPECT_THROW(tested.scheduler().set_depth(0), InternalError);
}

TEST(PartScheduler, FailAllEndsEveryRequestOnce) {
  Scheduler tested(4);
  tested.add(IoOperation::read, IoClass::demand, 10);
  tested.add(IoOperation::write, IoClass::write_back, 2);
  tested.add(IoOperation::read, IoClass::prefetch, 1);
  tested.send();
  PartScheduler::Requests ended;
  tested.scheduler().fail_all(std::make_exception_ptr(InternalError("lost")), ended);
  EXPECT_EQ(ended.size(), 3U);
  for (const auto& request : ended) {
    EXPECT_NE(request->error, nullptr);
  }
  EXPECT_TRUE(tested.scheduler().is_idle());
}

TEST(PartScheduler, ForeignCompletionsAreRefused) {
  Scheduler tested(4);
  PartScheduler::Requests ended;
  EXPECT_THROW(tested.scheduler().settle({.token = 2, .result = 0, .expected = 0}, ended),
               InternalError);
  EXPECT_THROW(tested.scheduler().settle({.token = 9, .result = 0, .expected = 0}, ended),
               InternalError);
  tested.add(IoOperation::read, IoClass::demand, 1);
  tested.send();
  const uint32_t token = tested.parts().front().token;
  EXPECT_THROW(
      tested.scheduler().settle({.token = token, .result = 5000, .expected = kBlock}, ended),
      InternalError);
}

}  // namespace
}  // namespace headrace::aio
