#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/random.h"
#include "device/cuda/cuda_device.h"
#include "device/device.h"
#include "device/gpu.h"
#include "device/kernels.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/support/real_gpu.h"

/// One suite for all devices: tests are written over DeviceTest and instantiated with
/// HEADRACE_DEVICE_SUITE; a new backend joins by one line in all_devices().
namespace headrace::device::testing {

struct DeviceFactory {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  /// Products have the same bits for addresses that differ by multiples of this many bytes; above
  /// 1 for equal strides only.
  int64_t product_alignment = 1;
  /// The same of attention, in elements, and of strides that are multiples of it.
  int64_t attention_alignment = 1;
  bool has_fp8 = true;
  /// Largest error of adding a term to a sum in fp8 products, of the sum of all magnitudes.
  double fp8_sum_error = 0x1p-24;

  friend std::ostream& operator<<(std::ostream& out, const DeviceFactory& factory) {
    return out << factory.name;
  }
};

inline std::unique_ptr<Device> make_fake_cuda_device() {
  return std::make_unique<cuda::CudaDevice>(std::make_shared<FakeCuda>(), 0);
}

/// Whatever is posted comes out of a CUDA graph.
inline GpuOptions all_in_graphs() {
  GpuOptions how;
  how.graphs.use = GraphUse::on;
  how.graphs.least_launches = 1;
  how.graphs.captured_at = 1;
  return how;
}

inline std::unique_ptr<Device> make_fake_cuda_device_of_graphs() {
  return std::make_unique<cuda::CudaDevice>(std::make_shared<FakeCuda>(), 0, all_in_graphs());
}

inline std::vector<DeviceFactory> all_devices() {
  std::vector<DeviceFactory> devices = {{"cpu", make_cpu_device},
                                        {"fake_cuda", make_fake_cuda_device},
                                        {"fake_cuda_graphs", make_fake_cuda_device_of_graphs}};
  if (const GpuSearch search = headrace::test::find_gpu_for_tests(); search.gpu) {
    const auto make = [found = *search.gpu] { return found.make_device({}); };
    const auto make_graphs = [found = *search.gpu] { return found.make_device(all_in_graphs()); };
    // Tensor cores keep some 14 bits of a sum of fp8 products (DeepSeek-AI 2024, "DeepSeek-V3
    // Technical Report", 3.3.2); cuBLASLt adds some of these sums to fp32 every 128 terms.
    devices.push_back({"gpu", make, 16, 1, search.gpu->has_fp8, 0x1p-17});
    devices.push_back({"gpu_graphs", make_graphs, 16, 1, search.gpu->has_fp8, 0x1p-17});
  }
  return devices;
}

/// Without the fake GPU that has all in graphs, for suites of kernels that take it long and that it
/// has in graphs in another suite.
inline std::vector<DeviceFactory> devices_but_emulated_graphs() {
  std::vector<DeviceFactory> devices = all_devices();
  devices.erase(std::remove_if(devices.begin(), devices.end(),
                               [](const auto& each) { return each.name == "fake_cuda_graphs"; }),
                devices.end());
  return devices;
}

inline double decode(DType dtype, const std::byte* source) {
  return load_float(source, dtype);
}

inline void encode(DType dtype, double value, std::byte* target) {
  store_float(static_cast<float>(value), target, dtype);
}

/// Largest relative error of one rounding to the dtype.
inline double unit_roundoff(DType dtype) {
  return dtype == DType::f32 ? 0x1p-24 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-11;
}

/// Largest error of rounding a value near `value` to the dtype, subnormals of binary16 included.
inline double rounding_error(DType dtype, double value) {
  return std::abs(value) * unit_roundoff(dtype) * 1.01 + (dtype == DType::f16 ? 0x1p-25 : 1e-37);
}

/// A matrix of a test: its values on the host as double, and device memory that holds it between
/// guard bytes.
class TestMatrix {
 public:
  /// `shift` elements lie before the first one in its 4096-byte aligned memory.
  TestMatrix(Device& device, Stream& stream, DType dtype, int64_t rows, int64_t columns,
             int64_t stride, int64_t shift = 0)
      : stream_(&stream),
        dtype_(dtype),
        rows_(rows),
        columns_(columns),
        stride_(stride),
        shift_(shift),
        image_(static_cast<size_t>((shift + rows * stride + 16) * size_of(dtype).count()), kGuard),
        values_(static_cast<size_t>(rows * columns)),
        memory_(device.allocate(Bytes(static_cast<int64_t>(image_.size())))) {
    decode_all();
    upload();
  }

  Matrix view() const {
    return {memory_->data() + shift_ * size_of(dtype_).count(), dtype_, rows_, columns_, stride_};
  }
  template <class T = void>
  T* data() const {
    return static_cast<T*>(view().data);
  }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  double operator()(int64_t r, int64_t c) const {
    return values_[static_cast<size_t>(r * columns_ + c)];
  }

  /// Sets all elements (rounded to the dtype) and uploads them.
  template <class Value>
  TestMatrix& fill(const Value& value) {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) {
        encode(dtype_, value(r, c), image_.data() + offset(r, c));
      }
    }
    decode_all();
    upload();
    return *this;
  }
  TestMatrix& fill_normal(Random& random, double scale = 1) {
    return fill([&](int64_t, int64_t) { return scale * random.normal(); });
  }

  /// Fetches the device's values; fails the test where anything around the matrix has changed.
  TestMatrix& download() {
    const std::vector<std::byte> before = image_;
    stream_->copy_async(image_.data(), memory_->data(), Bytes(static_cast<int64_t>(image_.size())));
    stream_->synchronize();
    std::vector<std::byte> outside = image_;
    for (int64_t r = 0; r < rows_; ++r) {
      std::memcpy(outside.data() + offset(r, 0), before.data() + offset(r, 0),
                  static_cast<size_t>(columns_ * size_of(dtype_).count()));
    }
    EXPECT_TRUE(outside == before) << "bytes around the matrix were changed";
    decode_all();
    return *this;
  }

  /// The bytes of the elements, for bitwise comparisons.
  std::vector<std::byte> bits() const {
    std::vector<std::byte> all;
    for (int64_t r = 0; r < rows_; ++r) {
      all.insert(all.end(), at(r, 0), at(r, 0) + columns_ * size_of(dtype_).count());
    }
    return all;
  }

 private:
  static constexpr std::byte kGuard{0x5a};

  size_t offset(int64_t r, int64_t c) const {
    return static_cast<size_t>((shift_ + r * stride_ + c) * size_of(dtype_).count());
  }
  const std::byte* at(int64_t r, int64_t c) const { return image_.data() + offset(r, c); }
  void decode_all() {
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) {
        values_[static_cast<size_t>(r * columns_ + c)] = decode(dtype_, at(r, c));
      }
    }
  }
  void upload() {
    stream_->copy_async(memory_->data(), image_.data(), Bytes(static_cast<int64_t>(image_.size())));
    stream_->synchronize();
  }

  Stream* stream_;
  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  int64_t stride_;
  int64_t shift_;
  std::vector<std::byte> image_;
  std::vector<double> values_;
  std::unique_ptr<Memory> memory_;
};

/// Device memory with a host image of plain values.
template <class T>
class TestArray {
 public:
  TestArray(Device& device, Stream& stream, std::vector<T> values)
      : stream_(&stream), values_(std::move(values)), memory_(device.allocate(size())) {
    stream_->copy_async(memory_->data(), values_.data(), size());
    stream_->synchronize();
  }
  T* data() const { return reinterpret_cast<T*>(memory_->data()); }
  const std::vector<T>& download() {
    stream_->copy_async(values_.data(), memory_->data(), size());
    stream_->synchronize();
    return values_;
  }

 private:
  Bytes size() const { return Bytes(static_cast<int64_t>(values_.size() * sizeof(T))); }

  Stream* stream_;
  std::vector<T> values_;
  std::unique_ptr<Memory> memory_;
};

/// A device with one stream.
class DeviceTest : public ::testing::TestWithParam<DeviceFactory> {
 protected:
  /// Scratch of exactly this size, with guard bytes behind it; ends the life of the one before.
  Workspace scratch(Bytes size) {
    check_scratch_guard();
    scratch_ = device_->allocate(size + Bytes(kGuardBytes));
    const std::vector<std::byte> guard(kGuardBytes, kGuard);
    stream_->copy_async(scratch_->data() + size.count(), guard.data(), Bytes(kGuardBytes));
    stream_->synchronize();
    return {scratch_->data(), size};
  }
  void TearDown() override { check_scratch_guard(); }
  Kernels& kernels() { return device_->kernels(); }
  TestMatrix matrix(DType dtype, int64_t rows, int64_t columns, int64_t padding = 0,
                    int64_t shift = 0) {
    return {*device_, *stream_, dtype, rows, columns, columns + padding, shift};
  }
  template <class T>
  TestArray<T> array(std::vector<T> values) {
    return {*device_, *stream_, std::move(values)};
  }

  static constexpr int64_t kGuardBytes = 256;
  static constexpr std::byte kGuard{0x6b};

  void check_scratch_guard() {
    if (scratch_ == nullptr) {
      return;
    }
    std::vector<std::byte> guard(kGuardBytes);
    stream_->copy_async(guard.data(), scratch_->data() + scratch_->size().count() - kGuardBytes,
                        Bytes(kGuardBytes));
    stream_->synchronize();
    EXPECT_EQ(guard, std::vector<std::byte>(kGuardBytes, kGuard)) << "written beyond the scratch";
    scratch_.reset();
  }

  std::unique_ptr<Device> device_ = GetParam().make();
  std::unique_ptr<Stream> stream_ = device_->create_stream("test");
  std::unique_ptr<Memory> scratch_;
};

#define HEADRACE_DEVICE_SUITE_OVER(suite, devices)                       \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::ValuesIn(devices), \
                           [](const auto& made) { return made.param.name; })
#define HEADRACE_DEVICE_SUITE(suite) \
  HEADRACE_DEVICE_SUITE_OVER(suite, headrace::device::testing::all_devices())

/// |actual - expected| <= bound, or both NaN, or the same infinity. `where()` names the place.
template <class Where>
void expect_near(double actual, double expected, double bound, const Where& where) {
  const bool same = actual == expected || (std::isnan(actual) && std::isnan(expected));
  // Written so that a NaN on one side only is a failure.
  if (!same && !(std::abs(actual - expected) <= bound)) {
    ADD_FAILURE() << where() << ": " << actual << " instead of " << expected << " +- " << bound;
  }
}

}  // namespace headrace::device::testing
