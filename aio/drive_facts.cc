#include "aio/drive_facts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "aio/probe_storage.h"
#include "base/error.h"

namespace headrace::aio {

namespace {

constexpr size_t kBlock = 4096;

/// Mount points have blanks, tabs, newlines and backslashes as three octal digits.
std::string unescaped(const std::string& text) {
  constexpr size_t kDigits = 3;
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_escape = text[i] == '\\' && i + kDigits < text.size() &&
                           text.find_first_not_of("01234567", i + 1) > i + kDigits;
    if (!is_escape) {
      result += text[i];
      continue;
    }
    int code = 0;
    for (size_t digit = 1; digit <= kDigits; ++digit) {
      code = code * 8 + (text[i + digit] - '0');
    }
    result += static_cast<char>(code);
    i += kDigits;
  }
  return result;
}

/// Fields: id, parent, device, root, mount point, options, optional fields, "-", type, source,
/// super options (proc(5)).
std::optional<MountFacts> parse_mount(const std::string& line) {
  std::istringstream words(line);
  std::vector<std::string> fields;
  std::string word;
  size_t dash = 0;
  while (words >> word) {
    if (word == "-" && dash == 0) {
      dash = fields.size();
    }
    fields.push_back(word);
  }
  constexpr size_t kMountPoint = 4;
  constexpr size_t kOptions = 5;
  if (dash <= kOptions || fields.size() < dash + 4) {
    return std::nullopt;
  }
  return MountFacts{.mount_point = unescaped(fields[kMountPoint]),
                    .source = unescaped(fields[dash + 2]),
                    .file_system = fields[dash + 1],
                    .options = fields[kOptions] + "," + fields[dash + 3]};
}

bool holds(const std::string& mount_point, const std::string& folder) {
  return mount_point == "/" || folder == mount_point || folder.starts_with(mount_point + "/");
}

/// errno of one direct write and read through `path`; 0: both worked.
int try_direct(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  if (descriptor < 0) {
    return errno;
  }
  alignas(kBlock) std::array<std::byte, kBlock> block{};
  int error = 0;
  if (::pwrite(descriptor, block.data(), kBlock, 0) != static_cast<ssize_t>(kBlock) ||
      ::pread(descriptor, block.data(), kBlock, 0) != static_cast<ssize_t>(kBlock)) {
    error = errno != 0 ? errno : EIO;
  }
  ::close(descriptor);
  return error;
}

}  // namespace

bool MountFacts::has_option(const std::string& name) const {
  return ("," + options + ",").find("," + name + ",") != std::string::npos;
}

MountFacts mount_of(const std::string& folder, const std::string& root) {
  MountFacts best;
  std::ifstream file(root + "/proc/self/mountinfo");
  std::string line;
  while (std::getline(file, line)) {
    std::optional<MountFacts> mount = parse_mount(line);
    if (mount && holds(mount->mount_point, folder) &&
        mount->mount_point.size() >= best.mount_point.size()) {
      best = std::move(*mount);
    }
  }
  return best;
}

DriveFacts examine_drive(const std::string& folder) {
  DriveFacts facts;
  facts.folder = folder;
  try {
    facts.identity = identify_storage(folder);
  } catch (const Error& error) {
    facts.absent = error.what();
    return facts;
  }
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(folder, error);
  facts.mount = mount_of(error ? folder : real.string());
  try {
    const ScratchFile scratch(folder);
    errno = 0;
    facts.direct_error = try_direct(scratch.path());
  } catch (const Error& refusal) {
    facts.not_writable = refusal.what();
  }
  return facts;
}

}  // namespace headrace::aio
