#include "aio/drive_wear.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "base/error.h"

namespace headrace::aio {

namespace {

// Places in the page.
constexpr size_t kWarningsByte = 0;
constexpr size_t kSpareByte = 3;
constexpr size_t kSpareNeededByte = 4;
constexpr size_t kPercentageUsedByte = 5;
constexpr size_t kUnitsWritten = 48;
constexpr size_t kMediaErrors = 160;

constexpr double kDataUnit = 512'000;  ///< bytes
/// The percentage is a whole number: what one percent amounts to is known only after some.
constexpr int kPercentForEstimate = 5;

constexpr std::array<const char*, 6> kWarnings = {
    "the blocks in reserve are nearly used up",
    "it is too hot or too cold",
    "it makes too many errors to be relied on",
    "it accepts no more writes",
    "what backs its volatile memory has failed",
    "its persistent memory region is read-only or unreliable",
};

constexpr uint32_t kGetLogPage = 0x02;
constexpr uint32_t kHealthLog = 0x02;
constexpr uint32_t kAllNamespaces = 0xffffffff;

/// 16 bytes, the lowest first.
uint64_t count_at(std::span<const uint8_t, kHealthLogBytes> page, size_t at) {
  uint64_t count = 0;
  for (size_t i = 0; i < 8; ++i) {
    count |= uint64_t{page[at + i]} << (8 * i);
    if (page[at + 8 + i] != 0) {
      return std::numeric_limits<uint64_t>::max();
    }
  }
  return count;
}

Wear unreadable(std::string why) {
  Wear wear;
  wear.unknown = std::move(why);
  return wear;
}

}  // namespace

std::string Wear::text() const {
  if (!percent_used) {
    return "not readable: " + unknown;
  }
  constexpr double kTera = 1e12;
  std::string text = fmt::format("{} % of the rated endurance is used, {:.1f} TB written",
                                 *percent_used, bytes_written / kTera);
  if (*percent_used >= kPercentForEstimate) {
    text += fmt::format(", about {:.1f} TB per percent", bytes_written / kTera / *percent_used);
  }
  if (spare_percent < 100) {
    text += fmt::format(", {} % of its reserve is left", spare_percent);
  }
  if (media_errors > 0) {
    text += fmt::format(", {} times data was lost", media_errors);
  }
  for (const std::string& warning : warnings) {
    text += "; the drive warns: " + warning;
  }
  return text;
}

Wear wear_of_log(std::span<const uint8_t, kHealthLogBytes> page) {
  Wear wear;
  wear.percent_used = page[kPercentageUsedByte];
  wear.bytes_written = static_cast<double>(count_at(page, kUnitsWritten)) * kDataUnit;
  wear.spare_percent = page[kSpareByte];
  wear.spare_needed = page[kSpareNeededByte];
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  wear.media_errors = static_cast<int64_t>(std::min(kMost, count_at(page, kMediaErrors)));
  for (size_t bit = 0; bit < kWarnings.size(); ++bit) {
    if ((page[kWarningsByte] >> bit & 1U) != 0) {
      wear.warnings.emplace_back(kWarnings[bit]);
    }
  }
  return wear;
}

Wear read_wear(const std::string& device) {
  if (device.empty()) {
    return unreadable("no block device stands behind the folder");
  }
  if (!device.starts_with("nvme")) {
    return unreadable(device + " is not an NVMe device");
  }
  const std::string path = "/dev/" + device;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return unreadable(fmt::format("{}: {}", path, errno_text(errno)));
  }
  std::array<uint8_t, kHealthLogBytes> log{};
  nvme_admin_cmd command{};
  command.opcode = kGetLogPage;
  command.nsid = kAllNamespaces;
  command.addr = reinterpret_cast<uintptr_t>(log.data());
  command.data_len = kHealthLogBytes;
  command.cdw10 = kHealthLog | ((kHealthLogBytes / 4 - 1) << 16U);  // length in words, minus one
  const int result = ::ioctl(descriptor, NVME_IOCTL_ADMIN_CMD, &command);
  const int number = errno;
  ::close(descriptor);
  if (result != 0) {
    return unreadable(result < 0 ? fmt::format("{}: {}", path, errno_text(number))
                                 : fmt::format("{}: NVMe status {:#x}", path, result));
  }
  return wear_of_log(log);
}

}  // namespace headrace::aio
