#include "base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace headrace {

namespace detail {

int64_t checked_add(int64_t a, int64_t b) {
  int64_t r = 0;
  if (__builtin_add_overflow(a, b, &r)) {
    throw InputError(fmt::format("size overflow: {} + {} does not fit in 64 bits", a, b));
  }
  return r;
}

int64_t checked_sub(int64_t a, int64_t b) {
  int64_t r = 0;
  if (__builtin_sub_overflow(a, b, &r)) {
    throw InputError(fmt::format("size overflow: {} - {} does not fit in 64 bits", a, b));
  }
  return r;
}

int64_t checked_mul(int64_t a, int64_t b) {
  int64_t r = 0;
  if (__builtin_mul_overflow(a, b, &r)) {
    throw InputError(fmt::format("size overflow: {} * {} does not fit in 64 bits", a, b));
  }
  return r;
}

}  // namespace detail

int64_t align_up(int64_t value, int64_t alignment) {
  HR_CHECK(alignment > 0 && value >= 0, "align_up({}, {})", value, alignment);
  const int64_t rest = value % alignment;
  return rest == 0 ? value : detail::checked_add(value, alignment - rest);
}

Bytes align_up(Bytes value, Bytes alignment) {
  return Bytes(align_up(value.count(), alignment.count()));
}

std::byte* align_up(std::byte* address, int64_t alignment) {
  const auto value = static_cast<int64_t>(reinterpret_cast<intptr_t>(address));
  return address + (align_up(value, alignment) - value);
}

Bytes parse_bytes(std::string_view text, std::string_view what) {
  const auto fail = [&] {
    return InputError(fmt::format(
        "{}: '{}' is not a size; write a number with an optional unit, such as 64MiB, 1.5GiB, 2GB",
        what, text));
  };
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || !std::isfinite(number) || number < 0) {
    throw fail();
  }
  std::string unit;
  for (const char* p = end; p != text.data() + text.size(); ++p) {
    if (*p != ' ') {
      unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*p)));
    }
  }
  double scale = 1;
  if (!unit.empty() && unit != "b") {
    const auto power = std::string_view("kmgt").find(unit[0]);
    if (power == std::string_view::npos) {
      throw fail();
    }
    const std::string_view rest = std::string_view(unit).substr(1);
    if (rest.empty() || rest == "ib") {
      scale = std::pow(1024.0, static_cast<double>(power) + 1);
    } else if (rest == "b") {
      scale = std::pow(1000.0, static_cast<double>(power) + 1);
    } else {
      throw fail();
    }
  }
  const double bytes = number * scale;
  if (bytes >= 9.2e18) {
    throw fail();
  }
  return Bytes(static_cast<int64_t>(std::llround(bytes)));
}

std::string format_bytes(Bytes bytes) {
  static constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes.count());
  size_t unit = 0;
  while (std::abs(value) >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) {
    return fmt::format("{} B", bytes.count());
  }
  return fmt::format("{:.{}f} {}", value, value >= 100 ? 0 : value >= 10 ? 1 : 2, kUnits[unit]);
}

std::string format_count(double count) {
  static constexpr std::array<const char*, 5> kUnits = {"", " k", " M", " G", " T"};
  size_t unit = 0;
  while (std::abs(count) >= 1000 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  if (unit == 0) {
    return fmt::format("{:g}", count);
  }
  return fmt::format("{:.{}f}{}", count, count >= 100 ? 0 : count >= 10 ? 1 : 2, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (seconds < 1) {
    return fmt::format("{:.0f} ms", seconds * 1e3);
  }
  if (seconds < 60) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) {
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace headrace
