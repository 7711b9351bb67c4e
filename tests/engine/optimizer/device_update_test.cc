// The optimizer on the device, over all devices: the bits of the host's, which the scalars of the
// oracle write down once more.
#include "engine/optimizer/device_update.h"

#include <limits>

#include "device/cpu/row_kernels.h"
#include "engine/optimizer/update_arrays.h"
#include "tests/device/device_suite.h"

namespace headrace::engine::testing {
namespace {

using device::kStatisticsBlock;
using device::OptimizerArrays;

class DeviceUpdateTest : public device::testing::DeviceTest {
 protected:
  /// Runs the step on the device over copies of the arrays, each `shift` elements behind a multiple
  /// of 64 bytes and between guards, and takes the results back. Returns whether all is finite.
  bool update_on_device(const device::OptimizerStep& step, Arrays& arrays, int64_t shift) {
    const UpdateShard host = arrays.shard();
    UpdateShard shard = host;
    std::vector<Copy> copies;
    Bytes size(kGuard);
    const auto place = [&](void* data, DType dtype) -> Copy& {
      const Bytes bytes = bytes_for(host.count, dtype);
      const Bytes at = size + bytes_for(Elements(shift), dtype);
      size = align_up(at + bytes, Bytes(64)) + Bytes(kGuard);
      return copies.emplace_back(Copy{data, bytes, at});
    };
    const Copy master = place(host.master, DType::f32);
    const Copy low = place(host.master_low, DType::u16);
    const Copy weight = place(host.weight, host.weight_dtype);
    const Copy moment1 = place(host.moment1, host.moment_dtype);
    const Copy moment2 = place(host.moment2, host.moment_dtype);
    const Copy gradient = place(const_cast<void*>(host.gradient), host.gradient_dtype);
    const auto memory = device_->allocate(size + Bytes(64));
    std::byte* const base = memory->data();
    const auto address = [&](const Copy& copy) -> std::byte* {
      return copy.data == nullptr ? nullptr : base + copy.at.count();
    };
    shard.master = reinterpret_cast<float*>(address(master));
    shard.master_low = reinterpret_cast<uint16_t*>(address(low));
    shard.weight = address(weight);
    shard.moment1 = address(moment1);
    shard.moment2 = address(moment2);
    shard.gradient = address(gradient);
    auto* const flag = reinterpret_cast<int32_t*>(base + size.count());

    std::vector<std::byte> image(static_cast<size_t>(size.count()), std::byte{0x5a});
    for (const Copy& copy : copies) {
      if (copy.data != nullptr) {
        std::memcpy(image.data() + copy.at.count(), copy.data,
                    static_cast<size_t>(copy.size.count()));
      }
    }
    std::vector<std::byte> after = image;
    stream_->copy_async(base, image.data(), size);
    kernels().optimizer_update(*stream_, step, device_arrays(shard), flag);
    int32_t not_finite = 0;
    stream_->copy_async(after.data(), base, size);
    stream_->copy_async(&not_finite, flag, Bytes(sizeof(not_finite)));
    stream_->synchronize();
    for (const Copy& copy : copies) {
      if (copy.data != nullptr) {
        const auto bytes = static_cast<size_t>(copy.size.count());
        std::memcpy(copy.data, after.data() + copy.at.count(), bytes);
        std::memcpy(image.data() + copy.at.count(), after.data() + copy.at.count(), bytes);
      }
    }
    EXPECT_TRUE(after == image) << "bytes around the arrays were changed";
    return not_finite == 0;
  }

 private:
  static constexpr int64_t kGuard = 128;
  struct Copy {
    void* data;
    Bytes size;
    Bytes at;
  };
};

/// Sums of gradients lie on the host only.
std::vector<Variant> device_variants() {
  std::vector<Variant> variants = all_variants();
  std::erase_if(variants, [](const Variant& variant) { return variant.accumulated; });
  return variants;
}

TEST_P(DeviceUpdateTest, HasTheBitsOfTheHost) {
  for (const UpdateOptions& options : option_mix()) {
    for (const Variant& variant : device_variants()) {
      SCOPED_TRACE(variant.name());
      // Pieces of the GPU's blocks and of the CPU's stack; with shift 0 moved in packs.
      for (const int64_t count : {1, 7, 300, 4096 + 13}) {
        Arrays start(variant, count);
        start.fill(3);
        start.make_sums_positive(options);
        Arrays expected = start;
        ASSERT_TRUE(update_by_scalars(options, expected));
        Arrays by_host = start;
        ASSERT_TRUE(update(options, by_host.shard()).all_finite);
        for (const int64_t shift : {0, 3}) {
          Arrays arrays = start;
          EXPECT_TRUE(update_on_device(device_step(options), arrays, shift));
          ASSERT_NO_FATAL_FAILURE(arrays.expect_equal(expected)) << count << " " << shift;
          ASSERT_NO_FATAL_FAILURE(arrays.expect_equal(by_host)) << count << " " << shift;
        }
      }
    }
  }
}

TEST_P(DeviceUpdateTest, SpecialValues) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float values[] = {0.0F,    -0.0F,    kInfinity, -kInfinity, NAN,  1e-45F, -1e-40F,
                          3.4e38F, -3.4e38F, 65520.0F,  6e-8F,      1.0F, -2e-6F};
  constexpr int64_t kKinds = std::size(values);
  for (const UpdateOptions& options : option_mix()) {
    for (const Variant& variant : device_variants()) {
      SCOPED_TRACE(variant.name());
      Arrays start(variant, kKinds * kKinds);
      for (int64_t i = 0; i < start.count(); ++i) {
        start.set_master(i, values[i / kKinds]);
        start.gradient().set_value(i, values[i % kKinds]);
        start.moment1().set_value(i, values[(i + 2) % kKinds]);
        start.moment2().set_value(i, std::abs(values[(i + 5) % kKinds]));
      }
      start.make_sums_positive(options);
      Arrays expected = start;
      const bool is_finite = update_by_scalars(options, expected);
      EXPECT_EQ(update_on_device(device_step(options), start, 0), is_finite);
      ASSERT_NO_FATAL_FAILURE(start.expect_equal(expected));
    }
  }
}

TEST_P(DeviceUpdateTest, FindsASingleBadValueWhereverItIs) {
  constexpr int64_t kCount = 3 * 4096 + 101;
  UpdateOptions options;
  options.step = 2;
  const Variant variant{MasterKind::split, DType::f32, DType::f32, false};
  for (const int64_t at : {int64_t{0}, int64_t{4095}, int64_t{4096}, kCount - 1}) {
    Arrays arrays(variant, kCount);
    arrays.fill(2);
    arrays.gradient().set_value(at, NAN);
    EXPECT_FALSE(update_on_device(device_step(options), arrays, 0)) << at;
  }
}

TEST_P(DeviceUpdateTest, RewritingChangesTheWeightsAlone) {
  for (const MasterKind master : {MasterKind::with_bf16, MasterKind::with_f16}) {
    Arrays arrays({master, DType::f32, DType::f32, false}, 1001);
    arrays.fill(6);
    const Arrays before = arrays;
    UpdateShard shard = arrays.shard();
    std::memset(shard.weight, 0x11, 2 * 1001);
    device::OptimizerStep step;
    step.rule = device::OptimizerRule::rewrite;
    EXPECT_TRUE(update_on_device(step, arrays, 0));
    ASSERT_NO_FATAL_FAILURE(arrays.expect_equal(before));
  }
}

TEST_P(DeviceUpdateTest, StatisticsHaveTheBitsOfTheHost) {
  const int64_t block = kStatisticsBlock.count();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t count : {int64_t{1}, int64_t{63}, int64_t{257}, block, 2 * block + 1001}) {
      device::testing::TestMatrix gradient = matrix(dtype, 1, count, 0, 5);
      Random random(9, 0);
      gradient.fill_normal(random);
      const int64_t blocks = device::statistics_blocks(Elements(count));
      auto sums = array(std::vector<double>(static_cast<size_t>(blocks) + 1, 7.5));
      kernels().gradient_statistics(*stream_, gradient.data(), dtype, Elements(count), sums.data());
      const std::vector<double> found = sums.download();
      for (int64_t b = 0; b < blocks; ++b) {
        std::vector<float> values;
        double exact = 0;
        for (int64_t i = b * block; i < std::min(count, (b + 1) * block); ++i) {
          values.push_back(static_cast<float>(gradient(0, i)));
          exact += gradient(0, i) * gradient(0, i);
        }
        const auto host = device::cpu::gradient_stats(
            values.data(), Elements(static_cast<int64_t>(values.size())));
        EXPECT_EQ(found[static_cast<size_t>(b)], host.sum_of_squares) << count << " " << b;
        EXPECT_NEAR(found[static_cast<size_t>(b)], exact, 1e-12 * exact);
      }
      EXPECT_EQ(found.back(), 7.5) << "written beyond the blocks";
    }
  }
}

TEST_P(DeviceUpdateTest, StatisticsShowWhatIsNotFinite) {
  const int64_t count = kStatisticsBlock.count() + 70;
  for (const double bad : {static_cast<double>(INFINITY), static_cast<double>(NAN)}) {
    for (const int64_t at : {int64_t{0}, kStatisticsBlock.count() - 1, count - 1}) {
      device::testing::TestMatrix gradient = matrix(DType::bf16, 1, count);
      gradient.fill([&](int64_t, int64_t i) { return i == at ? bad : 1.0; });
      auto sums = array(std::vector<double>(2));
      kernels().gradient_statistics(*stream_, gradient.data(), DType::bf16, Elements(count),
                                    sums.data());
      const std::vector<double> found = sums.download();
      EXPECT_EQ(std::isfinite(found[0]), at >= kStatisticsBlock.count()) << at;
      EXPECT_EQ(std::isfinite(found[1]), at < kStatisticsBlock.count()) << at;
    }
  }
}

TEST_P(DeviceUpdateTest, BrokenPreconditionsAreInternalErrors) {
  Arrays arrays({MasterKind::with_bf16, DType::f32, DType::f32, false}, 4);
  const OptimizerArrays good = device_arrays(arrays.shard());
  const auto refuses = [&](auto&& spoil) {
    OptimizerArrays bad = good;
    spoil(bad);
    int32_t flag = 0;
    EXPECT_THROW(kernels().optimizer_update(*stream_, device_step(UpdateOptions()), bad, &flag),
                 InternalError);
  };
  refuses([](OptimizerArrays& a) { a.count = -1; });
  refuses([](OptimizerArrays& a) { a.master = nullptr; });
  refuses([](OptimizerArrays& a) { a.weight_is_master = true; });
  refuses([](OptimizerArrays& a) { a.weight_dtype = DType::f32; });
  refuses([](OptimizerArrays& a) { a.moment1 = nullptr; });
  refuses([](OptimizerArrays& a) { a.moment2 = nullptr; });
  refuses([](OptimizerArrays& a) { a.moment_dtype = DType::u8; });
  refuses([](OptimizerArrays& a) { a.gradient = nullptr; });
  refuses([](OptimizerArrays& a) { a.gradient_dtype = DType::i32; });
  EXPECT_THROW(kernels().optimizer_update(*stream_, device_step(UpdateOptions()), good, nullptr),
               InternalError);
  // Training in fp32: the master is the weight.
  Arrays plain({MasterKind::plain, DType::f32, DType::f32, false}, 0);
  OptimizerArrays none = device_arrays(plain.shard());
  none.weight_dtype = DType::f32;
  int32_t flag = 0;
  EXPECT_NO_THROW(kernels().optimizer_update(*stream_, device_step(UpdateOptions()), none, &flag));
}

HEADRACE_DEVICE_SUITE(DeviceUpdateTest);

/// So that a run without a GPU says so.
TEST(GpuUpdate, IsThere) {
  if (const device::GpuSearch search = headrace::test::find_gpu_for_tests(); !search.gpu) {
    GTEST_SKIP() << search.refusal;
  }
}

}  // namespace
}  // namespace headrace::engine::testing
