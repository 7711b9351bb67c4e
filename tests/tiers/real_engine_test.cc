// The extent store over the real I/O engines.
#include <gmock/gmock.h>

#include <map>

#include "aio/io.h"
#include "base/random.h"
#include "tests/support/temporary_folder.h"
#include "tests/tiers/store_fixture.h"
#include "tiers/extent_store.h"
#include "tiers/host_memory.h"

namespace headrace::tiers {
namespace {

class RealEngineTest : public ::testing::TestWithParam<std::tuple<aio::BackendKind, bool, bool>> {
 protected:
  RealEngineTest() {
    aio::IoEngineOptions options;
    options.backend = std::get<0>(GetParam());
    options.direct = std::get<1>(GetParam());
    options.block_size = Bytes(256 << 10);
    io_ = aio::IoEngine::create(options);
    io_->register_memory(memory_.bytes());
  }
  headrace::test::TemporaryFolder folder_;
  HostMemory memory_{Bytes(32 << 20), false};
  std::shared_ptr<aio::IoEngine> io_;
};

TEST_P(RealEngineTest, KeepsValuesThroughRewritesAndCommits) {
  ExtentStoreOptions options;
  options.paths = {folder_ / "a", folder_ / "b"};
  options.disk_budget = Bytes(256 << 20);
  options.growth_step = Bytes(8 << 20);
  options.prewrite = std::get<2>(GetParam());
  const auto store = ExtentStore::create(options, io_);
  const auto source = memory_.bytes().first(16 << 20);
  const auto target = memory_.bytes().subspan(16 << 20);
  Random random(1, 6);
  std::map<std::string, std::pair<size_t, uint64_t>> values;
  for (uint64_t round = 1; round <= 40; ++round) {
    const std::string name = "o" + std::to_string(random.below(6));
    const size_t size = 4096 * (1 + random.below(1024));
    test::fill_pattern(source.first(size), round);
    store->write(name, source.first(size), true, aio::IoClass::write_back).wait();
    values[name] = {size, round};
    if (round % 10 == 0) {
      store->commit(round, {});
    }
    const auto& [checked, value] =
        *std::next(values.begin(), static_cast<int64_t>(random.below(values.size())));
    store->read(checked, target.first(value.first), aio::IoClass::demand).wait();
    ASSERT_TRUE(test::has_pattern(target.first(value.first), value.second));
  }
  EXPECT_THAT(store->verify([](Bytes, Bytes) {}), ::testing::IsEmpty());
  EXPECT_LE(store->bytes_on_disk(), options.disk_budget);
}

INSTANTIATE_TEST_SUITE_P(Backends, RealEngineTest,
                         ::testing::Combine(::testing::Values(aio::BackendKind::io_uring,
                                                              aio::BackendKind::thread_pool),
                                            ::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace headrace::tiers
