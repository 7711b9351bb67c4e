// Sequential transfers of whole objects through the I/O engine. Prints one line per run:
// operation, object size, GB/s (10^9 bytes), CPU seconds per GB. Compare with fio on the same file,
// in the same run, on huge-page buffers.

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <deque>

#include "aio/io.h"
#include "base/error.h"
#include "base/units.h"

namespace {

using headrace::Bytes;
using headrace::Completion;
namespace aio = headrace::aio;

struct Options {
  std::string path;
  std::string size = "4GiB";
  std::string object = "1MiB";
  std::string block = "1MiB";
  std::string backend = "io_uring";
  int depth = 256;
  bool write = false;
};

double cpu_seconds() {
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) {
    throw headrace::InternalError("getrusage failed");
  }
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Memory on huge pages, for as many objects as are in flight.
std::span<std::byte> huge_memory(Bytes size) {
  void* const mapped = ::mmap(nullptr, static_cast<size_t>(size.count()), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw headrace::CapacityError(fmt::format("cannot get {}", format_bytes(size)));
  }
  static_cast<void>(::madvise(mapped, static_cast<size_t>(size.count()), MADV_HUGEPAGE));
  return {static_cast<std::byte*>(mapped), static_cast<size_t>(size.count())};
}

void run(const Options& options) {
  const Bytes size = headrace::parse_bytes(options.size, "--size");
  const Bytes object = headrace::parse_bytes(options.object, "--object");
  const Bytes block = headrace::parse_bytes(options.block, "--block");
  aio::IoEngineOptions engine_options;
  engine_options.backend =
      options.backend == "threads" ? aio::BackendKind::thread_pool : aio::BackendKind::io_uring;
  engine_options.block_size = block;
  engine_options.queue_depth = options.depth;
  const auto engine = aio::IoEngine::create(engine_options);
  // A quarter more than the depth: the queue stays full while ended objects are replaced.
  const int64_t window = std::max<int64_t>(2, block * (options.depth + options.depth / 4) / object);
  // Two large objects share their memory: the values do not matter here.
  const int64_t slots = object > headrace::kMiB * 64 ? 1 : window;
  const std::span<std::byte> memory = huge_memory(object * slots);
  engine->register_memory(memory);
  const aio::FileId file = engine->open(options.path, true);

  const double cpu_before = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  std::deque<Completion> flying;
  for (int64_t i = 0; i < size / object; ++i) {
    if (static_cast<int64_t>(flying.size()) == window) {
      flying.front().wait();
      flying.pop_front();
    }
    flying.push_back(engine->submit(
        {.operation = options.write ? aio::IoOperation::write : aio::IoOperation::read,
         .io_class = options.write ? aio::IoClass::write_back : aio::IoClass::demand,
         .file = file,
         .offset = i * object.count(),
         .data = memory.data() + i % slots * object.count(),
         .length = object}));
  }
  for (const Completion& completion : flying) {
    completion.wait();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double gigabytes = static_cast<double>((object * (size / object)).count()) / 1e9;
  fmt::print("{} {} objects: {:.3f} GB/s, {:.3f} CPU s per GB ({})\n",
             options.write ? "write" : "read", format_bytes(object), gigabytes / seconds,
             (cpu_seconds() - cpu_before) / gigabytes, engine->description());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Sequential object transfers through the I/O engine");
  app.add_option("path", options.path, "file; a write run makes it")->required();
  app.add_option("--size", options.size, "bytes to transfer");
  app.add_option("--object", options.object, "bytes per request");
  app.add_option("--block", options.block, "bytes per part");
  app.add_option("--depth", options.depth, "parts in flight");
  app.add_option("--backend", options.backend, "io_uring or threads");
  app.add_flag("--write", options.write, "write instead of read");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const headrace::Error& error) {
    fmt::print(stderr, "io_bench: {}\n", error.what());
    return headrace::exit_code(error.kind());
  }
  return 0;
}
