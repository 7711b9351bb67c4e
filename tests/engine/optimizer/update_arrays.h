#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/random.h"
#include "base/split_float.h"
#include "engine/optimizer/update.h"

namespace headrace::engine::testing {

enum class MasterKind : uint8_t { plain, with_bf16, with_f16, split, weight };
inline constexpr MasterKind kMasterKinds[] = {MasterKind::plain, MasterKind::with_bf16,
                                              MasterKind::with_f16, MasterKind::split,
                                              MasterKind::weight};

/// One kernel: where the master is, what is stored how.
struct Variant {
  MasterKind master = MasterKind::with_bf16;
  DType moments = DType::f32;
  DType gradient = DType::f32;
  bool accumulated = false;

  std::string name() const {
    constexpr const char* kMasters[] = {"plain", "with_bf16", "with_f16", "split", "weight"};
    return fmt::format("master {}, moments {}, gradient {}{}", kMasters[static_cast<int>(master)],
                       to_string(moments), to_string(gradient), accumulated ? ", accumulated" : "");
  }
};

inline std::vector<Variant> all_variants() {
  std::vector<Variant> variants;
  for (const MasterKind master : kMasterKinds) {
    for (const DType moments : {DType::f32, DType::bf16}) {
      for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
        for (const bool accumulated : {false, true}) {
          variants.push_back({master, moments, gradient, accumulated});
        }
      }
    }
  }
  return variants;
}

/// An array of f32, bf16, f16 or u16 values that starts `offset` elements after a 64-byte border,
/// with a border of known bytes around it.
class Column {
 public:
  Column(DType dtype, int64_t count, int64_t offset)
      : dtype_(dtype),
        size_(static_cast<size_t>(bytes_for(Elements(count), dtype).count())),
        memory_(size_ + 1024, kBorder) {
    const size_t address = reinterpret_cast<size_t>(memory_.data());
    begin_ = 256 + (64 - address % 64) % 64 +
             static_cast<size_t>(bytes_for(Elements(offset), dtype).count());
    std::memset(data(), 0, size_);
  }

  void* data() { return memory_.data() + begin_; }
  const void* data() const { return memory_.data() + begin_; }

  uint16_t word(int64_t i) const { return at<uint16_t>(i); }
  void set_word(int64_t i, uint16_t word) { put(i, word); }

  float value(int64_t i) const {
    switch (dtype_) {
      case DType::bf16:
        return to_float(Bf16{at<uint16_t>(i)});
      case DType::f16:
        return to_float(F16{at<uint16_t>(i)});
      default:
        return at<float>(i);
    }
  }
  /// Rounds to nearest even where the array holds 16-bit values.
  void set_value(int64_t i, float value) {
    switch (dtype_) {
      case DType::bf16:
        return put(i, to_bf16(value).bits);
      case DType::f16:
        return put(i, to_f16(value).bits);
      default:
        return put(i, value);
    }
  }

  bool border_is_intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < begin_ || i >= begin_ + size_) && memory_[i] != kBorder) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr uint8_t kBorder = 0x5a;

  template <class T>
  T at(int64_t i) const {
    T value;
    std::memcpy(&value, memory_.data() + begin_ + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void put(int64_t i, T value) {
    std::memcpy(memory_.data() + begin_ + static_cast<size_t>(i) * sizeof(T), &value, sizeof(T));
  }

  DType dtype_;
  size_t size_;
  std::vector<uint8_t> memory_;
  size_t begin_;
};

/// The arrays of one shard. Each starts at another distance from a cache line: `offset` and a bit.
class Arrays {
 public:
  Arrays(const Variant& variant, int64_t count, int64_t offset = 0)
      : variant_(variant),
        count_(count),
        master_(DType::f32, has_array() ? count : 0, offset + 3),
        low_(DType::u16, is_split() ? count : 0, offset + 5),
        weight_(weight_dtype(), has_weight() ? count : 0, offset),
        moment1_(variant.moments, count, offset + 1),
        moment2_(variant.moments, count, offset + 2),
        gradient_(variant.gradient, count, offset + 7),
        accumulated_(DType::f32, variant.accumulated ? count : 0, offset + 4) {}

  /// Values of the size that training has; `moments`: not zero, as at the start.
  void fill(uint64_t seed, bool moments = true) {
    Random random(seed, 0);
    for (int64_t i = 0; i < count_; ++i) {
      set_master(i, random.normal());
      const float first = 0.1F * random.normal();
      const float second = uniform_from(random.next_u32());
      moment1_.set_value(i, moments ? first : 0);
      moment2_.set_value(i, moments ? second : 0);
    }
    fill_gradient(seed + 1000);
  }
  /// Adagrad's sum of squares, which fill() makes of either sign.
  void make_sums_positive(const UpdateOptions& options) {
    for (int64_t i = 0; options.kind == OptimizerKind::adagrad && i < count_; ++i) {
      moment1_.set_value(i, std::abs(moment1_.value(i)));
    }
  }
  void fill_gradient(uint64_t seed) {
    Random random(seed, 1);
    for (int64_t i = 0; i < count_; ++i) {
      gradient_.set_value(i, random.normal());
      if (variant_.accumulated) {
        accumulated_.set_value(i, random.normal());
      }
    }
  }

  UpdateShard shard() { return shard_from(0, count_); }
  UpdateShard shard_from(int64_t begin, int64_t count) {
    UpdateShard s;
    s.master = has_array() ? static_cast<float*>(master_.data()) + begin : nullptr;
    s.weight_is_master = variant_.master == MasterKind::weight;
    s.master_low = is_split() ? static_cast<uint16_t*>(low_.data()) + begin : nullptr;
    s.weight = has_weight() ? static_cast<uint16_t*>(weight_.data()) + begin : nullptr;
    s.weight_dtype = weight_dtype();
    s.moment_dtype = variant_.moments;
    s.moment1 = at(moment1_, variant_.moments, begin);
    s.moment2 = at(moment2_, variant_.moments, begin);
    s.gradient_dtype = variant_.gradient;
    s.gradient = at(gradient_, variant_.gradient, begin);
    s.accumulated =
        variant_.accumulated ? static_cast<float*>(accumulated_.data()) + begin : nullptr;
    s.count = Elements(count);
    return s;
  }

  int64_t count() const { return count_; }
  DType moment_dtype() const { return variant_.moments; }
  float master(int64_t i) const {
    if (has_array()) {
      return master_.value(i);
    }
    return is_split() ? join({weight_.word(i), low_.word(i)}) : weight_.value(i);
  }
  /// The master and the weight that is made of it.
  void set_master(int64_t i, float value) {
    if (has_array()) {
      master_.set_value(i, value);
    }
    if (is_split()) {
      low_.set_word(i, split(value).low);
    }
    if (has_weight()) {
      weight_.set_word(i, weight_dtype() == DType::f16 ? to_f16(value).bits : split(value).weight);
    }
  }
  float weight(int64_t i) const { return weight_.value(i); }
  uint16_t weight_word(int64_t i) const { return weight_.word(i); }
  Column& moment1() { return moment1_; }
  Column& moment2() { return moment2_; }
  Column& gradient() { return gradient_; }
  /// Before the scale.
  float whole_gradient(int64_t i) const {
    return variant_.accumulated ? accumulated_.value(i) + gradient_.value(i) : gradient_.value(i);
  }
  bool has_weight() const { return variant_.master != MasterKind::plain; }

  /// Equal bits, any NaN equal to any other; and nothing written around the arrays.
  void expect_equal(const Arrays& other) const {
    for (int64_t i = 0; i < count_; ++i) {
      ASSERT_TRUE(same(master(i), other.master(i)))
          << "master " << i << ": " << master(i) << " " << other.master(i);
      ASSERT_TRUE(same(moment1_.value(i), other.moment1_.value(i))) << "moment1 " << i;
      ASSERT_TRUE(same(moment2_.value(i), other.moment2_.value(i))) << "moment2 " << i;
      if (has_weight()) {
        ASSERT_TRUE(same(weight(i), other.weight(i)))
            << "weight " << i << ": " << weight(i) << " " << other.weight(i);
      }
    }
    for (const Column* column : {&master_, &low_, &weight_, &moment1_, &moment2_}) {
      ASSERT_TRUE(column->border_is_intact());
    }
  }

  static bool same(float a, float b) {
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
           (std::isnan(a) && std::isnan(b));
  }

 private:
  bool is_split() const { return variant_.master == MasterKind::split; }
  bool has_array() const { return !is_split() && variant_.master != MasterKind::weight; }
  DType weight_dtype() const {
    return variant_.master == MasterKind::with_f16 ? DType::f16 : DType::bf16;
  }
  static void* at(Column& column, DType dtype, int64_t begin) {
    return static_cast<std::byte*>(column.data()) + bytes_for(Elements(begin), dtype).count();
  }

  Variant variant_;
  int64_t count_;
  Column master_;
  Column low_;
  Column weight_;
  Column moment1_;
  Column moment2_;
  Column gradient_;
  Column accumulated_;
};

/// The updates written down once more, element by element. Returns whether all new values are
/// finite. In update_oracle.cc, where nothing is fused.
bool update_by_scalars(const UpdateOptions& options, Arrays& arrays);

/// Options that between them take every branch of every optimizer.
std::vector<UpdateOptions> option_mix();

}  // namespace headrace::engine::testing
