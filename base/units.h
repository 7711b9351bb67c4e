#pragma once

#include <fmt/format.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

namespace detail {
int64_t checked_add(int64_t a, int64_t b);  ///< throws InputError on overflow, like the others
int64_t checked_sub(int64_t a, int64_t b);
int64_t checked_mul(int64_t a, int64_t b);
}  // namespace detail

/// A 64-bit count that cannot be mixed up with a count of something else. Arithmetic is checked.
template <class Tag>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(int64_t count) : count_(count) {}
  constexpr int64_t count() const { return count_; }
  constexpr auto operator<=>(const Quantity&) const = default;

  friend Quantity operator+(Quantity a, Quantity b) {
    return Quantity(detail::checked_add(a.count_, b.count_));
  }
  friend Quantity operator-(Quantity a, Quantity b) {
    return Quantity(detail::checked_sub(a.count_, b.count_));
  }
  friend Quantity operator*(Quantity a, int64_t factor) {
    return Quantity(detail::checked_mul(a.count_, factor));
  }
  friend Quantity operator*(int64_t factor, Quantity a) { return a * factor; }
  /// How many times b goes into a; b must not be zero.
  friend constexpr int64_t operator/(Quantity a, Quantity b) { return a.count_ / b.count_; }
  friend constexpr Quantity operator/(Quantity a, int64_t divisor) {
    return Quantity(a.count_ / divisor);
  }
  Quantity& operator+=(Quantity b) { return *this = *this + b; }
  Quantity& operator-=(Quantity b) { return *this = *this - b; }

 private:
  int64_t count_ = 0;
};

using Bytes = Quantity<struct BytesTag>;
using Elements = Quantity<struct ElementsTag>;

inline constexpr Bytes kKiB{int64_t{1} << 10};
inline constexpr Bytes kMiB{int64_t{1} << 20};
inline constexpr Bytes kGiB{int64_t{1} << 30};

/// Smallest multiple of `alignment` (> 0) that is not below `value`; checked.
Bytes align_up(Bytes value, Bytes alignment);
int64_t align_up(int64_t value, int64_t alignment);
/// The first multiple of `alignment` from there on.
std::byte* align_up(std::byte* address, int64_t alignment);

/// a / b, rounded up; a >= 0, b > 0. Also for kernels, so it checks nothing.
constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

/// "64MiB", "1.5 GiB", "2GB" (decimal), "4096" (bytes), case-insensitive, K/M/G/T alone are
/// binary. Throws InputError naming `what` (a flag or configuration key) otherwise.
Bytes parse_bytes(std::string_view text, std::string_view what);
/// Three significant digits with a binary unit: "1.50 GiB".
std::string format_bytes(Bytes bytes);
/// With decimal prefix: "135 M", "40.1 G".
std::string format_count(double count);
/// "1 h 02 min", "3 min 20 s", "12.3 s", "45 ms".
std::string format_duration(double seconds);

}  // namespace headrace

template <class Tag>
struct fmt::formatter<headrace::Quantity<Tag>> : fmt::formatter<int64_t> {
  auto format(const headrace::Quantity<Tag>& q, fmt::format_context& context) const {
    return fmt::formatter<int64_t>::format(q.count(), context);
  }
};
