#pragma once

#include <cstring>

namespace headrace::device::testing {

/// The register of all threads of a block: what a scalar is under nvcc. Arithmetic is per thread.
/// One that is not set holds a NaN, or an offset that lies nowhere.
template <class T, int kThreads>
struct Lanes {
  T at[kThreads];

  Lanes() { std::memset(at, 0x7f, sizeof(at)); }
  // Not explicit: a kernel mixes its own values with those of all threads.
  Lanes(T uniform) {
    for (T& value : at) {
      value = uniform;
    }
  }

  template <class Result, class F>
  static Lanes<Result, kThreads> map(const F& f) {
    Lanes<Result, kThreads> result;
    for (int i = 0; i < kThreads; ++i) {
      result.at[i] = static_cast<Result>(f(i));
    }
    return result;
  }

  friend Lanes operator+(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] + b.at[i]; });
  }
  friend Lanes operator-(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] - b.at[i]; });
  }
  friend Lanes operator*(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] * b.at[i]; });
  }
  friend Lanes operator/(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] / b.at[i]; });
  }
  friend Lanes operator%(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] % b.at[i]; });
  }
  friend Lanes operator&(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] & b.at[i]; });
  }
  friend Lanes operator|(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] | b.at[i]; });
  }
  friend Lanes operator^(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] ^ b.at[i]; });
  }
  friend Lanes operator<<(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] << b.at[i]; });
  }
  friend Lanes operator>>(const Lanes& a, const Lanes& b) {
    return map<T>([&](int i) { return a.at[i] >> b.at[i]; });
  }
  friend Lanes<bool, kThreads> operator<(const Lanes& a, const Lanes& b) {
    return map<bool>([&](int i) { return a.at[i] < b.at[i]; });
  }
  friend Lanes<bool, kThreads> operator>(const Lanes& a, const Lanes& b) { return b < a; }
  friend Lanes<bool, kThreads> operator<=(const Lanes& a, const Lanes& b) {
    return map<bool>([&](int i) { return a.at[i] <= b.at[i]; });
  }
  friend Lanes<bool, kThreads> operator>=(const Lanes& a, const Lanes& b) { return b <= a; }
  friend Lanes<bool, kThreads> operator==(const Lanes& a, const Lanes& b) {
    return map<bool>([&](int i) { return a.at[i] == b.at[i]; });
  }
  friend Lanes<bool, kThreads> operator!=(const Lanes& a, const Lanes& b) {
    return map<bool>([&](int i) { return a.at[i] != b.at[i]; });
  }
};

}  // namespace headrace::device::testing
