#include "aio/probe_storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/seconds.h"

namespace headrace::aio {

namespace {

/// statfs(2); the numbers that <linux/magic.h> lacks are written out.
constexpr auto kFileSystems = std::to_array<std::pair<uint32_t, std::string_view>>({
    {0xef53, "ext4"},
    {0x58465342, "xfs"},
    {0x9123683e, "btrfs"},
    {0x01021994, "tmpfs"},
    {0x794c7630, "overlay"},
    {0x6969, "nfs"},
    {0x2fc12fc1, "zfs"},
    {0xf2f52010, "f2fs"},
    {0x65735546, "fuse"},
    {0xff534d42, "cifs"},
    {0xfe534d42, "smb2"},
    {0x01021997, "9p"},
    {0x0bd00bd0, "lustre"},
    {0x00c36400, "ceph"},
    {0x5346544e, "ntfs"},
    {0xca451a4e, "bcachefs"},
});

/// -1 where the file system or the kernel does not know such files.
int open_without_name(const std::string& folder) {
  int descriptor = -1;
  do {
    descriptor = ::open(folder.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  } while (descriptor < 0 && errno == EINTR);
  return descriptor;
}

struct statfs status_of(const std::string& folder) {
  struct statfs status {};
  int result = -1;
  do {
    result = ::statfs(folder.c_str(), &status);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    throw InputError(
        fmt::format("cannot use {}: {}; name a folder that exists", folder, errno_text(errno)));
  }
  return status;
}

}  // namespace

std::string file_system_of(const std::string& folder) {
  const auto type = static_cast<uint32_t>(status_of(folder).f_type);
  for (const auto& [number, name] : kFileSystems) {
    if (number == type) {
      return std::string(name);
    }
  }
  return fmt::format("{:#x}", type);
}

Bytes free_space_of(const std::string& folder) {
  const struct statfs status = status_of(folder);
  return Bytes(static_cast<int64_t>(status.f_bavail)) * static_cast<int64_t>(status.f_frsize);
}

std::string file_system_id_of(const std::string& folder) {
  const fsid_t id = status_of(folder).f_fsid;
  uint64_t number = 0;
  static_assert(sizeof number == sizeof id);
  std::memcpy(&number, &id, sizeof number);
  return number == 0 ? "" : fmt::format("{:016x}", number);
}

ScratchFile::ScratchFile(const std::string& folder) : name_("the test file in " + folder) {
  descriptor_ = open_without_name(folder);
  if (descriptor_ >= 0) {
    return;
  }
  std::random_device random;
  const std::string path =
      fmt::format("{}/.headrace-probe-{}-{:08x}", folder, ::getpid(), random());
  do {
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) {
    throw InputError(
        fmt::format("cannot create a test file in {}: {}; name a folder you may write to", folder,
                    errno_text(errno)));
  }
  if (::unlink(path.c_str()) != 0) {
    const int number = errno;
    ::close(descriptor_);
    throw IoError("cannot remove a test file, remove it by hand",
                  IoError::Where{.path = path, .error_number = number});
  }
}

ScratchFile::~ScratchFile() {
  ::close(descriptor_);
}

std::string ScratchFile::path() const {
  return fmt::format("/proc/self/fd/{}", descriptor_);
}

std::string ScratchFile::path_for_others() const {
  return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_);
}

double ScratchFile::cached_share(Bytes size) const {
  const auto length = static_cast<size_t>(size.count());
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((length + page - 1) / page);
  void* const mapped = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor_, 0);
  if (mapped == MAP_FAILED) {
    throw IoError("cannot map", IoError::Where{.path = name_, .error_number = errno});
  }
  const int result = ::mincore(mapped, length, pages.data());
  const int number = errno;
  ::munmap(mapped, length);
  if (result != 0) {
    throw IoError("cannot ask for cached pages",
                  IoError::Where{.path = name_, .error_number = number});
  }
  const auto cached = std::count_if(pages.begin(), pages.end(),
                                    [](unsigned char state) { return (state & 1U) != 0; });
  return static_cast<double>(cached) / static_cast<double>(pages.size());
}

void ScratchFile::drop_cache() const {
  if (::fdatasync(descriptor_) != 0) {
    throw IoError("cannot sync", IoError::Where{.path = name_, .error_number = errno});
  }
  // A hint: file systems in memory have nowhere to drop to.
  static_cast<void>(::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED));
}

HugeMemory::HugeMemory(Bytes size) : size_(align_up(size, Bytes(2 << 20))) {
  void* const mapped = ::mmap(nullptr, static_cast<size_t>(size_.count()), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw CapacityError(fmt::format("cannot get {} of memory for probe buffers: {}",
                                    format_bytes(size_), errno_text(errno)));
  }
  data_ = static_cast<std::byte*>(mapped);
  // A hint: without huge pages the probe measures what this system gives.
  static_cast<void>(::madvise(data_, static_cast<size_t>(size_.count()), MADV_HUGEPAGE));
}

void HugeMemory::fill_random(uint64_t seed) {
  constexpr int64_t kPattern = int64_t{1} << 20;
  Random random(seed, 0x70726f6265);
  const int64_t words = size_.count() / static_cast<int64_t>(sizeof(uint64_t));
  const int64_t pattern = kPattern / static_cast<int64_t>(sizeof(uint64_t));
  auto* const memory = reinterpret_cast<uint64_t*>(data_);  // pages are aligned
  for (int64_t i = 0; i < std::min(pattern, words); ++i) {
    memory[i] = random.next_u64();
  }
  for (int64_t begin = pattern; begin < words; begin += pattern) {
    const uint64_t mask = random.next_u64();  // so that no two blocks are equal
    for (int64_t i = begin; i < std::min(begin + pattern, words); ++i) {
      memory[i] = memory[i - begin] ^ mask;
    }
  }
}

double HugeMemory::copy_rate(double seconds) {
  using Clock = std::chrono::steady_clock;
  constexpr int kPassesMin = 4;
  constexpr int64_t kBlock = int64_t{1} << 20;
  const int64_t half = std::min<int64_t>(size_.count() / 2, int64_t{32} << 20);
  const auto copy = [&](int64_t from, int64_t to) {
    std::memcpy(data_ + half + from, data_ + from, static_cast<size_t>(to - from));
  };
  const auto start = Clock::now();
  auto end = start;
  double best = 0;
  for (int pass = 0; pass < kPassesMin || seconds_between(start, end) < seconds; ++pass) {
    const auto begin = Clock::now();
    if (pass % 2 == 0) {
      copy(0, half);
    } else {
      parallel_for_blocks(half, kBlock, copy);
    }
    end = Clock::now();
    const std::chrono::duration<double> took = end - begin;
    best = std::max(best, static_cast<double>(half) / took.count());
  }
  return best;
}

HugeMemory::~HugeMemory() {
  ::munmap(data_, static_cast<size_t>(size_.count()));
}

}  // namespace headrace::aio
