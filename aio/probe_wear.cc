// How worn a drive is: the SMART / Health Information log page of an NVMe drive (NVM Express base
// specification, Get Log Page, log identifier 02h).

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/nvme_ioctl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "aio/probe_identity.h"
#include "base/error.h"

namespace headrace::aio {

namespace {

constexpr size_t kLogBytes = 512;
constexpr size_t kPercentageUsedByte = 5;
constexpr uint32_t kGetLogPage = 0x02;
constexpr uint32_t kHealthLog = 0x02;
constexpr uint32_t kAllNamespaces = 0xffffffff;

}  // namespace

Wear read_wear(const std::string& device) {
  if (device.empty()) {
    return {.percent_used = {}, .unknown = "no block device stands behind the folder"};
  }
  if (!device.starts_with("nvme")) {
    return {.percent_used = {}, .unknown = device + " is not an NVMe device"};
  }
  const std::string path = "/dev/" + device;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return {.percent_used = {}, .unknown = fmt::format("{}: {}", path, errno_text(errno))};
  }
  std::array<uint8_t, kLogBytes> log{};
  nvme_admin_cmd command{};
  command.opcode = kGetLogPage;
  command.nsid = kAllNamespaces;
  command.addr = reinterpret_cast<uintptr_t>(log.data());
  command.data_len = kLogBytes;
  command.cdw10 = kHealthLog | ((kLogBytes / 4 - 1) << 16U);  // length in words, minus one
  const int result = ::ioctl(descriptor, NVME_IOCTL_ADMIN_CMD, &command);
  const int number = errno;
  ::close(descriptor);
  if (result != 0) {
    return {.percent_used = {},
            .unknown = result < 0 ? fmt::format("{}: {}", path, errno_text(number))
                                  : fmt::format("{}: NVMe status {:#x}", path, result)};
  }
  return {.percent_used = log[kPercentageUsedByte], .unknown = {}};
}

}  // namespace headrace::aio
