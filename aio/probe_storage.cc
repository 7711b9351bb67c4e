#include "aio/probe_storage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <random>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"

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

std::string error_text(int number) {
  return std::generic_category().message(number);
}

struct statfs status_of(const std::string& folder) {
  struct statfs status {};
  int result = -1;
  do {
    result = ::statfs(folder.c_str(), &status);
  } while (result != 0 && errno == EINTR);
  if (result != 0) {
    throw InputError(
        fmt::format("cannot use {}: {}; name a folder that exists", folder, error_text(errno)));
  }
  return status;
}

/// The first line of a small file, without blanks around it; empty when it cannot be read.
std::string first_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t begin = line.find_first_not_of(" \t");
  const size_t end = line.find_last_not_of(" \t");
  return begin == std::string::npos ? "" : line.substr(begin, end - begin + 1);
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

std::string device_of(const std::string& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) {
    return "";
  }
  std::error_code missing;
  const std::filesystem::path link =
      fmt::format("/sys/dev/block/{}:{}", major(status.st_dev), minor(status.st_dev));
  std::filesystem::path device = std::filesystem::canonical(link, missing);
  if (missing) {
    return "";
  }
  if (std::filesystem::exists(device / "partition", missing)) {
    device = device.parent_path();
  }
  std::string details;
  for (const char* name : {"device/vendor", "device/model"}) {
    const std::string line = first_line(device / name);
    details += (details.empty() || line.empty() ? "" : " ") + line;
  }
  return device.filename().string() + (details.empty() ? "" : " (" + details + ")");
}

ScratchFile::ScratchFile(const std::string& folder) {
  std::random_device random;
  name_ = fmt::format("{}/.headrace-probe-{}-{:08x}", folder, ::getpid(), random());
  do {
    descriptor_ = ::open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) {
    throw InputError(
        fmt::format("cannot create a test file in {}: {}; name a folder you may write to", folder,
                    error_text(errno)));
  }
  if (::unlink(name_.c_str()) != 0) {
    const int number = errno;
    ::close(descriptor_);
    throw IoError("cannot remove a test file, remove it by hand",
                  IoError::Where{.path = name_, .error_number = number});
  }
}

ScratchFile::~ScratchFile() {
  ::close(descriptor_);
}

std::string ScratchFile::path() const {
  return fmt::format("/proc/self/fd/{}", descriptor_);
}

HugeMemory::HugeMemory(Bytes size) : size_(align_up(size, Bytes(2 << 20))) {
  void* const mapped = ::mmap(nullptr, static_cast<size_t>(size_.count()), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    throw CapacityError(fmt::format("cannot get {} of memory for probe buffers: {}",
                                    format_bytes(size_), error_text(errno)));
  }
  data_ = static_cast<std::byte*>(mapped);
  // A hint: without huge pages the probe measures what this system gives.
  static_cast<void>(::madvise(data_, static_cast<size_t>(size_.count()), MADV_HUGEPAGE));
}

HugeMemory::~HugeMemory() {
  ::munmap(data_, static_cast<size_t>(size_.count()));
}

}  // namespace headrace::aio
