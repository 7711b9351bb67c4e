#include <gmock/gmock.h>

#include <cstring>

#include "base/error.h"
#include "tests/tiers/store_fixture.h"

namespace headrace::tiers {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SnapshotTest : public test::StoreTest {
 protected:
  SnapshotTest() { options_.growth_step = Bytes(1 << 20); }

  void commit(uint64_t generation) {
    write("a", 2 << 20, generation);
    store_->commit(generation, {{"step", std::to_string(generation)}});
  }
  std::vector<uint64_t> snapshots() const {
    std::vector<uint64_t> list;
    for (const GenerationInfo& info : store_->generations()) {
      if (info.is_snapshot) {
        list.push_back(info.generation);
      }
    }
    return list;
  }
  void expect_value_of(uint64_t generation, uint64_t seed) {
    const auto reader = store_->open_value(generation, "a");
    const test::Buffer buffer(2 << 20);
    reader->read(0, buffer.bytes());
    EXPECT_TRUE(test::has_pattern(buffer.bytes(), seed));
  }
};

TEST_F(SnapshotTest, CostsNothingUntilTheNextCommitAndGivesItsSpaceBack) {
  make(1);
  commit(1);
  const Bytes alone = store_->bytes_on_disk();
  store_->take_snapshot(false, 0);
  EXPECT_EQ(store_->bytes_on_disk(), alone);
  ASSERT_EQ(store_->generations().size(), 1U);
  EXPECT_TRUE(store_->generations()[0].is_committed && store_->generations()[0].is_snapshot);
  EXPECT_EQ(store_->generations()[0].own_size, Bytes(0)) << "the run needs every byte of it anyway";
  commit(2);
  commit(3);
  const Bytes with_snapshot = store_->bytes_on_disk();
  EXPECT_EQ(store_->generations()[0].own_size, Bytes(2 << 20));
  expect_value_of(1, 1);
  expect_value("a", 2 << 20, 3);
  store_->delete_snapshot(1);
  for (uint64_t generation = 4; generation < 10; ++generation) {
    commit(generation);
    write("b", 2 << 20, 99);  // fits in the space that the snapshot had
    store_->discard("b");
  }
  EXPECT_EQ(store_->bytes_on_disk(), with_snapshot);
  EXPECT_THAT(snapshots(), IsEmpty());
}

TEST_F(SnapshotTest, KeepsTheLastAutomaticOnes) {
  make(1);
  for (uint64_t generation = 1; generation <= 6; ++generation) {
    commit(generation);
    store_->take_snapshot(generation != 2, 2);
  }
  EXPECT_THAT(snapshots(), ElementsAre(2, 5, 6)) << "2 was asked for by hand";
  expect_value_of(2, 2);
  expect_value_of(5, 5);
  store_->restore(2);
  store_->take_snapshot(true, 1);
  EXPECT_FALSE(store_->generations().front().is_automatic) << "and still is";
}

TEST_F(SnapshotTest, RestoreGoesBackWithItsRunState) {
  make(2);
  commit(1);
  store_->take_snapshot(false, 0);
  write("later", 4096, 1);
  commit(2);
  store_->restore(1);
  EXPECT_EQ(store_->generation(), 1U);
  expect_value("a", 2 << 20, 1);
  EXPECT_FALSE(store_->contains("later"));
  EXPECT_EQ(catalog().run_state.at("step"), "1");
  EXPECT_EQ(catalog().objects.count("later"), 0U);
  commit(2);
  expect_value("a", 2 << 20, 2);
  expect_value_of(1, 1);
}

TEST_F(SnapshotTest, NamesTheOnesThatThereAre) {
  make(1);
  commit(1);
  EXPECT_THAT(test::message_of<InputError>([&] { store_->delete_snapshot(9); }),
              AllOf(HasSubstr("generation 9"), HasSubstr("none")));
  store_->take_snapshot(false, 0);
  commit(2);
  store_->take_snapshot(false, 0);
  EXPECT_THAT(test::message_of<InputError>([&] { store_->restore(9); }), HasSubstr("1, 2"));
}

TEST_F(SnapshotTest, RefusesToTakeTheRoomOfTheNextStep) {
  options_.disk_budget = Bytes(7 << 20);
  make(1);
  commit(1);
  store_->take_snapshot(true, 1);
  commit(2);
  EXPECT_THAT(test::message_of<CapacityError>([&] { store_->take_snapshot(true, 2); }),
              AllOf(HasSubstr("generation 2"), HasSubstr("--nvme-budget"), HasSubstr("4.00 MiB")));
  EXPECT_THAT(snapshots(), ElementsAre(1));
  store_->take_snapshot(true, 1);  // takes the other one's place
  EXPECT_THAT(snapshots(), ElementsAre(2));
  commit(3);
  commit(4);
  expect_value_of(2, 2);
}

TEST_F(SnapshotTest, VerifySaysWhichGenerationsShareTheDamage) {
  make(1);
  write("still", 3 << 20, 5);
  commit(1);
  store_->take_snapshot(false, 0);
  commit(2);
  const CatalogContents contents = catalog();
  flip_byte(contents, contents.objects.at("still").extents.at(0), 9);
  flip_byte(contents, contents.snapshots.at(1).objects.at("a").extents.at(0), 9);
  const auto damage = verify();
  ASSERT_EQ(damage.size(), 2U);
  for (const Damage& each : damage) {
    if (each.object == "still") {
      EXPECT_THAT(each.generations, ElementsAre(1, 2));
    } else {
      EXPECT_EQ(each.object, "a");
      EXPECT_THAT(each.generations, ElementsAre(1));
    }
    EXPECT_EQ(each.value_offset, 0);
  }
}

TEST_F(SnapshotTest, ReadsRangesOfAValueWhateverItsExtents) {
  make(3);
  write("a", 13 << 20, 4);
  store_->commit(1, {});
  write("a", 4096, 5);
  const test::Buffer whole(13 << 20);
  test::fill_pattern(whole.bytes(), 4);
  const auto reader = store_->open_value(std::nullopt, "a");
  for (const auto& [offset, length] :
       {std::pair{0, 1}, {5, 4096}, {(1 << 20) - 7, 3 << 20}, {(13 << 20) - 3, 3}, {100, 100}}) {
    std::vector<std::byte> part(static_cast<size_t>(length));
    reader->read(offset, part);
    EXPECT_EQ(std::memcmp(part.data(), whole.bytes().data() + offset, part.size()), 0) << offset;
  }
  EXPECT_THROW(reader->read(13 << 20, std::span<std::byte>(whole.bytes()).first(1)), InternalError);
}

}  // namespace
}  // namespace headrace::tiers
