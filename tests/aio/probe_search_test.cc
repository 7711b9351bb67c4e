#include "aio/probe_search.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "aio/probe_plot.h"
#include "base/error.h"

namespace headrace::aio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ProbePoint point(Bytes block, int depth, double rate) {
  return {.block_size = block,
          .queue_depth = depth,
          .rates = {.read = rate, .write = rate, .mixed = rate},
          .is_measured = true};
}

TEST(ProbeSearch, BestPointPrefersFewBytesInFlightAmongEquals) {
  EXPECT_EQ(best_point({point(kMiB, 32, 100), point(kMiB, 128, 103), point(kMiB, 8, 60)}), 0U);
  EXPECT_EQ(best_point({point(kMiB, 32, 90), point(kMiB, 128, 100)}), 1U);
  ProbePoint unmeasured = point(kMiB, 8, 1000);
  unmeasured.is_measured = false;
  EXPECT_EQ(best_point({unmeasured, point(kMiB, 128, 1)}), 1U);
  EXPECT_THROW(best_point({unmeasured}), CapacityError);
}

TEST(ProbeSearch, TheMixedRateCountsMost) {
  ProbePoint reader = point(kMiB, 8, 100);
  reader.rates = {.read = 200, .write = 100, .mixed = 100};
  ProbePoint mixer = point(kMiB, 8, 100);
  mixer.rates = {.read = 100, .write = 100, .mixed = 200};
  EXPECT_EQ(best_point({reader, mixer}), 1U);
}

TEST(ProbeSearch, FinalistsBeginWithTheBestPoint) {
  // The second has the highest score, the first is as good with less in flight.
  const std::vector<ProbePoint> points = {point(kMiB, 8, 98), point(kMiB, 64, 100),
                                          point(kMiB, 128, 99)};
  EXPECT_THAT(finalists(points, 2), ElementsAre(0, 1));
}

TEST(ProbeSearch, MoreInFlightMustBeWorthIt) {
  const std::vector<ProbePoint> points = {point(kMiB, 8, 1), point(kMiB, 64, 1),
                                          point(kMiB, 256, 1)};
  const auto chosen = [&](const std::vector<std::vector<double>>& rates) {
    std::vector<PointSamples> samples;
    for (const std::vector<double>& of_point : rates) {
      PointSamples& added = samples.emplace_back();
      added.read_rates = added.write_rates = added.mixed_rates = of_point;
    }
    return best_of(points, samples, {2, 0, 1});
  };
  EXPECT_EQ(chosen({{100, 100, 100}, {104, 104, 104}, {104, 104, 104}}), 0U) << "too little";
  EXPECT_EQ(chosen({{100, 100, 100}, {120, 120, 99}, {150, 90, 150}}), 0U) << "not each time";
  EXPECT_EQ(chosen({{100, 80, 110}, {110, 90, 120}, {111, 91, 121}}), 1U);
  EXPECT_EQ(chosen({{100, 80, 110}, {110, 90, 120}, {120, 99, 131}}), 2U);
  EXPECT_EQ(chosen({{100, 80, 110}, {}, {}}), 0U);
  EXPECT_EQ(chosen({{}, {100}, {100}}), 1U);
  EXPECT_EQ(chosen({{}, {}, {}}), 0U);
}

TEST(ProbeSearch, APointWithLittleInFlightGetsASecondChance) {
  // One load each: the deep point may have had luck, and the shallow one bad luck.
  const std::vector<ProbePoint> points = {point(kMiB, 2, 80), point(kMiB, 8, 87),
                                          point(kMiB, 16, 97), point(kMiB, 64, 90),
                                          point(kMiB, 256, 100)};
  EXPECT_THAT(finalists(points, 3), ElementsAre(1, 2, 4));
}

TEST(ProbeSearch, FinalistsAreTheHighestMeasured) {
  ProbePoint unmeasured = point(kMiB, 8, 1000);
  unmeasured.is_measured = false;
  const std::vector<ProbePoint> points = {point(kMiB, 8, 1), unmeasured, point(kMiB, 16, 3),
                                          point(kMiB, 32, 2)};
  EXPECT_THAT(finalists(points, 2), ElementsAre(2, 3));
  EXPECT_THAT(finalists(points, 9), ElementsAre(2, 3, 0));
}

TEST(ProbeSearch, PercentilesAreByRank) {
  std::vector<double> times;
  for (int i = 2000; i >= 1; --i) {
    times.push_back(i);
  }
  const Latency latency = latency_of(times);
  EXPECT_EQ(latency.p50_ms, 1000);
  EXPECT_EQ(latency.p99_ms, 1980);
  EXPECT_EQ(latency.p999_ms, 1998);
  EXPECT_EQ(latency.transfers, 2000);
  EXPECT_EQ(latency_of({7}).p999_ms, 7);
  EXPECT_EQ(latency_of({}).transfers, 0);
}

TEST(ProbeSearch, SamplesGiveMedians) {
  PointSamples samples;
  samples.read_rates = {5, 1, 3};
  samples.write_rates = {4, 2};
  samples.mixed_rates = {9};
  ProbePoint result;
  samples.summarize(result);
  EXPECT_EQ(result.rates.read, 3);
  EXPECT_EQ(result.rates.write, 3);
  EXPECT_EQ(result.rates.mixed, 9);
  EXPECT_THAT(samples.scores(), ElementsAre(9 + (5.0 + 4.0) / 2)) << "complete rounds only";
}

TEST(ProbePlot, BarsGrowWithTheRate) {
  const std::vector<ProbePoint> points = {point(kMiB, 8, 1e9), point(kMiB, 32, 2e9),
                                          point(kMiB, 128, 4e9)};
  const std::string plot = plot_rates(points, false);
  EXPECT_THAT(plot, HasSubstr("4.00 |"));
  EXPECT_THAT(plot, HasSubstr("8.00 MiB"));
  // 2, 4 and 8 rows of three bars that are two wide.
  EXPECT_EQ(std::count(plot.begin(), plot.end(), '#'), (2 + 4 + 8) * 3 * 2);
  EXPECT_TRUE(std::all_of(plot.begin(), plot.end(),
                          [](char sign) { return static_cast<unsigned char>(sign) < 0x80; }));
  EXPECT_THAT(plot_rates(points, true), HasSubstr("█"));
  EXPECT_EQ(plot_rates({}, true), "");
}

TEST(ProbePlot, SeriesBecomeOneLine) {
  EXPECT_EQ(plot_series({0, 50, 100}, 60, false), "059");
  EXPECT_EQ(plot_series({0, 0, 100, 100}, 2, false), "09");
  EXPECT_EQ(plot_series({100, 0}, 60, true), "█▁");
  EXPECT_EQ(plot_series({}, 60, true), "");
}

}  // namespace
}  // namespace headrace::aio
