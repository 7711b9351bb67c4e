// The extent store over the real backends with faults between: what a drive may do wrong is an
// error that names the place, or a recovery; never another value.
#include <gmock/gmock.h>
#include <sys/mount.h>

#include <filesystem>

#include "base/error.h"
#include "support/faulty_backend.h"
#include "support/temporary_folder.h"
#include "tests/tiers/support.h"
#include "tiers/extent_store.h"

namespace headrace::tiers {
namespace {

using headrace::test::FaultPlan;
using headrace::test::PartFault;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kSize = 3 << 20;

class BackendFaultTest : public ::testing::TestWithParam<aio::BackendKind> {
 protected:
  void SetUp() override {
    options_.paths = {folder_.path()};
    options_.run_id = "faults";
    options_.disk_budget = Bytes(64 << 20);
    options_.growth_step = Bytes(8 << 20);
    options_.keep_on_close = true;
    io_ = make_io();
    if (io_ == nullptr) {
      GTEST_SKIP() << "io_uring is refused here";
    }
    store_ = ExtentStore::create(options_, io_);
  }
  std::shared_ptr<aio::IoEngine> make_io() const {
    aio::IoEngineOptions options;
    options.backend = GetParam();
    options.block_size = Bytes(256 << 10);
    return headrace::test::make_faulty_engine(options, plan_);
  }
  void write(const std::string& name, uint64_t seed) {
    test::fill_pattern(buffer_.bytes(), seed);
    store_->write(name, buffer_.bytes(), true, aio::IoClass::write_back).wait();
  }
  void commit(uint64_t generation, uint64_t seed) {
    write("a", seed);
    store_->commit(generation, {});
  }
  bool has(const std::string& name, uint64_t seed) {
    store_->read(name, buffer_.bytes(), aio::IoClass::demand).wait();
    return test::has_pattern(buffer_.bytes(), seed);
  }
  std::vector<Damage> verify() {
    return store_->verify([](Bytes, Bytes) {});
  }
  void reopen() {
    store_.reset();
    io_.reset();
    plan_->clear();
    plan_->set_errors(0, 0);
    io_ = make_io();
    store_ = ExtentStore::open(options_, io_);
  }

  headrace::test::TemporaryFolder folder_;
  std::shared_ptr<FaultPlan> plan_ = std::make_shared<FaultPlan>();
  ExtentStoreOptions options_;
  std::shared_ptr<aio::IoEngine> io_;
  std::unique_ptr<ExtentStore> store_;
  test::Buffer buffer_{kSize};
};

TEST_P(BackendFaultTest, AWriteThatOnlySeemsDoneIsFoundOut) {
  uint64_t generation = 0;
  for (const PartFault fault :
       {PartFault::tear, PartFault::flip_bit, PartFault::misdirect, PartFault::lose}) {
    SCOPED_TRACE(static_cast<int>(fault));
    ++generation;
    commit(generation, 10 + generation);
    store_->take_snapshot(false, 0);
    plan_->hit(aio::IoOperation::write, {fault}, 1, 4);
    ++generation;
    commit(generation, 20 + generation);
    plan_->clear();
    EXPECT_THAT(test::message_of<IoError>([&] { has("a", 0); }),
                AllOf(HasSubstr("'a'"), HasSubstr("data-0"), HasSubstr("offset"),
                      HasSubstr("expected"), HasSubstr("read")));
    const auto damage = verify();
    ASSERT_EQ(damage.size(), 1U);
    EXPECT_THAT(damage[0].generations, ::testing::ElementsAre(generation));
    store_->restore(generation - 1);  // the way back
    EXPECT_TRUE(has("a", 10 + generation - 1));
    EXPECT_THAT(verify(), IsEmpty());
  }
}

TEST_P(BackendFaultTest, AWrongBitOfAReadIsReadAgain) {
  commit(1, 1);
  plan_->hit(aio::IoOperation::read, {PartFault::flip_bit}, 1, 5);
  EXPECT_TRUE(has("a", 1));
  EXPECT_EQ(plan_->hits(), 1);
  plan_->hit(aio::IoOperation::read, {PartFault::flip_bit}, 1'000'000);
  EXPECT_THAT(test::message_of<IoError>([&] { has("a", 1); }),
              AllOf(HasSubstr("data-0"), HasSubstr("2 times")));
  plan_->clear();
  EXPECT_TRUE(has("a", 1)) << "the value itself is as it was";
}

TEST_P(BackendFaultTest, FailedAndShortTransfersLeaveTheCommittedValue) {
  commit(1, 1);
  store_->mark();
  for (const auto& [fault, number] :
       {std::pair(PartFault::fail, EIO), {PartFault::fail, ENOSPC}, {PartFault::cut_short, 0}}) {
    plan_->hit(aio::IoOperation::write, {fault, number}, 2, 3);
    const std::string text = test::message_of<IoError>([&] { write("a", 2); });
    if (fault == PartFault::fail) {
      EXPECT_THAT(text, AllOf(HasSubstr("data-0"), HasSubstr("offset"), HasSubstr("expected"),
                              HasSubstr(std::to_string(256 << 10))));
    } else {
      EXPECT_EQ(text, "") << "two parts, each short once: continued";
    }
    store_->roll_back();
    EXPECT_TRUE(has("a", 1));
  }
  reopen();
  EXPECT_TRUE(has("a", 1));
}

TEST_P(BackendFaultTest, AFailedSyncFailsTheCommit) {
  commit(1, 1);
  write("a", 2);
  plan_->set_errors(EIO, 0);
  EXPECT_THAT(test::message_of<IoError>([&] { store_->commit(2, {}); }), HasSubstr("data-0"));
  reopen();
  EXPECT_EQ(store_->generation(), 1U);
  EXPECT_TRUE(has("a", 1));
}

/// A drive that says "on disk" of what is in its cache: after a power loss the values are gone.
/// That cannot be prevented, but it is found out.
TEST_P(BackendFaultTest, ALostFlushIsFoundOut) {
  commit(1, 1);
  store_->take_snapshot(false, 0);
  plan_->lie_about_syncs();
  commit(2, 2);
  EXPECT_TRUE(has("a", 2));
  store_.reset();
  io_.reset();
  plan_->lose_power();
  reopen();
  EXPECT_EQ(store_->generation(), 2U);
  EXPECT_THAT(test::message_of<IoError>([&] { has("a", 2); }),
              AllOf(HasSubstr("data-0"), HasSubstr("expected")));
  EXPECT_EQ(verify().size(), 1U);
  store_->restore(1);
  EXPECT_TRUE(has("a", 1));
}

/// A file system in memory, gone with this object.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(std::string path) : path_(std::move(path)) {
    std::filesystem::create_directory(path_);
    error_ = ::mount("none", path_.c_str(), "tmpfs", 0, "size=12m") == 0 ? 0 : errno;
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  ~SmallFileSystem() {
    if (error_ == 0) {
      EXPECT_EQ(::umount2(path_.c_str(), MNT_DETACH), 0) << errno_text(errno);
    }
  }
  int error() const { return error_; }

 private:
  std::string path_;
  int error_ = 0;
};

TEST_P(BackendFaultTest, AFullFileSystemLeavesTheCommittedGeneration) {
  store_.reset();
  const std::string path = folder_ / "small";
  const SmallFileSystem small(path);
  if (small.error() != 0) {
    GTEST_SKIP() << "mounting a tmpfs is not permitted here: " << errno_text(small.error());
  }
  options_.paths = {path};
  options_.growth_step = Bytes(1 << 20);
  store_ = ExtentStore::create(options_, io_);
  commit(1, 1);
  EXPECT_THAT(test::message_of<IoError>([&] {
                for (int i = 0; i < 8; ++i) {
                  write("more" + std::to_string(i), 5);
                }
              }),
              AllOf(HasSubstr("data-0"), HasSubstr("no space left"), HasSubstr("are free")));
  EXPECT_TRUE(has("a", 1));
  reopen();
  EXPECT_EQ(store_->generation(), 1U);
  EXPECT_TRUE(has("a", 1));
  commit(2, 2);
  EXPECT_TRUE(has("a", 2)) << "the space of what was not committed is free again";
  store_.reset();
  io_.reset();
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendFaultTest,
                         ::testing::Values(aio::BackendKind::io_uring,
                                           aio::BackendKind::thread_pool),
                         [](const auto& backend) {
                           return backend.param == aio::BackendKind::io_uring ? "Uring"
                                                                              : "ThreadPool";
                         });

}  // namespace
}  // namespace headrace::tiers
