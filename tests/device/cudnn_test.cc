// Attention by cuDNN on the fake GPU: when it is chosen, what it is given, and what becomes of its
// failures. That its results are right is AttentionTest's, which runs over it too.
#include <gmock/gmock.h>

#include "tests/device/attention_suite.h"
#include "tests/fake_cuda/fake_cudnn.h"

namespace headrace::device::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CudnnTest : public ::testing::Test {
 protected:
  void make(const FakeCudnn::Options& options = {},
            AttentionChoice attention = AttentionChoice::cudnn, Bytes workspace = kMiB * 64) {
    device_.reset();
    cudnn_ = std::make_shared<FakeCudnn>(gpu_, options);
    open(attention, workspace);
  }
  void open(AttentionChoice attention = AttentionChoice::cudnn, Bytes workspace = kMiB * 64) {
    GpuOptions how;
    how.attention = attention;
    how.attention_workspace = workspace;
    device_ = std::make_unique<cuda::CudaDevice>(gpu_, 0, how, cuda::open_cufile_library,
                                                 [made = cudnn_, this](std::string& refusal) {
                                                   refusal = "none for a test";
                                                   ++opened_;
                                                   return made;
                                                 });
    stream_ = device_->create_stream("test");
  }
  void TearDown() override {
    stream_.reset();
    device_.reset();
    EXPECT_EQ(cudnn_ != nullptr ? cudnn_->live_objects() : 0, 0);
  }

  Kernels& kernels() { return device_->kernels(); }
  std::string description() { return kernels().attention_description(); }
  int64_t runs() const { return cudnn_->calls("execute"); }

  struct Runs {
    int64_t forward;
    int64_t backward;
  };
  /// Passes that cuDNN computes of one forward and one backward, behind their trial.
  Runs run(const Case& c, Operands& o) {
    const Bytes size = kernels().attention_scratch(o.shape(), c.dtype);
    const auto memory = device_->allocate(size);
    const Workspace scratch{memory->data(), size};
    const int64_t before = runs();
    kernels().attention_forward(*stream_, o.shape(), c.dtype, o.q.data(), o.k.data(), o.v.data(),
                                o.out.data(), o.log_sum_exp.data<float>(), scratch);
    stream_->synchronize();
    const int64_t between = runs();
    kernels().attention_backward(*stream_, o.shape(), c.dtype, o.q.data(), o.k.data(), o.v.data(),
                                 o.out.data(), o.dout.data(), o.log_sum_exp.data<float>(),
                                 o.dq.data(), o.dk.data(), o.dv.data(), scratch);
    stream_->synchronize();
    return {between - before, runs() - between};
  }
  Runs run(const Case& c) {
    Operands o(*device_, *stream_, c);
    Random random(1, 0);
    o.fill(random);
    return run(c, o);
  }
  void expect_runs(const Case& c, int64_t forward, int64_t backward) {
    const Runs done = run(c);
    EXPECT_EQ(done.forward, forward) << c.describe() << ": " << description();
    EXPECT_EQ(done.backward, backward) << c.describe() << ": " << description();
  }

  static constexpr Case small() { return {2, 17, 4, 2, 16, DType::bf16}; }

  std::shared_ptr<FakeCuda> gpu_ = std::make_shared<FakeCuda>();
  std::shared_ptr<FakeCudnn> cudnn_;
  int opened_ = 0;
  std::unique_ptr<cuda::CudaDevice> device_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(CudnnTest, ComputesWhatIsProven) {
  make();
  expect_runs(small(), 1, 1);
  EXPECT_THAT(description(), HasSubstr("2 x 17 tokens, 4/2 heads of 16 in bf16: forward by cuDNN "
                                       "9.19.0; backward by cuDNN 9.19.0"));
  const int64_t trials = runs();
  expect_runs(small(), 1, 1);
  EXPECT_EQ(runs(), trials + 2) << "one trial for a shape";
}

TEST_F(CudnnTest, ComputesEveryUsualShape) {
  make();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    expect_runs({1, 33, 6, 6, 64, dtype, 8}, 1, 1);
    expect_runs({2, 70, 4, 1, 128, dtype}, 1, 1);
    expect_runs({3, 2, 2, 1, 8, dtype, 16, 8}, 1, 1);
    expect_runs({1, 20, 3, 1, 256, dtype}, 1, 1);
  }
}

TEST_F(CudnnTest, IsNotOpenedUnlessAskedFor) {
  make({}, AttentionChoice::own);
  expect_runs(small(), 0, 0);
  EXPECT_EQ(opened_, 0);
  EXPECT_EQ(description(), "");
}

TEST_F(CudnnTest, OtherKindsOfAttentionAreOurs) {
  make();
  expect_runs({1, 9, 2, 1, 16, DType::f32}, 0, 0);
  EXPECT_THAT(description(), HasSubstr("our kernels: it is for bf16 and fp16"));
  expect_runs({1, 9, 2, 1, 16, DType::bf16, 0, 0, {{4, 5}}}, 0, 0);
  EXPECT_THAT(description(), HasSubstr("our kernels: documents share sequences"));
  expect_runs({1, 9, 2, 1, 12, DType::f16}, 0, 0);
  EXPECT_THAT(description(), HasSubstr("our kernels: the size of heads or a row's stride"));
  expect_runs({1, 9, 2, 1, 16, DType::f16, 4}, 0, 0);
  expect_runs({1, 1, 2, 1, 16, DType::bf16}, 0, 0);
  EXPECT_EQ(runs(), 0) << "without a trial";
}

TEST_F(CudnnTest, AddressesThatItCannotReadAreOurs) {
  make();
  expect_runs({1, 9, 2, 1, 16, DType::bf16, 0, 3}, 0, 0);
  expect_runs({1, 9, 2, 1, 16, DType::bf16, 0, 8}, 1, 1);
}

TEST_F(CudnnTest, IsLeftOutWhereItIsNotThere) {
  open();
  Operands o(*device_, *stream_, small());
  EXPECT_GT(kernels().attention_scratch(o.shape(), DType::bf16), Bytes(0));
  EXPECT_EQ(description(), "our kernels: none for a test");
}

TEST_F(CudnnTest, IsLeftOutWhereItIsOld) {
  make({.version = 91500});
  expect_runs(small(), 0, 0);
  EXPECT_EQ(description(), "our kernels: cuDNN 9.15.0 is older than 9.15.1");
  EXPECT_EQ(cudnn_->calls("create"), 0);
}

TEST_F(CudnnTest, NeedsAnEngine) {
  make({.longest = 16});
  expect_runs(small(), 0, 0);
  EXPECT_THAT(description(), HasSubstr("it has none for this shape"));
  make({.is_deterministic = false});
  expect_runs(small(), 0, 0);
  EXPECT_THAT(description(), HasSubstr("it has none for this shape that is deterministic"));
}

/// Scratch is what the passes need, exactly, and cuDNN writes over all of its workspace.
TEST_F(CudnnTest, WorkspaceIsPartOfTheScratchAndHasALimit) {
  const Case c = small();
  make({}, AttentionChoice::own);
  const auto scratch = [&] {
    const Operands o(*device_, *stream_, c);
    return kernels().attention_scratch(o.shape(), c.dtype);
  };
  const Bytes own = scratch();
  const int64_t of_scores = c.batch * c.q_heads * c.seq * c.seq * 2;
  make({}, AttentionChoice::cudnn, Bytes(of_scores));
  EXPECT_EQ(scratch(), own + Bytes(of_scores + 256));
  expect_runs(c, 1, 1);
  make({}, AttentionChoice::cudnn, Bytes(of_scores - 1));
  EXPECT_EQ(scratch(), own + Bytes(256 + 256)) << "that of forward";
  expect_runs(c, 1, 0);
  EXPECT_THAT(description(), HasSubstr("backward by our kernels (cuDNN 9.19.0: it needs "));
}

TEST_F(CudnnTest, WrongOrChangingResultsAreNotTaken) {
  make();
  cudnn_->damage_results();
  expect_runs(small(), 0, 0);
  EXPECT_THAT(description(), HasSubstr("its out differs from our kernels' by"));
  EXPECT_THAT(description(), HasSubstr("its dq differs from our kernels' by"));
  make();
  cudnn_->vary_results();
  expect_runs(small(), 0, 0);
  EXPECT_THAT(description(), HasSubstr("it has not the same bits twice"));
}

TEST_F(CudnnTest, TheFastestIsTaken) {
  // Delays that a busy machine does not add to each of several runs.
  constexpr std::chrono::milliseconds kDelay(40);
  const Case c{1, 2, 1, 1, 16, DType::bf16};
  make({}, AttentionChoice::fastest);
  gpu_->slow_kernels(kDelay);
  expect_runs(c, 1, 1);
  EXPECT_THAT(description(), HasSubstr("times as fast as our kernels"));
  gpu_->slow_kernels({});
  make({}, AttentionChoice::fastest);
  cudnn_->slow_down(kDelay);
  expect_runs(c, 0, 0);
  EXPECT_THAT(description(), HasSubstr("forward by our kernels, cuDNN 9.19.0 is 0."));
}

TEST_F(CudnnTest, TrialsLeaveNoMemoryBehind) {
  make();
  const Case c = small();
  Operands o(*device_, *stream_, c);
  const Bytes before = device_->free_memory();
  kernels().attention_scratch(o.shape(), c.dtype);
  EXPECT_GT(runs(), 0);
  EXPECT_EQ(device_->free_memory(), before);
}

/// A GPU that is too full for a trial computes with our kernels.
TEST_F(CudnnTest, ATrialWithoutMemoryIsNone) {
  gpu_ = std::make_shared<FakeCuda>(FakeCuda::Options{.memory = int64_t{1} << 20});
  make();
  Case c = small();
  c.seq = 500;
  const AttentionShape shape{2, 500, 4, 2, 16, 0.25F, 64, 32, 32, 64};
  kernels().attention_scratch(shape, c.dtype);
  EXPECT_EQ(runs(), 0);
  EXPECT_THAT(description(), HasSubstr("of memory were asked for"));
}

/// Whatever fails before a run is a reason for our kernels.
TEST_F(CudnnTest, FailuresBeforeARunAreNoErrors) {
  make();
  run(small());
  const auto whole = cudnn_;
  for (const std::string call : {"create", "create_descriptor", "set_attribute", "finalize",
                                 "get_attribute", "set_stream", "execute"}) {
    const int64_t calls = std::min<int64_t>(whole->calls(call), 300);
    ASSERT_GT(calls, 0) << call;
    for (const int64_t skipped : {int64_t{0}, calls / 8, calls / 4}) {
      device_.reset();
      cudnn_ = std::make_shared<FakeCudnn>(gpu_);
      cudnn_->fail_call(call, skipped);
      open();
      Operands o(*device_, *stream_, small());
      kernels().attention_scratch(o.shape(), DType::bf16);
      EXPECT_THAT(description(), HasSubstr("our kernels")) << call << " after " << skipped;
      EXPECT_THAT(description(), HasSubstr("CUDNN_STATUS_EXECUTION_FAILED")) << call;
    }
  }
}

TEST_F(CudnnTest, FailuresInARunAreTheStreams) {
  make();
  const Case c = small();
  Operands o(*device_, *stream_, c);
  kernels().attention_scratch(o.shape(), c.dtype);
  cudnn_->fail_call("execute", 0);
  try {
    run(c, o);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("attention by cuDNN (cudnnBackendExecute) failed: "
                                        "CUDNN_STATUS_EXECUTION_FAILED"));
  }
}

}  // namespace
}  // namespace headrace::device::testing
