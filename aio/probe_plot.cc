#include "aio/probe_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>

namespace headrace::aio {

namespace {

constexpr int kRows = 8;
constexpr int kGroupColumns = 10;  ///< of one amount in flight
constexpr int kEighths = 8;
constexpr std::array<std::string_view, kEighths + 1> kBlocks = {" ", "▁", "▂", "▃", "▄",
                                                                "▅", "▆", "▇", "█"};

/// The cell of a bar of `height` rows in row `row` (0 is the lowest).
std::string_view cell(double height, int row, bool utf8) {
  const double above = std::clamp(height - row, 0.0, 1.0);
  if (!utf8) {
    return above >= 0.75 ? "#" : above >= 0.25 ? ":" : " ";
  }
  return kBlocks[static_cast<size_t>(std::lround(above * kEighths))];
}

std::map<int64_t, Rates> highest_by_in_flight(const std::vector<ProbePoint>& points) {
  std::map<int64_t, Rates> highest;
  for (const ProbePoint& point : points) {
    if (point.is_measured) {
      Rates& rates = highest[point.in_flight().count()];
      rates.read = std::max(rates.read, point.rates.read);
      rates.write = std::max(rates.write, point.rates.write);
      rates.mixed = std::max(rates.mixed, point.rates.mixed);
    }
  }
  return highest;
}

}  // namespace

std::string plot_rates(const std::vector<ProbePoint>& points, bool utf8) {
  const std::map<int64_t, Rates> groups = highest_by_in_flight(points);
  double top = 0;
  for (const auto& [in_flight, rates] : groups) {
    top = std::max({top, rates.read, rates.write, rates.mixed});
  }
  if (top <= 0) {
    return "";
  }
  std::string text = "  GB/s, by bytes in flight (each group: read, write, mixed)\n";
  for (int row = kRows - 1; row >= 0; --row) {
    text += row == kRows - 1 ? fmt::format("{:>7.2f} |", top / 1e9) : fmt::format("{:>7} |", "");
    for (const auto& [in_flight, rates] : groups) {
      text += ' ';
      for (const double rate : {rates.read, rates.write, rates.mixed}) {
        const std::string_view mark = cell(rate / top * kRows, row, utf8);
        text += fmt::format("{}{} ", mark, mark);
      }
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  text += fmt::format("{:>7} +{}\n{:>9}", 0, std::string(groups.size() * kGroupColumns, '-'), "");
  for (const auto& [in_flight, rates] : groups) {
    text += fmt::format("{:^{}}", format_bytes(Bytes(in_flight)), kGroupColumns);
  }
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string plot_series(const std::vector<double>& values, size_t columns, bool utf8) {
  if (values.empty() || columns == 0) {
    return "";
  }
  const double top = *std::max_element(values.begin(), values.end());
  const size_t count = std::min(columns, values.size());
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = i * values.size() / count;
    const size_t end = std::max(begin + 1, (i + 1) * values.size() / count);
    const double mean = std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                        values.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
                        static_cast<double>(end - begin);
    const double share = top > 0 ? std::max(0.0, mean / top) : 0;
    if (utf8) {
      text += kBlocks[1 + static_cast<size_t>(std::lround(share * (kEighths - 1)))];
    } else {
      text += static_cast<char>('0' + std::lround(share * 9));
    }
  }
  return text;
}

}  // namespace headrace::aio
