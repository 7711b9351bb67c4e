#include "base/process.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <sstream>
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

std::optional<uint64_t> process_start_ticks(int64_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text;
  std::getline(file, text);
  // The second field is the program's name in brackets and may hold anything.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos) {
    return std::nullopt;
  }
  constexpr int kFieldsBetween = 19;  // the start is field 22
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < kFieldsBetween; ++i) {
    fields >> skipped;
  }
  uint64_t start = 0;
  return fields >> start ? std::optional<uint64_t>(start) : std::nullopt;
}

}  // namespace headrace
