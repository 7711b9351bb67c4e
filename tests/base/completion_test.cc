#include "base/completion.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/serial_worker.h"

namespace headrace {
namespace {

std::exception_ptr some_error(const char* text) {
  return std::make_exception_ptr(InputError(text));
}

TEST(Completion, WaitSeesTheEndFromAnotherThread) {
  Promise promise;
  const Completion completion = promise.completion();
  int value = 0;
  std::thread producer([&] {
    value = 42;
    promise.set_done();
  });
  completion.wait();
  EXPECT_EQ(value, 42);
  producer.join();
}

TEST(Completion, ErrorReachesWaitersAndCallbacks) {
  Promise promise;
  const Completion completion = promise.completion();
  int calls = 0;
  completion.on_done([&](std::exception_ptr error) { calls += error != nullptr ? 1 : 100; });
  promise.set_failed(some_error("boom"));
  completion.on_done([&](std::exception_ptr error) { calls += error != nullptr ? 1 : 100; });
  EXPECT_EQ(calls, 2);
  EXPECT_THROW(completion.wait(), InputError);
}

TEST(Completion, AbandonedPromiseFailsInsteadOfHanging) {
  Completion completion = Completion::done();
  {
    Promise promise;
    completion = promise.completion();
  }
  EXPECT_THROW(completion.wait(), InternalError);
}

TEST(Completion, OnlyTheFirstEndCounts) {
  Promise promise;
  promise.set_done();
  promise.set_failed(some_error("late"));
  EXPECT_NO_THROW(promise.completion().wait());
}

TEST(Completion, WhenAllWaitsForEveryPartAndKeepsAnError) {
  Promise a;
  Promise b;
  const Completion both = when_all({a.completion(), b.completion()});
  a.set_failed(some_error("a"));
  EXPECT_FALSE(both.is_done());
  b.set_done();
  EXPECT_TRUE(both.is_done());
  EXPECT_THROW(both.wait(), InputError);
  EXPECT_TRUE(when_all({}).is_done());
}

TEST(SerialWorker, RunsInOrderAndDrainsInTheDestructor) {
  std::vector<int> seen;
  {
    SerialWorker worker("test");
    for (int i = 0; i < 1000; ++i) {
      worker.post([&seen, i] { seen.push_back(i); });
    }
  }
  ASSERT_EQ(seen.size(), 1000U);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(seen[static_cast<size_t>(i)], i);
  }
}

TEST(SerialWorker, DrainWaitsForEarlierTasks) {
  SerialWorker worker("test");
  std::atomic<int> done{0};
  for (int i = 0; i < 100; ++i) {
    worker.post([&] { ++done; });
  }
  worker.drain();
  EXPECT_EQ(done.load(), 100);
}

TEST(Check, MessageHoldsConditionPlaceAndValues) {
  const int got = 3;
  try {
    HR_CHECK(got == 4, "got {}", got);
    FAIL();
  } catch (const InternalError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("got == 4"), std::string::npos);
    EXPECT_NE(text.find("got 3"), std::string::npos);
    EXPECT_NE(text.find("completion_test.cc"), std::string::npos);
    EXPECT_EQ(exit_code(error.kind()), 70);
  }
}

TEST(Error, IoErrorTextNamesEverything) {
  const IoError error("short read", {.path = "/data/x",
                                     .offset = 4096,
                                     .expected_bytes = 100,
                                     .actual_bytes = 7,
                                     .error_number = 5});
  const std::string text = error.what();
  for (const char* part : {"short read", "/data/x", "4096", "100", "7", "Input/output error"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(exit_code(error.kind()), 5);
}

}  // namespace
}  // namespace headrace
