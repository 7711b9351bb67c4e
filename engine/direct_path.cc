#include "engine/direct_path.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <random>

#include "aio/probe_verdicts.h"
#include "base/error.h"
#include "base/random.h"
#include "base/seconds.h"

namespace headrace::engine {

namespace {

constexpr Bytes kTrialMost{int64_t{32} << 20};
constexpr int kRounds = 3;
/// The rates of two runs of the same are this much alike; direct reads below it count as slower.
constexpr double kAlike = 0.95;

void fill(std::span<std::byte> bytes) {
  Random random(0x6864, 1);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random.next_u64();
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
}

/// Whether the bytes are those of fill().
bool is_filled(std::span<const std::byte> bytes) {
  Random random(0x6864, 1);
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word = random.next_u64();
    if (std::memcmp(bytes.data() + at, &word, sizeof(word)) != 0) {
      return false;
    }
  }
  return true;
}

/// A name that no other file has: the folder may be the user's.
std::string trial_path(const std::string& folder) {
  std::random_device random;
  return fmt::format("{}/.headrace-direct-trial-{}-{:08x}", folder, ::getpid(), random());
}

/// The file of a trial, and the memory.
class Trial {
 public:
  Trial(device::Device& device, device::DirectReader& reader, aio::IoEngine& io,
        const std::string& folder, const TrialMemory& memory)
      : reader_(reader),
        io_(io),
        stream_(device.create_stream("hr-trial")),
        size_(std::min({kTrialMost, Bytes(static_cast<int64_t>(memory.device.size())),
                        Bytes(static_cast<int64_t>(memory.host.size()))})),
        memory_(memory),
        path_(trial_path(folder)),
        file_(io.open(path_, true)) {}
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;
  ~Trial() {
    reader_.close(path_);
    io_.close(file_);
    ::unlink(path_.c_str());
    std::fill_n(memory_.host.begin(), size_.count(), std::byte{0});
    try {
      clear_device();
    } catch (const std::exception&) {
      return;  // the run's first use of the device tells
    }
  }

  PathRates run() {
    io_.allocate(file_, size_);
    fill(host());
    move(aio::IoOperation::write);
    io_.sync(file_);
    double direct = std::numeric_limits<double>::infinity();
    double through_host = direct;
    for (int round = 0; round < kRounds; ++round) {
      through_host =
          std::min(through_host, std::max(seconds_of([&] { move(aio::IoOperation::read); }),
                                          seconds_of([&] { copy(memory_.device, host()); })));
      clear_device();
      direct = std::min(
          direct, seconds_of([&] { reader_.read(path_, 0, memory_.device.data(), size_).wait(); }));
      check();
    }
    const auto bytes = static_cast<double>(size_.count());
    return {bytes / direct, bytes / through_host};
  }

 private:
  std::span<std::byte> host() const {
    return memory_.host.first(static_cast<size_t>(size_.count()));
  }

  void move(aio::IoOperation operation) {
    io_.submit({operation, aio::IoClass::demand, file_, 0, memory_.host.data(), size_}).wait();
  }

  void copy(std::span<std::byte> target, std::span<std::byte> source) {
    stream_->copy_async(target.data(), source.data(), size_);
    stream_->synchronize();
  }

  void clear_device() {
    stream_->fill_zero_async(memory_.device.data(), size_);
    stream_->synchronize();
  }

  void check() {
    std::fill_n(memory_.host.begin(), size_.count(), std::byte{0});
    copy(memory_.host, memory_.device);
    if (!is_filled(host())) {
      IoError::Where where;
      where.path = path_;
      where.offset = 0;
      where.expected_bytes = size_.count();
      throw IoError("a direct read brings other bytes than were written", where);
    }
  }

  device::DirectReader& reader_;
  aio::IoEngine& io_;
  std::unique_ptr<device::Stream> stream_;
  Bytes size_;
  TrialMemory memory_;
  std::string path_;
  aio::FileId file_;
};

/// Why there can be none, whatever the GPU can do; empty: there can.
std::string refusal_of(const DirectRequest& request, const aio::IoEngine& io) {
  if (request.verifies_reads) {
    return "headrace.verify_reads is on, and what passes host memory by is not verified there; "
           "false would allow direct reads";
  }
  if (request.has_limits) {
    return "a limit is set for drive or link (headrace.nvme_read_limit, nvme_limit, link_limit), "
           "which direct reads would pass by";
  }
  if (io.alignment() < device::kDirectAlignment) {
    return "files are written through the page cache here, which direct reads pass by";
  }
  return "";
}

}  // namespace

std::string describe(const PathRates& rates) {
  return fmt::format("{}, through host memory {}", aio::format_rate(rates.direct),
                     aio::format_rate(rates.through_host));
}

PathRates try_direct_reads(device::Device& device, device::DirectReader& reader, aio::IoEngine& io,
                           const std::string& folder, const TrialMemory& memory) {
  return Trial(device, reader, io, folder, memory).run();
}

DirectPath find_direct_path(device::Device& device, aio::IoEngine& io,
                            const std::vector<std::string>& folders, const TrialMemory& memory,
                            const DirectRequest& request) {
  const auto through_host = [](const std::string& why) {
    DirectPath path;
    path.description = "through host memory: " + why;
    return path;
  };
  if (const std::string refusal = refusal_of(request, io); !refusal.empty()) {
    return through_host(refusal);
  }
  device::DirectSearch search = device.open_direct_reader(memory.device);
  if (search.reader == nullptr) {
    return through_host(search.refusal);
  }
  std::optional<PathRates> slowest;
  for (const std::string& folder : folders) {
    try {
      const PathRates rates = try_direct_reads(device, *search.reader, io, folder, memory);
      const auto share = [](const PathRates& of) { return of.direct / of.through_host; };
      slowest = !slowest || share(rates) < share(*slowest) ? rates : slowest;
    } catch (const Error& error) {
      return through_host(error.what());
    }
  }
  if (!slowest) {
    return through_host("nothing lives on nvme");
  }
  DirectPath path;
  path.share = std::min(1.0, slowest->direct / slowest->through_host);
  if (request.assumed_share > 0) {
    path.share = request.assumed_share;
  } else if (path.share < kAlike) {
    return through_host("direct reads are slower, " + describe(*slowest));
  }
  path.description = fmt::format("direct where the step is no slower for it, not verified: {}; {}",
                                 search.reader->description(), describe(*slowest));
  path.reader = std::move(search.reader);
  return path;
}

}  // namespace headrace::engine
