#include "tiers/extent_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/random.h"
#include "tests/tiers/fake_io.h"
#include "tests/tiers/store_fixture.h"
#include "tests/tiers/support.h"
#include "tiers/catalog.h"
#include "tiers/checksum.h"

namespace headrace::tiers {
namespace {

using test::StoreTest;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ExtentStoreTest : public StoreTest {};

TEST_F(ExtentStoreTest, ReadsBackWhatWasWritten) {
  make(2);
  write("a", 3 << 20, 1);
  write("b", 4096, 2);
  expect_value("a", 3 << 20, 1);
  expect_value("b", 4096, 2);
  EXPECT_TRUE(store_->contains("a"));
  EXPECT_FALSE(store_->contains("c"));
}

TEST_F(ExtentStoreTest, TakesOddSizesWithoutAlignment) {
  io_ = std::make_shared<test::FakeIo>(Bytes(1));
  make(2);
  for (const int64_t size : {int64_t{1}, int64_t{4095}, int64_t{4097}, (int64_t{5} << 20) + 3}) {
    write("x", size, static_cast<uint64_t>(size));
    expect_value("x", size, static_cast<uint64_t>(size));
  }
}

TEST_F(ExtentStoreTest, RefusesMisuse) {
  make(1);
  const test::Buffer buffer(8192);
  EXPECT_THROW(store_->read("a", buffer.bytes(), aio::IoClass::demand), InternalError);
  write("a", 8192, 1);
  EXPECT_THROW(store_->read("a", buffer.bytes().first(4096), aio::IoClass::demand), InternalError);
  EXPECT_THROW(store_->write("b", buffer.bytes().first(5), true, aio::IoClass::demand),
               InternalError);
  EXPECT_THROW(store_->write("b", buffer.bytes().subspan(8, 4096), true, aio::IoClass::demand),
               InternalError);
  EXPECT_FALSE(store_->contains("b"));
}

TEST_F(ExtentStoreTest, RefusesASecondWriteInFlight) {
  make(1);
  const test::Buffer buffer(4096);
  io_->close_gate();
  const Completion first = store_->write("a", buffer.bytes(), true, aio::IoClass::demand);
  EXPECT_THROW(store_->write("a", buffer.bytes(), true, aio::IoClass::demand), InternalError);
  EXPECT_THROW(store_->discard("a"), InternalError);
  io_->open_gate();
  first.wait();
  EXPECT_TRUE(store_->contains("a"));
}

TEST_F(ExtentStoreTest, KeepsAVersionThatIsBeingRead) {
  make(1);
  write("a", 4 << 20, 1);
  const test::Buffer target(4 << 20);
  const test::Buffer source(4 << 20);
  io_->close_gate();
  const Completion read = store_->read("a", target.bytes(), aio::IoClass::demand);
  store_->discard("a");
  test::fill_pattern(source.bytes(), 2);
  // Would take the space of the discarded version if it were free already.
  const Completion written = store_->write("b", source.bytes(), false, aio::IoClass::demand);
  io_->open_gate();
  read.wait();
  written.wait();
  EXPECT_TRUE(test::has_pattern(target.bytes(), 1));
  expect_value("b", 4 << 20, 2);
}

TEST_F(ExtentStoreTest, SpreadsByWeight) {
  options_.weights = {3, 1};
  make(2);
  for (int i = 0; i < 8; ++i) {
    write("o" + std::to_string(i), 8 << 20, static_cast<uint64_t>(i), true);
  }
  store_->commit(1, {});
  std::map<uint32_t, int64_t> bytes;
  for (const auto& [name, object] : catalog().objects) {
    for (const Extent& extent : object.extents) {
      bytes[extent.path] += extent.length.count();
    }
  }
  EXPECT_EQ(bytes[0] + bytes[1], 64 << 20);
  EXPECT_NEAR(static_cast<double>(bytes[0]), 48 << 20, 1 << 20);
}

TEST_F(ExtentStoreTest, SpreadsOneObjectOverAllPaths) {
  make(3);
  write("big", 12 << 20, 1, true);
  store_->commit(1, {});
  std::map<uint32_t, int64_t> bytes;
  const auto contents = catalog();
  for (const Extent& extent : contents.objects.at("big").extents) {
    EXPECT_EQ(extent.offset % 4096, 0);
    EXPECT_LE(extent.length, kExtentMax);
    bytes[extent.path] += extent.length.count();
  }
  for (uint32_t path = 0; path < 3; ++path) {
    EXPECT_NEAR(static_cast<double>(bytes[path]), 4 << 20, 1 << 20);
  }
}

TEST_F(ExtentStoreTest, CommitsOnlyPersistentValues) {
  make(2);
  write("p", 8192, 1, true);
  write("s", 8192, 2, false);
  EXPECT_EQ(store_->generation(), 0U);
  EXPECT_FALSE(catalog().has_generation);
  store_->commit(7, {{"step", "7"}, {"bytes", std::string("\0\xff", 2)}});
  EXPECT_EQ(store_->generation(), 7U);
  const CatalogContents contents = catalog();
  EXPECT_EQ(contents.generation, 7U);
  EXPECT_EQ(contents.run_state.at("step"), "7");
  EXPECT_EQ(contents.run_state.at("bytes"), std::string("\0\xff", 2));
  EXPECT_EQ(contents.store.directories, store_->directories());
  ASSERT_EQ(contents.objects.size(), 1U);
  EXPECT_EQ(contents.objects.at("p").generation, 7U);
  expect_value("s", 8192, 2);
}

TEST_F(ExtentStoreTest, CommitSyncsWhatWasWritten) {
  make(2);
  write("p", 16 << 20, 1, true);
  EXPECT_EQ(io_->sync_count(), 0);
  store_->commit(1, {});
  EXPECT_EQ(io_->sync_count(), 2);
  store_->commit(2, {});
  EXPECT_EQ(io_->sync_count(), 2) << "nothing was written since";
}

TEST_F(ExtentStoreTest, CommitNeverGoesBack) {
  make(1);
  store_->commit(5, {});
  store_->commit(5, {{"again", "yes"}});
  EXPECT_THROW(store_->commit(4, {}), InternalError);
  EXPECT_EQ(catalog().run_state.at("again"), "yes");
}

TEST_F(ExtentStoreTest, DiscardTakesAPersistentValueOutOfTheNextGeneration) {
  make(1);
  write("p", 8192, 1, true);
  store_->commit(1, {});
  store_->discard("p");
  EXPECT_FALSE(store_->contains("p"));
  EXPECT_EQ(catalog().objects.count("p"), 1U) << "still committed";
  store_->commit(2, {});
  EXPECT_EQ(catalog().objects.count("p"), 0U);
}

TEST_F(ExtentStoreTest, ReusesTheSpaceOfSupersededValues) {
  make(1);
  for (uint64_t generation = 1; generation <= 20; ++generation) {
    write("p", 4 << 20, generation, true);
    write("p", 4 << 20, generation + 100, true);  // the uncommitted one is freed at once
    store_->commit(generation, {});
  }
  EXPECT_LE(store_->bytes_on_disk(), Bytes(16 << 20));
  expect_value("p", 4 << 20, 120);
}

TEST_F(ExtentStoreTest, RollBackGivesTheMarkedValues) {
  make(1);
  write("rewritten", 4 << 20, 6, true);
  store_->commit(1, {});
  write("rewritten", 4 << 20, 1, true);
  write("discarded", 8192, 2, true);
  write("scratch", 8192, 3, false);
  store_->mark();
  write("rewritten", 4 << 20, 4, true);
  write("new", 8192, 5, true);
  store_->discard("discarded");
  store_->roll_back();
  expect_value("rewritten", 4 << 20, 1);
  expect_value("discarded", 8192, 2);
  expect_value("scratch", 8192, 3);
  EXPECT_FALSE(store_->contains("new"));
  store_->commit(2, {});
  EXPECT_EQ(catalog().objects.size(), 2U);
  write("rewritten", 4 << 20, 7, true);
  store_->roll_back();
  expect_value("rewritten", 4 << 20, 1);
  store_->commit(3, {});
  EXPECT_EQ(catalog().objects.at("rewritten").generation, 2U) << "nothing new to commit";
}

TEST_F(ExtentStoreTest, RollBackGivesTheSpaceBack) {
  make(1);
  write("p", 4 << 20, 1, true);
  store_->mark();
  for (uint64_t i = 2; i < 20; ++i) {
    write("p", 4 << 20, i, true);
    store_->roll_back();
  }
  EXPECT_LE(store_->bytes_on_disk(), Bytes(16 << 20));
  expect_value("p", 4 << 20, 1);
}

TEST_F(ExtentStoreTest, RollBackWaitsForNoWrite) {
  make(1);
  const test::Buffer buffer(4096);
  io_->close_gate();
  const Completion written = store_->write("a", buffer.bytes(), true, aio::IoClass::write_back);
  EXPECT_THROW(store_->roll_back(), InternalError);
  io_->open_gate();
  written.wait();
  EXPECT_TRUE(store_->contains("a"));
}

TEST_F(ExtentStoreTest, VerifyNamesWhatIsBad) {
  make(2);
  write("good", 3 << 20, 1, true);
  write("bad", 3 << 20, 2, true);
  store_->commit(1, {});
  EXPECT_THAT(verify(), IsEmpty());
  const CatalogContents contents = catalog();
  const Extent extent = contents.objects.at("bad").extents.at(1);
  const std::string path = flip_byte(contents, extent, 77);
  const auto problems = verify();
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0].text, HasSubstr("'bad'"));
  EXPECT_THAT(problems[0].text, HasSubstr(path));
  EXPECT_THAT(problems[0].text, HasSubstr("offset " + std::to_string(extent.offset)));
}

/// The state that a kill -9 leaves: the catalog and the data files as they are now.
void expect_committed(const CatalogContents& contents,
                      const std::map<std::string, std::pair<int64_t, uint64_t>>& expected) {
  ASSERT_EQ(contents.objects.size(), expected.size());
  for (const auto& [name, value] : expected) {
    const CatalogObject& object = contents.objects.at(name);
    std::vector<std::byte> bytes(static_cast<size_t>(value.first));
    ASSERT_EQ(object.size, Bytes(value.first));
    size_t at = 0;
    for (const Extent& extent : object.extents) {
      const std::string path =
          contents.store.directories.at(extent.path) + "/data-" + std::to_string(extent.file);
      std::ifstream file(path, std::ios::binary);
      file.seekg(extent.offset);
      file.read(reinterpret_cast<char*>(bytes.data() + at), extent.length.count());
      ASSERT_EQ(file.gcount(), extent.length.count());
      EXPECT_EQ(checksum({bytes.data() + at, static_cast<size_t>(extent.length.count())}),
                extent.checksum);
      at += static_cast<size_t>(extent.length.count());
    }
    ASSERT_EQ(at, bytes.size());
    EXPECT_TRUE(test::has_pattern(bytes, value.second)) << name;
  }
}

TEST_F(ExtentStoreTest, UncommittedWritesLeaveTheCommittedGenerationWhole) {
  make(3);
  write("a", 5 << 20, 1, true);
  write("b", 8192, 2, true);
  store_->commit(1, {{"step", "1"}});
  for (uint64_t round = 0; round < 5; ++round) {
    write("a", 5 << 20, 10 + round, true);
    write("b", 8192, 20 + round, true);
    write("scratch", 3 << 20, 30 + round, false);
    store_->discard("scratch");
  }
  const CatalogContents contents = catalog();
  EXPECT_EQ(contents.generation, 1U);
  EXPECT_EQ(contents.run_state.at("step"), "1");
  expect_committed(contents, {{"a", {5 << 20, 1}}, {"b", {8192, 2}}});
}

class RandomStoreTest : public StoreTest, public ::testing::WithParamInterface<int> {};

TEST_P(RandomStoreTest, AgreesWithAMap) {
  const int paths = GetParam();
  options_.weights = paths == 3 ? std::vector<double>{1, 5, 2.5} : std::vector<double>{};
  options_.growth_step = Bytes(1 << 20);
  make(paths);
  Random random(static_cast<uint64_t>(paths), 2);
  using Values = std::map<std::string, std::pair<int64_t, uint64_t>>;
  Values latest;
  Values persistent;
  Values committed;
  uint64_t generation = 0;
  for (uint64_t step = 1; step <= 400; ++step) {
    const std::string name = "o" + std::to_string(random.below(12));
    const auto choice = random.below(20);
    if (choice < 9) {
      const int64_t size = 4096 * (1 + static_cast<int64_t>(random.below(choice == 0 ? 900 : 60)));
      const bool is_persistent = random.below(3) > 0;
      write(name, size, step, is_persistent);
      latest[name] = {size, step};
      persistent.erase(name);
      if (is_persistent) {
        persistent[name] = {size, step};
      }
    } else if (choice < 15) {
      ASSERT_EQ(store_->contains(name), latest.contains(name));
      if (latest.contains(name)) {
        expect_value(name, latest[name].first, latest[name].second);
      }
    } else if (choice < 18) {
      store_->discard(name);
      latest.erase(name);
      persistent.erase(name);
    } else {
      store_->commit(++generation, {{"step", std::to_string(step)}});
      committed = persistent;
    }
    if (step % 20 == 0) {
      const CatalogContents contents = catalog();
      ASSERT_EQ(contents.generation, generation);
      expect_committed(contents, committed);
    }
  }
  EXPECT_THAT(verify(), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Paths, RandomStoreTest, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace headrace::tiers
