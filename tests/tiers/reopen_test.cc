// A store that is closed, or copied while it is in use as a crash would leave it, and opened again.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <system_error>

#include "base/error.h"
#include "base/process.h"
#include "base/random.h"
#include "tests/tiers/store_fixture.h"
#include "tiers/run_directory.h"

namespace headrace::tiers {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReopenTest : public test::StoreTest {
 protected:
  ReopenTest() { options_.keep_on_close = true; }

  std::string open_error() {
    return test::message_of<InputError>([&] { ExtentStore::open(options_, io_); });
  }
  std::string directory(size_t path = 0) const {
    return options_.paths.at(path) + "/headrace-test";
  }
  static void write_text(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::trunc) << text;
  }
  void make_with_generation(int paths) {
    make(paths);
    write("a", 3 << 20, 1);
    write("b", 4096, 2);
    store_->commit(7, {{"run", "state"}});
  }
  /// Blocks of the data files that the file system has given out.
  int64_t blocks() const {
    struct stat status {};
    EXPECT_EQ(::stat((directory() + "/data-0").c_str(), &status), 0);
    return status.st_blocks * 512;
  }
};

TEST_F(ReopenTest, GivesTheCommittedGenerationBack) {
  make_with_generation(2);
  write("a", 3 << 20, 10);
  write("c", 8192, 11);
  reopen();
  EXPECT_TRUE(store_->has_generation());
  EXPECT_EQ(store_->generation(), 7U);
  ASSERT_EQ(store_->generations().size(), 1U);
  EXPECT_EQ(store_->generations()[0].run_state.at("run"), "state");
  expect_value("a", 3 << 20, 1);
  expect_value("b", 4096, 2);
  EXPECT_FALSE(store_->contains("c"));
  EXPECT_THAT(verify(), IsEmpty());
  write("a", 3 << 20, 20);
  store_->commit(8, {});
  reopen();
  EXPECT_EQ(store_->generation(), 8U);
  expect_value("a", 3 << 20, 20);
  expect_value("b", 4096, 2);
}

TEST_F(ReopenTest, UsesTheFreeSpaceOfItsFiles) {
  options_.growth_step = Bytes(1 << 20);
  make_with_generation(1);
  write("a", 3 << 20, 3);
  store_->commit(8, {});
  const Bytes before = store_->bytes_on_disk();
  for (uint64_t i = 0; i < 5; ++i) {
    reopen();
    store_->prepare_for_writing();
    write("a", 3 << 20, 30 + i);
    store_->commit(9 + i, {});
    expect_value("a", 3 << 20, 30 + i);
  }
  EXPECT_EQ(store_->bytes_on_disk(), before);
}

TEST_F(ReopenTest, AClosedRunGivesItsFreeSpaceToTheFileSystem) {
  make(1);
  write("a", 16 << 20, 1);
  store_->commit(1, {});
  write("a", 16 << 20, 2);
  store_->commit(2, {});
  store_.reset();
  EXPECT_LE(blocks(), (16 << 20) + 4096 * 4);
  reopen();
  store_->prepare_for_writing();
  EXPECT_GE(blocks(), 32 << 20) << "before it is written, the space is really there";
  expect_value("a", 16 << 20, 2);
}

TEST_F(ReopenTest, FindsItsPathsInAnyOrderAndPlace) {
  make_with_generation(3);
  store_.reset();
  std::swap(options_.paths[0], options_.paths[2]);
  const std::string moved = folder_ / "moved";
  fs::rename(options_.paths[1], moved);
  options_.paths[1] = moved;
  reopen();
  expect_value("a", 3 << 20, 1);
  EXPECT_EQ(store_->directories()[1], moved + "/headrace-test");
  store_.reset();
  EXPECT_EQ(read_catalog(options_.paths[2] + "/headrace-test/catalog").store.directories[1],
            moved + "/headrace-test");
}

TEST_F(ReopenTest, RefusesWhatIsNotTheWholeRun) {
  make_with_generation(2);
  store_.reset();
  const std::vector<std::string> paths = options_.paths;
  options_.paths = {paths[0]};
  EXPECT_THAT(open_error(), AllOf(HasSubstr("path 1 of 2"), HasSubstr("all of them")));
  options_.paths = {paths[0], folder_ / "empty"};
  EXPECT_THAT(open_error(), AllOf(HasSubstr("does not exist"), HasSubstr("'test'")));
  fs::copy(paths[0], folder_ / "copy", fs::copy_options::recursive);
  options_.paths = {paths[0], folder_ / "copy"};
  EXPECT_THAT(open_error(), HasSubstr("the same part"));
  options_.paths = paths;
  options_.run_id = "other";
  EXPECT_THAT(open_error(), HasSubstr("does not exist"));
}

TEST_F(ReopenTest, RefusesOtherFormatsAndForeignFolders) {
  make_with_generation(1);
  store_.reset();
  const std::string run = directory() + "/RUN";
  for (const auto& [text, expected] : std::map<std::string, std::string>{
           {"headrace run directory\nformat 3\nrun test\npath 0 of 1\n", "has format 3"},
           {"headrace run directory\nformat 1\nrun test\npath 0 of 1\n", "has format 1"},
           {"headrace run directory\nformat 2\n", "damaged"},
           {"headrace run directory\nformat 2\nrun test\npath 1 of 1\n", "damaged"},
           {"headrace run directory\nformat 2\nrun else\npath 0 of 1\n", "'else'"},
           {"something else\n", "not a run directory"},
       }) {
    write_text(run, text);
    EXPECT_THAT(open_error(), HasSubstr(expected)) << text;
  }
  write_text(run, "headrace run directory\nformat 2\nrun test\npath 0 of 1\n");
  reopen();
  expect_value("a", 3 << 20, 1);
}

TEST_F(ReopenTest, KnowsALivingOwnerFromADeadOne) {
  make_with_generation(1);
  EXPECT_THAT(open_error(),
              AllOf(HasSubstr("in use"), HasSubstr("process " + std::to_string(::getpid()))));
  store_.reset();
  const std::string lock = directory() + "/LOCK";
  EXPECT_TRUE(fs::is_empty(lock)) << "closed in an orderly way";
  const auto owner = [](const std::string& host, int64_t process, uint64_t start) {
    return "host " + host + ", process " + std::to_string(process) + ", start " +
           std::to_string(start) + ", since 2025-01-31T23:59:59Z";
  };
  const int64_t parent = ::getppid();
  const uint64_t start = process_start_ticks(parent).value();
  // The kernel's lock is free in all of these, as on a file system without locks.
  write_text(lock, owner(host_name(), parent, start));
  EXPECT_THAT(open_error(), AllOf(HasSubstr("in use"), HasSubstr(std::to_string(parent))));
  // Another name of this machine, or a container that is gone: the lock of a local file system is
  // free, so nobody has it.
  write_text(lock, owner("elsewhere", 4711, 1));
  reopen();
  store_.reset();
  write_text(lock, owner(host_name(), parent, start + 1));  // the number was used again
  reopen();
  store_.reset();
  write_text(lock, owner(host_name(), int64_t{1} << 40, 1));
  reopen();
  expect_value("a", 3 << 20, 1);
}

TEST_F(ReopenTest, RefusesACatalogThatContradictsItsFiles) {
  make_with_generation(1);
  store_.reset();
  fs::resize_file(directory() + "/data-0", 1 << 20);
  EXPECT_THAT(open_error(), AllOf(HasSubstr("damaged"), HasSubstr("object 'a'")));
  fs::remove(directory() + "/data-0");
  EXPECT_THAT(open_error(), HasSubstr("damaged"));
}

TEST_F(ReopenTest, ARunWithoutAGenerationCanBeOpened) {
  make(1);
  write("a", 4096, 1);
  fs::copy(options_.paths[0], folder_ / "crashed", fs::copy_options::recursive);
  store_.reset();
  EXPECT_FALSE(fs::exists(directory())) << "nothing to keep";
  options_.paths = {folder_ / "crashed"};
  reopen();
  EXPECT_FALSE(store_->has_generation());
  EXPECT_FALSE(store_->contains("a"));
  write("a", 4096, 2);
  store_->commit(0, {});
  reopen();
  expect_value("a", 4096, 2);
}

/// What it takes to have a whole generation at any moment is space, not writes.
TEST_F(ReopenTest, FreshExtentsTakeNoMoreWritesThanOldOnes) {
  const auto bytes_written = [&](bool in_place) {
    std::atomic<int64_t> bytes = 0;
    io_->set_hook([&](const aio::IoRequest& request) {
      bytes += request.operation == aio::IoOperation::write ? request.length.count() : 0;
      return test::Fault::none;
    });
    store_.reset();
    options_.run_id = in_place ? "in-place" : "fresh";
    make(1);
    store_->set_in_place(in_place);
    for (uint64_t step = 1; step < 6; ++step) {
      write("a", 8 << 20, 10 * step);
      write("b", 4096, 10 * step + 1);
      store_->commit(step, {});
    }
    io_->set_hook({});
    return bytes.load();
  };
  constexpr int64_t kValues = 5 * ((8 << 20) + 4096);
  EXPECT_EQ(bytes_written(true), kValues);
  EXPECT_EQ(bytes_written(false), kValues);
}

TEST_F(ReopenTest, InPlaceTakesHalfTheSpaceAndSaysWhenItIsTorn) {
  options_.growth_step = Bytes(1 << 20);
  make(1);
  write("a", 8 << 20, 1);
  write("b", 4096, 2);
  store_->commit(1, {});
  store_->set_in_place(true);
  for (uint64_t step = 2; step < 6; ++step) {
    write("a", 8 << 20, 10 * step);
    store_->commit(step, {});
    expect_value("a", 8 << 20, 10 * step);
  }
  EXPECT_LE(store_->bytes_on_disk(), Bytes(10 << 20));
  reopen();
  EXPECT_FALSE(store_->is_torn());
  expect_value("a", 8 << 20, 50);
  store_->take_snapshot(false, 0);
  store_->set_in_place(true);
  write("a", 8 << 20, 60);  // the snapshot has the old one: goes elsewhere
  store_->commit(6, {});
  write("b", 4096, 61);  // the snapshot has this one too
  write("a", 8 << 20, 62);
  reopen();
  EXPECT_TRUE(store_->is_torn());
  EXPECT_THROW(store_->commit(7, {}), InternalError);
  store_->restore(5);
  EXPECT_FALSE(store_->is_torn());
  expect_value("a", 8 << 20, 50);
  expect_value("b", 4096, 2);
  reopen();
  EXPECT_FALSE(store_->is_torn());
  EXPECT_EQ(store_->generation(), 5U);
  expect_value("a", 8 << 20, 50);
  EXPECT_THAT(verify(), IsEmpty());
}

/// Everything that a store promises to keep, as maps of sizes and seeds.
struct Model {
  using Values = std::map<std::string, std::pair<int64_t, uint64_t>>;
  Values committed;
  uint64_t generation = 0;
  std::map<uint64_t, Values> snapshots;
};

class RandomReopenTest : public ReopenTest, public ::testing::WithParamInterface<int> {
 protected:
  void expect_values(ExtentStore& store, std::optional<uint64_t> generation,
                     const Model::Values& values) {
    for (const auto& [name, value] : values) {
      const auto reader = store.open_value(generation, name);
      ASSERT_EQ(reader->size(), Bytes(value.first)) << name;
      const test::Buffer buffer(value.first);
      reader->read(0, buffer.bytes());
      EXPECT_TRUE(test::has_pattern(buffer.bytes(), value.second)) << name;
    }
  }
  void expect_model(ExtentStore& store, const Model& model) {
    EXPECT_EQ(store.generation(), model.generation);
    expect_values(store, std::nullopt, model.committed);
    std::set<uint64_t> snapshots;
    for (const GenerationInfo& info : store.generations()) {
      if (info.is_snapshot) {
        snapshots.insert(info.generation);
      }
    }
    ASSERT_EQ(snapshots.size(), model.snapshots.size());
    for (const auto& [generation, values] : model.snapshots) {
      expect_values(store, generation, values);
    }
    EXPECT_THAT(store.verify([](Bytes, Bytes) {}), IsEmpty());
  }
  /// The catalog may be removing a file that it needs no more: then the copy is begun anew.
  static void copy_folder(const std::string& from, const std::string& to) {
    std::error_code error = std::make_error_code(std::errc::no_such_file_or_directory);
    for (int attempt = 0; attempt < 100 && error; ++attempt) {
      fs::remove_all(to);
      fs::copy(from, to, fs::copy_options::recursive, error);
    }
    ASSERT_FALSE(error) << error.message();
  }

  /// What a crash at this moment leaves, opened elsewhere.
  void expect_after_crash(const Model& model) {
    ExtentStoreOptions crashed = options_;
    for (std::string& path : crashed.paths) {
      const std::string copy = path + "-crashed";
      copy_folder(path, copy);
      path = copy;
    }
    expect_model(*ExtentStore::open(crashed, io_), model);
  }
};

TEST_P(RandomReopenTest, KeepsEveryGenerationThroughCrashes) {
  options_.growth_step = Bytes(1 << 20);
  make(GetParam());
  Random random(static_cast<uint64_t>(GetParam()), 77);
  Model model;
  Model::Values latest;
  uint64_t next = 0;
  for (uint64_t step = 1; step <= 300; ++step) {
    const std::string name = "o" + std::to_string(random.below(6));
    const auto choice = random.below(20);
    if (choice < 9) {
      const int64_t size = 4096 * (1 + static_cast<int64_t>(random.below(200)));
      write(name, size, step);
      latest[name] = {size, step};
    } else if (choice == 9) {
      store_->discard(name);
      latest.erase(name);
    } else if (choice < 13) {
      next = model.generation + 1;
      store_->commit(next, {});
      model.generation = next;
      model.committed = latest;
    } else if (choice < 15 && next > 0) {
      store_->take_snapshot(random.below(2) == 0, 0);
      model.snapshots[model.generation] = model.committed;
    } else if (choice < 17 && !model.snapshots.empty()) {
      const uint64_t generation = model.snapshots.begin()->first;
      store_->delete_snapshot(generation);
      model.snapshots.erase(generation);
    } else if (choice == 17 && !model.snapshots.empty()) {
      const auto& [generation, values] = *model.snapshots.rbegin();
      store_->restore(generation);
      model.generation = generation;
      model.committed = values;
      latest = values;
    } else if (choice == 18 && next > 0) {
      reopen();
      latest = model.committed;
    } else if (next > 0) {
      expect_after_crash(model);
    }
    if (HasFatalFailure()) {
      return;
    }
  }
  expect_model(*store_, model);
}

INSTANTIATE_TEST_SUITE_P(Paths, RandomReopenTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace headrace::tiers
