#include "tiers/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/utc.h"

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

[[noreturn]] void refuse_in_use(const std::string& path, const std::string& owner) {
  throw InputError(fmt::format(
      "{} is in use by another Headrace run ({}); choose another run id, or wait for it", path,
      owner));
}

/// Who wrote a LOCK file.
struct Owner {
  std::string host;
  int64_t process = 0;
  uint64_t start_ticks = 0;
};

std::string owner_text(const Owner& owner) {
  return fmt::format("host {}, process {}, start {}, since {}", owner.host, owner.process,
                     owner.start_ticks, utc_text(std::time(nullptr), "%Y-%m-%dT%H:%M:%SZ"));
}

/// Empty where the text is not that of a LOCK file.
std::optional<Owner> parse_owner(const std::string& text) {
  static const std::regex pattern(
      "host (\\S+), process ([0-9]{1,18}), start ([0-9]{1,18}), since.*");
  std::smatch match;
  if (!std::regex_match(text, match, pattern)) {
    return std::nullopt;
  }
  return Owner{match[1], std::stoll(match[2]), std::stoull(match[3])};
}

/// Whether other machines may use the file too, without seeing this one's locks.
bool is_shared_filesystem(int file) {
  constexpr std::array<uint32_t, 9> kShared = {
      0x6969,      // nfs
      0xff534d42,  // cifs
      0xfe534d42,  // smb2
      0x65735546,  // fuse
      0x0bd00bd0,  // lustre
      0x47504653,  // gpfs
      0x00c36400,  // ceph
      0x01161970,  // gfs2
      0x7461636f,  // ocfs2
  };
  struct statfs status {};
  return ::fstatfs(file, &status) != 0 ||
         std::count(kShared.begin(), kShared.end(), static_cast<uint32_t>(status.f_type)) > 0;
}

/// Why a folder that exists already cannot be used. Changes nothing in it.
[[noreturn]] void refuse(const std::string& path) {
  const std::string lock_path = path + "/LOCK";
  const FileDescriptor lock(::open(lock_path.c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.get() >= 0 && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    refuse_in_use(path, read_text(lock_path));
  }
  if (is_run_directory(path)) {
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
  return fmt::format("{}-{}-{}-{}", host, ::getpid(), utc_text(std::time(nullptr), "%Y%m%dT%H%M%S"),
                     count++);
}

bool is_run_directory(const std::string& path) {
  return read_text(path + "/RUN").starts_with(kIdentityLine);
}

RunIdentity read_run_identity(const std::string& path) {
  if (!is_run_directory(path)) {
    throw InputError(fmt::format(
        "{} is not a run directory of Headrace: it has no file RUN that says so", path));
  }
  static const std::regex pattern(
      "headrace run directory\nformat ([0-9]{1,6})\nrun (\\S+)\npath ([0-9]{1,6}) of "
      "([0-9]{1,6})\n");
  const std::string text = read_text(path + "/RUN");
  std::smatch match;
  if (!std::regex_match(text, match, pattern)) {
    throw InputError(
        fmt::format("{}/RUN is damaged: it does not have the four lines of a run", path));
  }
  RunIdentity identity{std::stoi(match[1]), match[2], std::stoi(match[3]), std::stoi(match[4])};
  if (identity.format != kRunFormatVersion) {
    throw InputError(fmt::format(
        "{} has format {}, this program reads format {}; use the version of Headrace that wrote it",
        path, identity.format, kRunFormatVersion));
  }
  if (identity.index >= identity.count) {
    throw InputError(
        fmt::format("{}/RUN is damaged: path {} of {}", path, identity.index, identity.count));
  }
  return identity;
}

RunDirectory::RunDirectory(const std::string& parent, const std::string& run_id, int index,
                           int count)
    : index_(index) {
  check_run_id(run_id);
  path_ = fmt::format("{}/headrace-{}", parent, run_id);
  make_folder(parent);
  try {
    take_lock();
    write_identity(run_id, count);
    sync_directory(path_);
    sync_directory(parent);
  } catch (...) {
    remove();
    throw;
  }
}

RunDirectory::RunDirectory(const std::string& path)
    : path_(path), index_(read_run_identity(path).index), keep_(true) {
  take_over_lock();
}

void RunDirectory::make_folder(const std::string& parent) {
  if (const std::error_code error = parents_.make(parent)) {
    throw InputError(
        fmt::format("nvme path {} cannot be used as a folder: {}", parent, error.message()));
  }
  if (parents_.any()) {
    log_info("made the folder {}", parent);
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
  write_owner();
}

/// The kernel's lock ends with its process. Where it may not be seen by all machines, or there is
/// none, the text of the last owner counts too.
void RunDirectory::take_over_lock() {
  const std::string path = path_ + "/LOCK";
  lock_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock_.get() < 0) {
    fail("opening failed", path);
  }
  const std::string text = read_text(path);
  bool is_reliable = !is_shared_filesystem(lock_.get());
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      refuse_in_use(path_, text);
    }
    log_warning("{} cannot be locked ({}); its text is all that keeps two runs apart", path,
                errno_text(errno));
    is_reliable = false;
  }
  if (const auto owner = parse_owner(text)) {
    if (owner->host != known_host_name() && !is_reliable) {
      throw InputError(
          fmt::format("{} was left locked on another machine ({}); if no process there uses it any "
                      "more, remove "
                      "the file {}",
                      path_, text, path));
    }
    const bool is_self = owner->process == ::getpid();
    if (!is_self && process_start_ticks(owner->process) == owner->start_ticks) {
      refuse_in_use(path_, text);
    }
    log_info("{}: the lock of a process that is gone ({}) was taken over", path_, text);
  }
  write_owner();
}

void RunDirectory::write_owner() {
  const std::string path = path_ + "/LOCK";
  if (::ftruncate(lock_.get(), 0) != 0 || ::lseek(lock_.get(), 0, SEEK_SET) != 0) {
    fail("writing failed", path);
  }
  write_all(
      lock_.get(),
      owner_text({known_host_name(), ::getpid(), process_start_ticks(::getpid()).value_or(0)}),
      path);
}

void RunDirectory::write_identity(const std::string& run_id, int count) {
  const std::string path = path_ + "/RUN";
  const FileDescriptor file = create_file(path);
  write_all(file.get(),
            fmt::format("{}\nformat {}\nrun {}\npath {} of {}\n", kIdentityLine, kRunFormatVersion,
                        run_id, index_, count),
            path);
  if (::fsync(file.get()) != 0) {
    fail("syncing failed", path);
  }
}

RunDirectory::~RunDirectory() {
  if (!keep_) {
    remove();
  } else if (::ftruncate(lock_.get(), 0) != 0) {  // an empty LOCK: closed in an orderly way
    log_warning("{}/LOCK: {}", path_, errno_text(errno));
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
