// Damaged extents get their bytes back where these are in the run a second time, and only then.
#include <gmock/gmock.h>

#include <cstring>

#include "base/error.h"
#include "tests/tiers/store_fixture.h"

namespace headrace::tiers {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RepairTest : public test::StoreTest {
 protected:
  static constexpr int64_t kSize = 3 << 20;

  void commit(uint64_t generation) {
    store_->commit(generation, {});
    store_->take_snapshot(false, 0);
  }
  std::vector<Repair> repair(const Guess& guess = {}) { return store_->repair(verify(), guess); }
};

TEST_F(RepairTest, FromAnotherGenerationThatWroteTheSameValue) {
  options_.keep_on_close = true;
  make(2);
  write("a", kSize, 1);
  write("b", kSize, 2);
  commit(1);
  write("a", kSize, 1);  // as in a skipped step: written anew, with no other value
  commit(2);
  const CatalogContents contents = catalog();
  const std::vector<Extent>& extents = contents.objects.at("a").extents;
  ASSERT_NE(extents[0].offset, contents.snapshots.at(1).objects.at("a").extents[0].offset);
  ASSERT_GE(extents.size(), 2U);
  flip_byte(contents, extents[0], 100);
  flip_byte(contents, extents[1], 5000);
  for (const Repair& each : repair()) {
    EXPECT_TRUE(each.is_repaired) << each.text;
    EXPECT_THAT(each.text, HasSubstr("object 'a'"));
  }
  EXPECT_THAT(verify(), IsEmpty());
  expect_value("a", kSize, 1);
  expect_value("b", kSize, 2);
  reopen();
  EXPECT_THAT(verify(), IsEmpty()) << "it is on disk";
}

TEST_F(RepairTest, FromTheSameRangeOfAValueThatIsCutElsewhere) {
  options_.disk_budget = Bytes(12 << 20);
  options_.growth_step = Bytes(12 << 20);
  make(1);
  write("a", kSize, 1);
  commit(1);
  // Only gaps of a mebibyte are left, so that the second copy is in other extents.
  for (int i = 0; i < 9; ++i) {
    write("gap" + std::to_string(i), 1 << 20, 50, false);
  }
  for (int i = 0; i < 9; i += 2) {
    store_->discard("gap" + std::to_string(i));
  }
  write("a", kSize, 1);
  store_->commit(2, {});
  const CatalogContents contents = catalog();
  ASSERT_EQ(contents.snapshots.at(1).objects.at("a").extents.size(), 1U);
  ASSERT_GT(contents.objects.at("a").extents.size(), 1U);
  flip_byte(contents, contents.objects.at("a").extents.back(), 7);
  const auto repairs = repair();
  ASSERT_EQ(repairs.size(), 1U);
  EXPECT_TRUE(repairs[0].is_repaired) << repairs[0].text;
  EXPECT_THAT(repairs[0].text, HasSubstr("generation 1"));
  EXPECT_THAT(verify(), IsEmpty());
  expect_value("a", kSize, 1);
}

/// A snapshot shares its extents with the generation that it keeps, and so their damage.
TEST_F(RepairTest, NotFromASnapshotThatSharesTheExtent) {
  make(1);
  write("a", kSize, 1);
  commit(1);
  write("other", kSize, 3);
  commit(2);
  const CatalogContents contents = catalog();
  flip_byte(contents, contents.objects.at("a").extents[0], 0);
  const auto damage = verify();
  ASSERT_EQ(damage.size(), 1U);
  EXPECT_THAT(damage[0].generations, ::testing::ElementsAre(1, 2));
  const auto repairs = repair();
  ASSERT_EQ(repairs.size(), 1U);
  EXPECT_FALSE(repairs[0].is_repaired);
  EXPECT_THAT(repairs[0].text, HasSubstr("nowhere else"));
  EXPECT_EQ(verify().size(), 1U);
}

TEST_F(RepairTest, NotFromAnotherValueNorFromADamagedCopy) {
  make(1);
  write("a", kSize, 1);
  commit(1);
  write("a", kSize, 2);
  commit(2);
  CatalogContents contents = catalog();
  flip_byte(contents, contents.objects.at("a").extents[0], 0);
  ASSERT_EQ(repair().size(), 1U);
  EXPECT_FALSE(repair()[0].is_repaired) << "generation 1 has another value";
  store_->restore(1);
  write("a", kSize, 1);
  store_->commit(3, {});
  contents = catalog();
  flip_byte(contents, contents.objects.at("a").extents[0], 0);
  flip_byte(contents, contents.snapshots.at(1).objects.at("a").extents[0], 9);
  for (const Repair& each : repair()) {
    EXPECT_FALSE(each.is_repaired) << "both copies are damaged";
  }
}

TEST_F(RepairTest, TakesAGuessOnlyIfItHasTheChecksum) {
  make(1);
  write("a", kSize, 1);
  store_->commit(1, {});
  flip_byte(catalog(), catalog().objects.at("a").extents[0], 77);
  const auto guess = [](uint64_t seed) {
    return [seed](const Damage& damage, std::span<std::byte> out) {
      EXPECT_EQ(damage.object, "a");
      EXPECT_EQ(out.size(), static_cast<size_t>(kSize));
      test::fill_pattern(out, seed);
      return true;
    };
  };
  EXPECT_FALSE(repair(guess(2))[0].is_repaired);
  EXPECT_FALSE(repair([](const Damage&, std::span<std::byte>) { return false; })[0].is_repaired);
  EXPECT_TRUE(repair(guess(1))[0].is_repaired);
  EXPECT_THAT(verify(), IsEmpty());
}

TEST_F(RepairTest, SaysWhereADriveDoesNotTakeTheBytes) {
  make(1);
  write("a", kSize, 1);
  commit(1);
  write("a", kSize, 1);
  store_->commit(2, {});
  flip_byte(catalog(), catalog().objects.at("a").extents[0], 77);
  const auto damage = verify();
  for (const test::Fault fault : {test::Fault::fail, test::Fault::lose}) {
    io_->set_hook([fault](const aio::IoRequest& request) {
      return request.operation == aio::IoOperation::write ? fault : test::Fault::none;
    });
    const auto repairs = store_->repair(damage, {});
    EXPECT_FALSE(repairs[0].is_repaired);
    EXPECT_THAT(repairs[0].text, ::testing::AllOf(HasSubstr("data-0"), HasSubstr("offset")));
  }
  io_->set_hook({});
  EXPECT_TRUE(store_->repair(damage, {})[0].is_repaired);
}

}  // namespace
}  // namespace headrace::tiers
