#pragma once

#include <cstddef>
#include <string>
#include <tuple>
#include <type_traits>

#include "device/cuda/cuda_api.h"
#include "device/cuda/launch.h"
#include "device/optimizer.h"

/// Values as bytes that are equal exactly where the values have the same bits: members one by one,
/// without what lies between them.
namespace headrace::device::cuda {

/// Members of the structures that have padding or floats. A wrong number does not compile.
template <class T>
inline constexpr int kMembers = 0;
template <>
inline constexpr int kMembers<ElementwiseArguments> = 13;
template <>
inline constexpr int kMembers<RopeArguments> = 8;
template <>
inline constexpr int kMembers<RmsNormArguments> = 16;
template <>
inline constexpr int kMembers<CrossEntropyArguments> = 13;
template <>
inline constexpr int kMembers<OptimizerArguments> = 4;
template <>
inline constexpr int kMembers<OptimizerStep> = 19;
template <>
inline constexpr int kMembers<OptimizerArrays> = 11;
template <>
inline constexpr int kMembers<MatmulArguments> = 12;
template <>
inline constexpr int kMembers<AttentionArguments> = 25;
template <>
inline constexpr int kMembers<LtProduct> = 19;

template <class T>
auto members_of(const T& v) {
  if constexpr (kMembers<T> == 4) {
    const auto& [a, b, c, d] = v;
    return std::tie(a, b, c, d);
  } else if constexpr (kMembers<T> == 8) {
    const auto& [a, b, c, d, e, f, g, h] = v;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (kMembers<T> == 11) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (kMembers<T> == 12) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (kMembers<T> == 13) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (kMembers<T> == 16) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  } else if constexpr (kMembers<T> == 19) {
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s);
  } else {
    static_assert(kMembers<T> == 25, "kMembers lacks this structure, or members_of() its number");
    const auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, w, x, y, z] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, w, x, y, z);
  }
}

template <class T>
void append_bytes(std::string& key, const T& value) {
  if constexpr (std::is_floating_point_v<T> || std::has_unique_object_representations_v<T>) {
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  } else if constexpr (std::is_array_v<T>) {
    for (const auto& element : value) {
      append_bytes(key, element);
    }
  } else {
    std::apply([&](const auto&... members) { (append_bytes(key, members), ...); },
               members_of(value));
  }
}

}  // namespace headrace::device::cuda
