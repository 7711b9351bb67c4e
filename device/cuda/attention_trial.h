#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "device/cuda/cudnn_plan.h"
#include "device/cuda/launch.h"
#include "device/device.h"

namespace headrace::device::cuda {

/// Seconds of one pass.
struct AttentionTimes {
  double own = 0;
  double other = 0;
};

/// One attention computed in two ways, on random numbers that are always the same, in memory of its
/// own. The first way is the reference.
class AttentionTrial {
 public:
  /// Posts one pass with these arguments and workspace.
  using Post =
      std::function<void(Stream&, AttentionPass, const AttentionArguments&, void* workspace)>;

  /// `workspace`: bytes that the other ways may take. CapacityError if the device has not so much.
  AttentionTrial(Device& device, const AttentionShape& shape, DType dtype, Bytes workspace);

  /// Runs one pass both ways, and `rounds` times more for the times. CudaError where the results
  /// differ by more than roundings explain, or the other way does not give the same bits twice.
  /// Backward takes the first way's forward.
  AttentionTimes compare(AttentionPass pass, const Post& own, const Post& other, int rounds);

 private:
  /// A matrix of tokens by heads, or numbers by query, in device memory.
  struct Result {
    const char* name;
    std::byte* own;
    std::byte* other;
    int64_t rows;
    int64_t heads;
    int64_t stride;  ///< elements between rows
  };

  std::byte* take(Bytes size);
  std::byte* take_rows(int64_t stride) {
    return take(bytes_for(Elements(rows() * stride), dtype_));
  }
  void fill(std::byte* data, int64_t stride, uint64_t seed);
  int64_t rows() const { return shape_.batch * shape_.seq; }
  std::vector<Result> results(AttentionPass pass) const;
  Bytes bytes_of(const Result& result) const;
  std::vector<std::byte> download(const std::byte* data, Bytes size);
  double seconds(const Post& post, AttentionPass pass, const AttentionArguments& arguments);
  std::vector<std::vector<std::byte>> run_other(const Post& post, AttentionPass pass);
  void check(const Result& result);

  AttentionShape shape_;
  DType dtype_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Stream> stream_;
  Bytes taken_;
  AttentionArguments own_;
  AttentionArguments other_;
  std::byte* workspace_ = nullptr;
};

}  // namespace headrace::device::cuda
