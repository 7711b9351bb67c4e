#include "tiers/run_directory.h"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"

namespace headrace::tiers {

namespace {

constexpr std::string_view kIdentityLine = "headrace run directory";
constexpr size_t kRunIdLengthMax = 128;

[[noreturn]] void fail(const std::string& what, const std::string& path) {
  IoError::Where where;
  where.error_number = errno;
  where.path = path;
  throw IoError(what, where);
}

std::string known_host_name() {
  const std::string name = host_name();
  return name.empty() ? "unknown-host" : name;
}

/// UTC, to the second.
std::tm utc_now() {
  return fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now()));
}

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_all(int fd, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) {
      fail("writing failed", path);
    }
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
}

FileDescriptor create_file(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    fail("creating failed", path);
  }
  return file;
}

void check_run_id(const std::string& run_id) {
  const bool usable = !run_id.empty() && run_id.size() <= kRunIdLengthMax &&
                      std::all_of(run_id.begin(), run_id.end(), [](unsigned char c) {
                        return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
                      });
  if (!usable) {
    throw InputError(fmt::format("run id '{}': use 1 to {} letters, digits and the signs - _ .",
                                 run_id, kRunIdLengthMax));
  }
}

/// Why a folder that exists already cannot be used. Changes nothing in it.
[[noreturn]] void refuse(const std::string& path) {
  const std::string lock_path = path + "/LOCK";
  const FileDescriptor lock(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.get() >= 0 && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw InputError(fmt::format(
        "{} is in use by another Headrace run ({}); choose another run id, or wait for it", path,
        read_text(lock_path)));
  }
  if (read_text(path + "/RUN").starts_with(kIdentityLine)) {
    throw InputError(fmt::format(
        "{} holds an earlier run that is not in use; resume it, choose another run id, or remove "
        "the folder",
        path));
  }
  throw InputError(fmt::format(
      "{} exists and was not made by Headrace, so nothing in it was touched; choose another run id "
      "or path",
      path));
}

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void sync_directory(const std::string& path) {
  const FileDescriptor directory(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) {
    fail("opening the folder failed", path);
  }
  // Some filesystems have nothing to sync for a folder and say so with EINVAL.
  if (::fsync(directory.get()) != 0 && errno != EINVAL) {
    fail("syncing the folder failed", path);
  }
}

std::string make_run_id() {
  static std::atomic<int> count{0};
  std::string host = known_host_name().substr(0, 40);
  std::replace_if(
      host.begin(), host.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return fmt::format("{}-{}-{:%Y%m%dT%H%M%S}-{}", host, ::getpid(), utc_now(), count++);
}

RunDirectory::RunDirectory(const std::string& parent, const std::string& run_id, int index,
                           int count) {
  check_run_id(run_id);
  path_ = fmt::format("{}/headrace-{}", parent, run_id);
  make_folder(parent);
  try {
    take_lock();
    write_identity(run_id, index, count);
    sync_directory(path_);
    sync_directory(parent);
  } catch (...) {
    remove();
    throw;
  }
}

void RunDirectory::make_folder(const std::string& parent) {
  std::error_code error;
  if (std::filesystem::create_directories(parent, error)) {
    log_info("made the folder {}", parent);
  }
  if (error) {
    throw InputError(
        fmt::format("nvme path {} cannot be used as a folder: {}", parent, error.message()));
  }
  if (::mkdir(path_.c_str(), 0700) == 0) {
    return;
  }
  if (errno == EEXIST) {
    refuse(path_);
  }
  if (errno == EACCES || errno == EROFS) {
    throw InputError(fmt::format("nvme path {} cannot be written: {}", parent, errno_text(errno)));
  }
  fail("making the folder failed", path_);
}

void RunDirectory::take_lock() {
  const std::string path = path_ + "/LOCK";
  lock_ = create_file(path);
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    fail("locking failed", path);
  }
  write_all(lock_.get(),
            fmt::format("host {}, process {}, since {:%Y-%m-%dT%H:%M:%SZ}", known_host_name(),
                        ::getpid(), utc_now()),
            path);
}

void RunDirectory::write_identity(const std::string& run_id, int index, int count) {
  const std::string path = path_ + "/RUN";
  const FileDescriptor file = create_file(path);
  write_all(file.get(),
            fmt::format("{}\nformat {}\nrun {}\npath {} of {}\n", kIdentityLine, kRunFormatVersion,
                        run_id, index, count),
            path);
  if (::fsync(file.get()) != 0) {
    fail("syncing failed", path);
  }
}

RunDirectory::~RunDirectory() {
  if (!keep_) {
    remove();
  }
}

void RunDirectory::remove() noexcept {
  for (const char* const name : {"/RUN", "/LOCK"}) {
    if (::unlink((path_ + name).c_str()) != 0 && errno != ENOENT) {
      log_warning("removing {}{}: {}", path_, name, errno_text(errno));
    }
  }
  if (::rmdir(path_.c_str()) != 0) {
    log_warning("{} was left, it holds files that Headrace did not make or could not remove: {}",
                path_, errno_text(errno));
  }
}

}  // namespace headrace::tiers
