#include "base/process.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <string>

#include "base/error.h"

namespace headrace {

namespace {

Bytes status_field(const std::string& name) {
  static constexpr const char* kPath = "/proc/self/status";
  std::ifstream status(kPath);
  std::string line;
  while (std::getline(status, line)) {
    if (line.rfind(name, 0) != 0) {
      continue;
    }
    const auto digit = line.find_first_of("0123456789");
    int64_t kib = 0;
    if (digit != std::string::npos &&
        std::from_chars(line.data() + digit, line.data() + line.size(), kib).ec == std::errc()) {
      return kKiB * kib;
    }
  }
  throw IoError("cannot read the memory use of the process",
                {.path = kPath, .error_number = ENOENT});
}

}  // namespace

Bytes peak_resident_bytes() {
  return status_field("VmHWM:");
}
Bytes resident_bytes() {
  return status_field("VmRSS:");
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

}  // namespace headrace
