#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "aio/probe_bench.h"
#include "base/error.h"
#include "base/units.h"
#include "tiers/topology.h"
#include "tools/command.h"

namespace headrace::tools {

namespace {

/// The flags of DeepSpeed's ds_io.
struct Arguments {
  std::string folder;
  std::vector<std::string> mappings;
  std::string io_size;
  std::string fast_io_size = "64M";
  std::string block_size = "1M";
  std::string engine = "aio_handle";
  aio::IoBenchOptions options;
  bool single_submit = false;
  bool gpu = false;
  bool use_gds = false;
  bool slow_bounce_buffer = false;
  bool torch_legacy_save = false;
  bool use_accelerator_pin_memory = false;
};

void say_without_effect(const Command& command, const char* flag, const char* reason) {
  if (command.count(flag) > 0) {
    fmt::print("{} has no effect: {}\n", flag, reason);
  }
}

void say_what_is_different(const Command& command) {
  say_without_effect(command, "--fast_io_size", "it belongs to the torch_fastio engine");
  say_without_effect(command, "--single_submit",
                     "the ring takes all requests that are ready in one call");
  say_without_effect(command, "--gpu", "the buffers are in host memory; this measures the storage");
  say_without_effect(command, "--use_gds",
                     "the buffers are in host memory; headrace doctor tries GPUDirect Storage");
  say_without_effect(command, "--slow_bounce_buffer", "there is no bounce buffer");
  say_without_effect(command, "--torch_legacy_save", "it belongs to the torch engines");
  say_without_effect(command, "--use_accelerator_pin_memory",
                     "the buffers are registered with the ring");
  say_without_effect(command, "--engine", "all transfers go through Headrace's engine");
}

std::vector<std::string> folders_of(const Arguments& arguments) {
  if (arguments.folder.empty() == arguments.mappings.empty()) {
    throw UsageError("give either --folder or --folder_to_device_mapping");
  }
  if (!arguments.folder.empty()) {
    return {arguments.folder};
  }
  std::vector<std::string> folders;
  for (const std::string& mapping : arguments.mappings) {
    const size_t colon = mapping.rfind(':');
    if (colon == std::string::npos || colon == 0) {
      throw UsageError("--folder_to_device_mapping " + mapping + ": write it as DIR:DEVICE");
    }
    folders.push_back(mapping.substr(0, colon));
  }
  fmt::print("--folder_to_device_mapping: the folders are used, the devices have no effect\n");
  return folders;
}

void run(Arguments arguments, const Command& command) {
  if (arguments.engine.starts_with("torch")) {
    throw UsageError("--engine " + arguments.engine +
                     " measures PyTorch, not this engine: use ds_io for it");
  }
  aio::IoBenchOptions& options = arguments.options;
  options.folders = folders_of(arguments);
  options.io_size = parse_bytes(arguments.io_size, "--io_size");
  options.block_size = parse_bytes(arguments.block_size, "--block_size");
  say_what_is_different(command);
  watch_signals();
  options.cancelled = &stop_requested();
  options.memory_limit = tiers::machine_limits(options.folders.front()).memory_usable();
  fmt::print("{}", aio::render(aio::run_io_bench(options)));
}

void add_layout_flags(Command& command, Arguments& arguments) {
  command.add_option("--folder", arguments.folder, "Folder on the storage");
  command.add_option("--folder_to_device_mapping", arguments.mappings,
                     "DIR:DEVICE, several: a task for each; the device has no effect");
  command.add_option("--io_size", arguments.io_size, "Bytes of each task's buffer, as 400M or 1G")
      ->required();
  command.add_flag("--read", arguments.options.read, "Reads; otherwise writes");
  command.add_option("--multi_process", arguments.options.tasks_per_folder, "Tasks at once")
      ->capture_default_str();
  command.add_option("--block_size", arguments.block_size, "Bytes of one request")
      ->capture_default_str();
  command.add_option("--queue_depth", arguments.options.queue_depth, "Requests in flight")
      ->capture_default_str();
  command.add_option("--io_parallel", arguments.options.parallelism, "Multiplies the queue depth")
      ->capture_default_str();
  command.add_flag("--sequential_requests", arguments.options.in_batches,
                   "Waits for a whole queue before the next requests");
  command.add_flag("--validate", arguments.options.validate, "Compares the contents");
  command.add_option("--loops", arguments.options.loops, "Counted repetitions")
      ->capture_default_str();
  command.add_option("--warmup_loops", arguments.options.warmup_loops, "Repetitions before them")
      ->capture_default_str();
  command.add_flag("--include_warmup_time", arguments.options.count_warmup,
                   "Counts the repetitions before as well");
  command.add_flag("--different_file_each_iteration", arguments.options.new_file_each_loop,
                   "A new file for each repetition");
}

void add_flags_without_effect(Command& command, Arguments& arguments) {
  command.add_option("--engine", arguments.engine, "aio_handle, aio_basic: no effect")
      ->check_one_of({"aio_handle", "aio_basic", "torch_io", "torch_fastio"});
  command.add_option("--fast_io_size", arguments.fast_io_size, "No effect");
  command.add_flag("--single_submit", arguments.single_submit, "No effect");
  command.add_flag("--gpu", arguments.gpu, "No effect");
  command.add_flag("--use_gds", arguments.use_gds, "No effect");
  command.add_flag("--slow_bounce_buffer", arguments.slow_bounce_buffer, "No effect");
  command.add_flag("--torch_legacy_save", arguments.torch_legacy_save, "No effect");
  command.add_flag("--use_accelerator_pin_memory", arguments.use_accelerator_pin_memory,
                   "No effect");
}

}  // namespace

void add_bench(Command& app) {
  Command* bench = app.add_subcommand("bench", "Benchmarks");
  bench->require_subcommand(1);
  auto arguments = std::make_shared<Arguments>();
  Command* io =
      bench->add_subcommand("io", "Whole buffers to and from files, with the flags of ds_io");
  add_layout_flags(*io, *arguments);
  add_flags_without_effect(*io, *arguments);
  io->callback([arguments, io] { run(*arguments, *io); });
}

}  // namespace headrace::tools
