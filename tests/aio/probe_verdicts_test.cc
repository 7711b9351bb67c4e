#include "aio/probe_verdicts.h"

#include <gmock/gmock.h>

#include "base/random.h"

namespace headrace::aio {
namespace {

using ::testing::HasSubstr;

RateSeries series(const std::vector<double>& rates) {
  return {.interval_seconds = 0.25, .rates = rates};
}

std::vector<double> noisy(double rate, size_t count, double noise, uint64_t seed) {
  Random random(seed, 0);
  std::vector<double> rates;
  for (size_t i = 0; i < count; ++i) {
    rates.push_back(rate * (1 + noise * (2 * uniform_from(random.next_u32()) - 1)));
  }
  return rates;
}

TEST(ProbeCliff, IsFoundWhereTheRateFalls) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<double> rates = noisy(3e9, 20, 0.2, seed);
    double written = 0;
    for (const double rate : rates) {
      written += rate * 0.25;
    }
    const std::vector<double> slow = noisy(1e9, 12, 0.2, seed + 1000);
    rates.insert(rates.end(), slow.begin(), slow.end());
    const CliffFinding finding = find_cliff(series(rates));
    EXPECT_TRUE(finding.is_judged);
    EXPECT_TRUE(finding.has_cliff) << seed;
    EXPECT_NEAR(static_cast<double>(finding.at.count()), written, 1.0) << seed;
    EXPECT_NEAR(finding.burst_rate, 3e9, 0.6e9);
    EXPECT_NEAR(finding.sustained_rate, 1e9, 0.2e9);
  }
}

TEST(ProbeCliff, NoiseDipsAndRisesAreNone) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    EXPECT_FALSE(find_cliff(series(noisy(2e9, 32, 0.3, seed))).has_cliff) << seed;
  }
  std::vector<double> dips(30, 2e9);
  dips[7] = dips[19] = dips[28] = 0.1e9;
  EXPECT_FALSE(find_cliff(series(dips)).has_cliff);
  std::vector<double> rise(10, 1e9);
  rise.insert(rise.end(), 10, 3e9);
  EXPECT_FALSE(find_cliff(series(rise)).has_cliff);
  EXPECT_FALSE(find_cliff(series(std::vector<double>(20, 0.0))).has_cliff);
}

TEST(ProbeCliff, ShortSeriesAreNotJudged) {
  const CliffFinding finding = find_cliff(series({3e9, 3e9, 3e9, 1e9, 1e9, 1e9, 1e9}));
  EXPECT_FALSE(finding.is_judged);
  EXPECT_FALSE(finding.has_cliff);
  EXPECT_EQ(finding.written.count(), 13'000'000'000 / 4);
  EXPECT_FALSE(find_cliff(series({})).is_judged);
  EXPECT_THAT(describe(finding), HasSubstr("too short"));
}

TEST(ProbeCliff, SaysWhere) {
  std::vector<double> rates(8, 4.0 * (int64_t{1} << 30));  // 1 GiB per interval
  rates.insert(rates.end(), 8, 1.0 * (int64_t{1} << 30));
  EXPECT_EQ(describe(find_cliff(series(rates))),
            "write cache cliff after 8.00 GiB: 4.29 GB/s before, 1.07 GB/s after");
  EXPECT_EQ(describe(find_cliff(series(std::vector<double>(16, 4.0 * (int64_t{1} << 30))))),
            "no cliff: none seen in 16.0 GiB (4.29 GB/s)");
}

TEST(ProbeCache, EachSignGivesItsVerdict) {
  const CacheFinding clean{
      .first_read_rate = 2e9, .reread_rate = 2.2e9, .memory_rate = 30e9, .cached_share = 0};
  EXPECT_EQ(judge_cache(clean, "ext4", true, 2.4e9), CacheKind::none);
  EXPECT_EQ(judge_cache(clean, "ext4", false, 2.4e9), CacheKind::buffered);
  EXPECT_EQ(judge_cache(clean, "tmpfs", false, 2.4e9), CacheKind::memory_file_system);
  EXPECT_EQ(judge_cache(clean, "tmpfs", true, 2.4e9), CacheKind::memory_file_system);
  EXPECT_EQ(judge_cache(clean, "ext4", true, 29e9), CacheKind::memory_rate);
  CacheFinding cached = clean;
  cached.cached_share = 0.9;
  EXPECT_EQ(judge_cache(cached, "fuse", true, 2.4e9), CacheKind::page_cache);
  CacheFinding reread = clean;
  reread.reread_rate = 5e9;
  EXPECT_EQ(judge_cache(reread, "ext4", true, 2.4e9), CacheKind::fast_reread);
  EXPECT_EQ(judge_cache({}, "ext4", true, 2.4e9), CacheKind::none);  // nothing known
  reread.kind = CacheKind::fast_reread;
  EXPECT_THAT(describe(reread), HasSubstr("5.00 GB/s"));
}

TEST(ProbeThin, ComparesTheFirstUseOfSpaceWithLaterOnes) {
  const ThinFinding same{.unwritten_read_rate = 2.3e9,
                         .written_read_rate = 2e9,
                         .first_write_rate = 2.5e9,
                         .rewrite_rate = 3e9};
  const ThinFinding judged = judge_thin(same);
  EXPECT_TRUE(judged.is_judged);
  EXPECT_FALSE(judged.first_write_slow);
  EXPECT_FALSE(judged.unwritten_read_fast);
  ThinFinding thin = same;
  thin.unwritten_read_rate = 9e9;
  thin.first_write_rate = 1e9;
  thin = judge_thin(thin);
  EXPECT_TRUE(thin.first_write_slow);
  EXPECT_TRUE(thin.unwritten_read_fast);
  EXPECT_THAT(describe(thin), HasSubstr("first write into allocated space is slow: 1.00 GB/s"));
  EXPECT_THAT(describe(thin), HasSubstr("do not reach the storage"));
  thin = same;
  thin.first_write_rate = 0;
  EXPECT_FALSE(judge_thin(thin).is_judged);
}

TEST(ProbeDuplex, IsTheSumOverTheHigherRate) {
  EXPECT_DOUBLE_EQ(duplex_ratio(2e9, 4e9, 4e9), 1.0);
  EXPECT_DOUBLE_EQ(duplex_ratio(3e9, 3e9, 6e9), 2.0);
  EXPECT_DOUBLE_EQ(duplex_ratio(0, 3e9, 6e9), 0.0);
  EXPECT_EQ(judge_duplex(0), Duplex::unknown);
  EXPECT_EQ(judge_duplex(0.8), Duplex::half);
  EXPECT_EQ(judge_duplex(1.4), Duplex::partial);
  EXPECT_EQ(judge_duplex(1.95), Duplex::full);
  EXPECT_THAT(describe_duplex(1.95), HasSubstr("full duplex"));
}

}  // namespace
}  // namespace headrace::aio
