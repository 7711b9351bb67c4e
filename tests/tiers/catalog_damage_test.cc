// A catalog whose values were changed: opening the run refuses it or gives a state that is
// consistent in itself; it never crashes and never takes memory for what is not there.
#include <gmock/gmock.h>
#include <rocksdb/db.h>

#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "tests/tiers/store_fixture.h"
#include "tiers/catalog_records.h"

namespace headrace::tiers {
namespace {

namespace fs = std::filesystem;

class CatalogDamageTest : public test::StoreTest {
 protected:
  using Pairs = std::map<std::string, std::string>;

  std::string catalog_folder() const { return options_.paths[0] + "/headrace-test/catalog"; }

  std::unique_ptr<rocksdb::DB> open_database() const {
    rocksdb::DB* opened = nullptr;
    EXPECT_TRUE(rocksdb::DB::Open(rocksdb::Options(), catalog_folder(), &opened).ok());
    return std::unique_ptr<rocksdb::DB>(opened);
  }
  Pairs read_pairs() const {
    Pairs pairs;
    const auto database = open_database();
    const std::unique_ptr<rocksdb::Iterator> at(database->NewIterator(rocksdb::ReadOptions()));
    for (at->SeekToFirst(); at->Valid(); at->Next()) {
      pairs[at->key().ToString()] = at->value().ToString();
    }
    return pairs;
  }
  void write_pairs(const Pairs& pairs) const {
    const auto database = open_database();
    const std::unique_ptr<rocksdb::Iterator> at(database->NewIterator(rocksdb::ReadOptions()));
    for (at->SeekToFirst(); at->Valid(); at->Next()) {
      EXPECT_TRUE(database->Delete(rocksdb::WriteOptions(), at->key()).ok());
    }
    for (const auto& [key, value] : pairs) {
      EXPECT_TRUE(database->Put(rocksdb::WriteOptions(), key, value).ok());
    }
  }
};

TEST_F(CatalogDamageTest, IsRefusedOrConsistent) {
  options_.keep_on_close = true;
  make(1);
  write("a", 3 << 20, 1);
  write("b", 8192, 2);
  store_->commit(1, {{"run", "state"}});
  store_->take_snapshot(false, 0);
  write("b", 8192, 3);
  store_->commit(2, {{"run", "state"}});
  store_.reset();
  const Pairs whole = read_pairs();
  ASSERT_EQ(whole.size(), 7U);  // store, generation, two objects; a snapshot's record and objects
  set_log_level(LogLevel::error);
  Random random(4, 4);
  int refused = 0;
  for (int round = 0; round < 100; ++round) {
    Pairs pairs = whole;
    auto victim = std::next(pairs.begin(), static_cast<int64_t>(random.below(pairs.size())));
    std::string key = victim->first;
    std::string value = victim->second;
    pairs.erase(victim);
    switch (random.below(5)) {
      case 0:
        break;  // the key is missing
      case 1:
        key[random.below(key.size())] = static_cast<char>(random.below(256));
        pairs[key] = value;
        break;
      case 2:
        value.resize(random.below(value.size()));
        pairs[key] = value;
        break;
      default:
        for (uint64_t flips = 1 + random.below(3); flips > 0; --flips) {
          value[random.below(value.size())] = static_cast<char>(random.below(256));
        }
        pairs[key] = value;
    }
    write_pairs(pairs);
    try {
      reopen();
      verify();
      store_->generations();
    } catch (const InputError&) {
      ++refused;
    }
    store_.reset();
  }
  set_log_level(LogLevel::info);
  EXPECT_GT(refused, 30);
  write_pairs(whole);
  reopen();
  EXPECT_THAT(verify(), ::testing::IsEmpty());
  expect_value("a", 3 << 20, 1);
  expect_value("b", 8192, 3);
}

TEST_F(CatalogDamageTest, ASnapshotHoldsItsOwnGenerationAndNothingElse) {
  options_.keep_on_close = true;
  make(1);
  write("a", 8192, 1);
  store_->commit(1, {{"run", "state"}});
  store_->take_snapshot(false, 0);
  store_.reset();
  const Pairs whole = read_pairs();
  const std::string record = snapshot_record_key(1);
  ASSERT_TRUE(whole.contains(record));
  const auto refusal_with = [&](const std::string& key, const std::string& value) -> std::string {
    Pairs pairs = whole;
    pairs[key] = value;
    write_pairs(pairs);
    try {
      reopen();
    } catch (const InputError& error) {
      return error.what();
    }
    store_.reset();
    return "accepted";
  };
  const std::string unknown = snapshot_prefix(1) + "recorded";
  EXPECT_THAT(refusal_with(unknown, whole.at(record)),
              ::testing::HasSubstr("unknown key '" + unknown + "'"));
  EXPECT_THAT(refusal_with(snapshot_record_key(2), whole.at(record)),
              ::testing::HasSubstr("is damaged: it is of generation 1"));
}

}  // namespace
}  // namespace headrace::tiers
