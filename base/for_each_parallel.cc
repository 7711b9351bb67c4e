#include "base/for_each_parallel.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>
#include <vector>

namespace headrace {

void for_each_parallel(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  const auto loop = [&] {
    for (size_t i = next++; i < count; i = next++) {
      work(i);
    }
  };
  const size_t threads = std::min<size_t>(count, std::max(1U, std::thread::hardware_concurrency()));
  std::vector<std::future<void>> helpers;
  for (size_t i = 1; i < threads; ++i) {
    helpers.push_back(std::async(std::launch::async, loop));
  }
  loop();
  for (std::future<void>& helper : helpers) {
    helper.get();
  }
}

}  // namespace headrace
