// The CUDA backend's library and the real GPU, as far as this machine has them.
#include <dlfcn.h>

#include <filesystem>

#include "tests/device/device_suite.h"

namespace headrace::device::testing {
namespace {

/// With the label gpu: says once why the suite has no GPU to run on.
TEST(Gpu, IsThere) {
  const GpuSearch search = headrace::test::find_gpu_for_tests();
  if (!search.gpu) {
    GTEST_SKIP() << search.refusal;
  }
  EXPECT_GT(search.gpu->memory, search.gpu->free_memory);
  EXPECT_FALSE(search.gpu->description.empty());
}

/// The library as it was built, also where there is no GPU.
class CudaLibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = std::string(HEADRACE_BINARY_DIR) + "/bin/" + cuda::kCudaLibrary;
    if (!std::filesystem::exists(path)) {
      GTEST_SKIP() << path << " is not built";
    }
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      GTEST_SKIP() << dlerror();  // built here, but cuBLASLt is only there to link
    }
    entry_ = reinterpret_cast<cuda::CudaEntry*>(dlsym(library, cuda::kCudaEntryName));
    ASSERT_NE(entry_, nullptr);
  }
  cuda::CudaEntry* entry_ = nullptr;
};

TEST_F(CudaLibraryTest, HasOneVersion) {
  const std::unique_ptr<cuda::CudaApi> api(entry_(cuda::kCudaApiVersion));
  EXPECT_NE(api, nullptr);
  EXPECT_EQ(entry_(cuda::kCudaApiVersion + 1), nullptr);
}

TEST_F(CudaLibraryTest, FailsWithAReasonWhereThereIsNoGpu) {
  const std::unique_ptr<cuda::CudaApi> api(entry_(cuda::kCudaApiVersion));
  int count = 0;
  const cuda::Status status = api->device_count(&count);
  if (status.is_ok()) {
    GTEST_SKIP() << "there are " << count << " GPUs";
  }
  EXPECT_NE(std::string(api->describe(status)).find("cudaError"), std::string::npos);
  void* pointer = nullptr;
  EXPECT_FALSE(api->allocate(&pointer, 64).is_ok());
  cuda::LtAlgorithm algorithm;
  const cuda::Status choice = api->lt_choose({}, &algorithm);
  EXPECT_FALSE(choice.is_ok());
  EXPECT_STRNE(api->describe(choice), "");
  EXPECT_THROW(cuda::CudaDevice(std::shared_ptr<cuda::CudaApi>(entry_(cuda::kCudaApiVersion)), 0),
               cuda::CudaError);
}

}  // namespace
}  // namespace headrace::device::testing
