// Rule 5, exhaustively on a small scale: every sequence of a few operations, a crash after every
// I/O event, and every subset of the blocks that were written but not synced. Whatever of them
// reached the disk, the catalog's generations are whole.
#include <gmock/gmock.h>

#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "tests/support/temporary_folder.h"
#include "tests/tiers/support.h"
#include "tiers/catalog.h"
#include "tiers/checksum.h"
#include "tiers/extent_store.h"

namespace headrace::tiers {
namespace {

constexpr int64_t kBlock = 4096;
using Block = std::pair<std::string, int64_t>;  ///< file, number of the block
using Image = std::map<Block, std::string>;

/// A disk in memory that knows which blocks would survive a power failure for certain.
class ModelDisk final : public aio::IoEngine {
 public:
  /// Called after every write and sync.
  void on_event(std::function<void()> event) { event_ = std::move(event); }

  aio::FileId open(const std::string& path, bool /*create*/) override {
    files_.push_back(path);
    return aio::FileId{static_cast<uint32_t>(files_.size() - 1)};
  }
  void allocate(aio::FileId /*file*/, Bytes /*size*/) override {}
  void close(aio::FileId /*file*/) override {}
  void register_memory(std::span<std::byte> /*memory*/) override {}
  void sync(aio::FileId file) override {
    {
      const std::lock_guard lock(mutex_);
      for (auto at = volatile_.begin(); at != volatile_.end();) {
        if (at->first.first == files_[static_cast<uint32_t>(file)]) {
          durable_[at->first] = at->second;
          at = volatile_.erase(at);
        } else {
          ++at;
        }
      }
    }
    event_();
  }
  Completion submit(const aio::IoRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      const std::string& path = files_[static_cast<uint32_t>(request.file)];
      for (int64_t at = 0; at < request.length.count(); at += kBlock) {
        const Block block(path, (request.offset + at) / kBlock);
        if (request.operation == aio::IoOperation::write) {
          volatile_[block] = std::string(reinterpret_cast<char*>(request.data) + at, kBlock);
        } else {
          const auto newest = volatile_.find(block);
          std::memcpy(request.data + at,
                      (newest != volatile_.end() ? newest->second : durable_.at(block)).data(),
                      kBlock);
        }
      }
    }
    if (request.operation == aio::IoOperation::write) {
      event_();
    }
    return Completion::done();
  }
  Bytes alignment() const override { return Bytes(kBlock); }
  std::string description() const override { return "model"; }
  aio::IoStatistics statistics() const override { return {}; }

  /// Calls `check` with what may be on the disk after a crash now: the durable blocks with every
  /// subset of the others over them.
  void for_each_crash(const std::function<void(const Image&)>& check) const {
    const std::lock_guard lock(mutex_);
    ASSERT_LE(volatile_.size(), 12U) << "too many subsets";
    for (uint32_t subset = 0; subset < (1U << volatile_.size()); ++subset) {
      Image image = durable_;
      uint32_t bit = 0;
      for (const auto& [block, bytes] : volatile_) {
        if ((subset >> bit++ & 1U) != 0) {
          image[block] = bytes;
        }
      }
      check(image);
    }
  }

 private:
  std::function<void()> event_ = [] {};
  mutable std::mutex mutex_;
  std::vector<std::string> files_;
  Image durable_;
  Image volatile_;
};

enum class Step { write_a, write_b, scratch, commit, snapshot, drop_snapshot, restore, discard };
constexpr int kStepCount = 8;

class CommitModel {
 public:
  explicit CommitModel(bool in_place) {
    options_.paths = {folder_.path()};
    options_.run_id = "model";
    options_.disk_budget = Bytes(1 << 20);
    options_.growth_step = Bytes(16 * kBlock);
    store_ = ExtentStore::create(options_, disk_);
    run(Step::write_a);
    run(Step::write_b);
    run(Step::commit);
    store_->set_in_place(in_place);
    disk_->on_event([this] { check_crashes(); });
  }
  ~CommitModel() {
    disk_->on_event([] {});
  }
  CommitModel(const CommitModel&) = delete;
  CommitModel& operator=(const CommitModel&) = delete;

  void run(Step step) {
    switch (step) {
      case Step::write_a:
        write("a", 2 * kBlock, true);
        break;
      case Step::write_b:
        write("b", kBlock, true);
        break;
      case Step::scratch:
        write("scratch", kBlock, false);
        break;
      case Step::discard:
        store_->discard("b");
        break;
      case Step::commit:
        store_->commit(store_->generation() + 1, {});
        break;
      case Step::snapshot:
        if (is_updating()) {
          EXPECT_THROW(store_->take_snapshot(false, 0), InternalError);
        } else {
          store_->take_snapshot(false, 0);
          snapshots_.insert(store_->generation());
        }
        break;
      case Step::drop_snapshot:
        if (!snapshots_.empty()) {
          store_->delete_snapshot(*snapshots_.begin());
          snapshots_.erase(snapshots_.begin());
        }
        break;
      case Step::restore:
        if (!snapshots_.empty()) {
          store_->restore(*snapshots_.begin());
        }
        break;
    }
    check_crashes();
  }
  int64_t crashes() const { return crashes_; }
  int64_t torn() const { return torn_; }

 private:
  void write(const std::string& name, int64_t size, bool persistent) {
    const test::Buffer buffer(size);
    test::fill_pattern(buffer.bytes(), ++seed_);
    store_->write(name, buffer.bytes(), persistent, aio::IoClass::write_back).wait();
  }

  bool is_updating() const {
    return read_catalog(options_.paths[0] + "/headrace-model/catalog").updating.has_value();
  }

  /// The catalog changes by atomic, synced batches only, so that it is one of its states; which
  /// one, between the start and the end of a batch, does not matter: both are checked.
  void check_crashes() {
    const CatalogContents contents = read_catalog(options_.paths[0] + "/headrace-model/catalog");
    disk_->for_each_crash([&](const Image& image) {
      ++crashes_;
      if (contents.updating) {
        ++torn_;
      } else {
        expect_whole(contents.objects, image);
      }
      for (const auto& [generation, snapshot] : contents.snapshots) {
        expect_whole(snapshot.objects, image);
      }
    });
  }

  void expect_whole(const std::map<std::string, CatalogObject>& objects, const Image& image) {
    for (const auto& [name, object] : objects) {
      for (const Extent& extent : object.extents) {
        std::string bytes;
        for (int64_t at = 0; at < extent.length.count(); at += kBlock) {
          const Block block(
              options_.paths[0] + "/headrace-model/data-" + std::to_string(extent.file),
              (extent.offset + at) / kBlock);
          const auto found = image.find(block);
          bytes += found != image.end() ? found->second : std::string(kBlock, '\0');
        }
        ASSERT_EQ(checksum(std::as_bytes(std::span(bytes))), extent.checksum)
            << "object " << name << " of a committed generation is not whole";
      }
    }
  }

  headrace::test::TemporaryFolder folder_;
  std::shared_ptr<ModelDisk> disk_ = std::make_shared<ModelDisk>();
  ExtentStoreOptions options_;
  std::unique_ptr<ExtentStore> store_;
  std::set<uint64_t> snapshots_;
  uint64_t seed_ = 0;
  int64_t crashes_ = 0;
  int64_t torn_ = 0;
};

/// Runs every sequence of `length` operations.
void run_all_sequences(int length, bool in_place) {
  set_log_level(LogLevel::error);  // the data files are not on the real disk
  int64_t crashes = 0;
  int64_t torn = 0;
  std::vector<int> sequence(static_cast<size_t>(length), 0);
  for (;;) {
    CommitModel model(in_place);
    for (const int step : sequence) {
      model.run(static_cast<Step>(step));
      if (::testing::Test::HasFatalFailure()) {
        FAIL() << "in sequence " << ::testing::PrintToString(sequence);
      }
    }
    crashes += model.crashes();
    torn += model.torn();
    size_t digit = 0;
    while (digit < sequence.size() && ++sequence[digit] == kStepCount) {
      sequence[digit++] = 0;
    }
    if (digit == sequence.size()) {
      break;
    }
  }
  set_log_level(LogLevel::info);
  EXPECT_GT(crashes, 10 * length);
  EXPECT_EQ(torn > 0, in_place) << "only values that are written in place leave a torn generation";
}

TEST(CommitModelTest, EveryCrashLeavesWholeGenerations) {
  run_all_sequences(2, false);
}
TEST(CommitModelTest, InPlaceACrashIsWholeOrKnown) {
  run_all_sequences(2, true);
}
/// A few minutes; run with the label slow.
TEST(CommitModelSlow, EveryCrashLeavesWholeGenerations) {
  run_all_sequences(3, false);
}
TEST(CommitModelSlow, InPlaceACrashIsWholeOrKnown) {
  run_all_sequences(3, true);
}

}  // namespace
}  // namespace headrace::tiers
