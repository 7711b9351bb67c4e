#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/units.h"
#include "device/kernels.h"

namespace headrace::model {

/// Stack allocator over a workspace, every block 64-byte aligned. Without a workspace it plans: it
/// hands out null pointers and only measures, so that the same code that runs an operation also
/// says how much memory it needs. Memory is reused by later work of the same stream, hence in
/// order.
class WorkspaceStack {
 public:
  static constexpr Bytes kAlignment{64};

  /// Planning.
  WorkspaceStack() = default;
  explicit WorkspaceStack(device::Workspace workspace)
      : base_(workspace.data), capacity_(workspace.size), is_planning_(false) {
    HR_CHECK(reinterpret_cast<uintptr_t>(base_) % kAlignment.count() == 0,
             "workspace is not aligned to {} bytes", kAlignment);
  }

  void* take(Bytes size) {
    const Bytes begin = used_;
    used_ += align_up(size, kAlignment);
    peak_ = std::max(peak_, used_);
    if (is_planning_) {
      return nullptr;
    }
    HR_CHECK(used_ <= capacity_, "workspace of {} bytes is too small, {} are needed at this point",
             capacity_, used_);
    return base_ + begin.count();
  }

  /// Most bytes that were in use at a time.
  Bytes peak() const { return peak_; }

  /// Gives back at its end what was taken since its start.
  class Scope {
   public:
    explicit Scope(WorkspaceStack& stack) : stack_(stack), used_(stack.used_) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { stack_.used_ = used_; }

   private:
    WorkspaceStack& stack_;
    Bytes used_;
  };

 private:
  std::byte* base_ = nullptr;
  Bytes capacity_;
  Bytes used_;
  Bytes peak_;
  bool is_planning_ = true;
};

}  // namespace headrace::model
