#include "device/cuda/cudnn_attention.h"

#include <algorithm>

#include "device/cuda/cuda_launch.h"

namespace headrace::device::cuda {

namespace {

/// Two runs of the same take times that are this much alike.
constexpr double kAlike = 0.95;
constexpr int kRounds = 5;
constexpr int64_t kAlignment = 256;

std::string describe(const AttentionShape& shape, DType dtype) {
  return fmt::format("{} x {} tokens, {}/{} heads of {} in {}", shape.batch, shape.seq,
                     shape.q_heads, shape.kv_heads, shape.head_dim, to_string(dtype));
}

void post_plan(Stream& stream, const std::shared_ptr<const CudnnPlan>& plan,
               const AttentionArguments& arguments, void* workspace) {
  cuda_stream(stream).post([plan, arguments, workspace](StreamHandle handle) {
    plan->run(handle, arguments, workspace);
  });
}

}  // namespace

CudnnAttention::CudnnAttention(const Gpu& gpu, Device& device, const GpuOptions& options,
                               const OpenCudnn& open)
    : gpu_(gpu), device_(device), options_(options) {
  if (options.attention == AttentionChoice::own) {
    return;
  }
  std::string refusal;
  try {
    std::shared_ptr<CudnnApi> cudnn = open(refusal);
    refusal = cudnn != nullptr ? cudnn_version_refusal(cudnn->version()) : refusal;
    if (cudnn != nullptr && refusal.empty()) {
      context_ = std::make_unique<CudnnContextOwner>(gpu, std::move(cudnn));
    }
  } catch (const Error& error) {
    refusal = error.what();
  }
  if (context_ == nullptr) {
    notes_.push_back("our kernels: " + refusal);
  }
}

Bytes CudnnAttention::extra_scratch(const AttentionShape& shape, DType dtype) {
  const Choice choice = choose(shape, dtype);
  Bytes extra;
  for (const Plan& plan : {choice.forward, choice.backward}) {
    if (plan != nullptr && plan->workspace() > Bytes(0)) {
      extra = std::max(extra, plan->workspace() + Bytes(kAlignment));
    }
  }
  return extra;
}

bool CudnnAttention::post(Stream& stream, AttentionPass pass, const AttentionShape& shape,
                          DType dtype, const AttentionArguments& arguments, std::byte* extra) {
  const Choice choice = choose(shape, dtype);
  const Plan& plan = pass == AttentionPass::forward ? choice.forward : choice.backward;
  if (plan == nullptr || !suits_cudnn(arguments)) {
    return false;
  }
  post_plan(stream, plan, arguments, align_up(extra, kAlignment));
  return true;
}

std::string CudnnAttention::description() const {
  const std::lock_guard lock(mutex_);
  return fmt::format("{}", fmt::join(notes_, ". "));
}

CudnnAttention::Choice CudnnAttention::choose(const AttentionShape& shape, DType dtype) {
  if (context_ == nullptr) {
    return {shape, dtype, nullptr, nullptr};
  }
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(choices_.begin(), choices_.end(), [&](const Choice& each) {
    return each.shape == shape && each.dtype == dtype;
  });
  if (known != choices_.end()) {
    return *known;
  }
  choices_.push_back(decide(shape, dtype));
  return choices_.back();
}

CudnnAttention::Choice CudnnAttention::decide(const AttentionShape& shape, DType dtype) {
  Choice choice{shape, dtype, nullptr, nullptr};
  const std::string refusal = cudnn_refusal(shape, dtype);
  std::string note = "our kernels: " + refusal;
  if (refusal.empty()) {
    std::string forward;
    std::string backward;
    choice.forward = try_pass(AttentionPass::forward, shape, dtype, forward);
    choice.backward = try_pass(AttentionPass::backward, shape, dtype, backward);
    note = fmt::format("forward by {}; backward by {}", forward, backward);
  }
  note = fmt::format("{}: {}", describe(shape, dtype), note);
  if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) {
    notes_.push_back(note);
  }
  return choice;
}

CudnnAttention::Plan CudnnAttention::try_pass(AttentionPass pass, const AttentionShape& shape,
                                              DType dtype, std::string& note) {
  const std::string name = "cuDNN " + describe_cudnn_version(context_->api().version());
  try {
    gpu_.enter();
    auto plan = std::make_shared<const CudnnPlan>(*context_, shape, dtype, pass,
                                                  options_.attention_workspace);
    AttentionTrial trial(device_, shape, dtype, plan->workspace());
    const auto own = [&](Stream& stream, AttentionPass of, const AttentionArguments& arguments,
                         void*) {
      of == AttentionPass::forward ? post_attention_forward(gpu_, stream, shape, dtype, arguments)
                                   : post_attention_backward(gpu_, stream, shape, dtype, arguments);
    };
    const auto by_cudnn = [&](Stream& stream, AttentionPass, const AttentionArguments& arguments,
                              void* workspace) { post_plan(stream, plan, arguments, workspace); };
    if (options_.attention == AttentionChoice::cudnn) {
      trial.compare(pass, own, by_cudnn, 0);
      note = name;
      return plan;
    }
    const AttentionTimes times = trial.compare(pass, own, by_cudnn, kRounds);
    const double speed = times.own / times.other;
    const bool is_faster = times.other < times.own * kAlike;
    note = is_faster ? fmt::format("{}, {:.2f} times as fast as our kernels", name, speed)
                     : fmt::format("our kernels, {} is {:.2f} times as fast", name, speed);
    return is_faster ? plan : nullptr;
  } catch (const Error& error) {
    note = fmt::format("our kernels ({}: {})", name, error.what());
  }
  return nullptr;
}

}  // namespace headrace::device::cuda
