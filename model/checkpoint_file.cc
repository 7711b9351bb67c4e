#include "model/checkpoint_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/error.h"

namespace headrace::model {

namespace {

constexpr size_t kMaxTransfer = size_t{1} << 30;  // the kernel cuts transfers near 2 GiB

[[noreturn]] void fail(const std::string& what, const std::string& path, int error_number) {
  throw IoError(what, {.path = path, .error_number = error_number});
}

}  // namespace

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a named pipe is refused below instead of waiting for a writer.
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) {
    throw InputError(fmt::format("cannot open {}: {}", path_, std::strerror(errno)));
  }
  struct stat status {};
  const int result = ::fstat(descriptor_, &status);
  if (result != 0 || !S_ISREG(status.st_mode)) {
    const std::string reason = result != 0 ? std::strerror(errno) : "not a regular file";
    ::close(descriptor_);
    throw InputError(fmt::format("cannot read {}: {}", path_, reason));
  }
  size_ = Bytes(status.st_size);
}

InputFile::~InputFile() {
  ::close(descriptor_);
}

void InputFile::read_at(int64_t offset, std::span<std::byte> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const size_t step = std::min(out.size() - done, kMaxTransfer);
    const ssize_t result =
        ::pread(descriptor_, out.data() + done, step, offset + static_cast<int64_t>(done));
    if (result < 0 && errno == EINTR) {
      continue;
    }
    if (result <= 0) {
      throw IoError(result < 0 ? "reading failed" : "the file ended early; was it changed?",
                    {.path = path_,
                     .offset = offset,
                     .expected_bytes = static_cast<int64_t>(out.size()),
                     .actual_bytes = static_cast<int64_t>(done),
                     .error_number = result < 0 ? errno : 0});
    }
    done += static_cast<size_t>(result);
  }
}

std::string read_text_file(const std::string& path, Bytes limit) {
  const InputFile file(path);
  if (file.size() > limit) {
    throw InputError(fmt::format("{} has {} bytes; such a file has at most {}", path,
                                 file.size().count(), limit.count()));
  }
  std::string text(static_cast<size_t>(file.size().count()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

OutputFile::OutputFile(std::string target, Bytes size) : target_(std::move(target)), size_(size) {
  // A name that exists is another writer's, or a dead one's with this process id: take the next.
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = fmt::format("{}.partial-{}", target_, ::getpid());
    if (attempt > 0) {
      temporary_ += fmt::format(".{}", attempt);
    }
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && (errno != EEXIST || attempt == 100)) {
      fail("cannot create the file", temporary_, errno);
    }
  }
  if (size_.count() > 0 && ::fallocate(descriptor_, 0, 0, size_.count()) != 0 &&
      errno != EOPNOTSUPP && errno != ENOSYS) {
    const int error_number = errno;
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
    throw IoError("cannot reserve disk space", {.path = temporary_,
                                                .offset = 0,
                                                .expected_bytes = size_.count(),
                                                .error_number = error_number});
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
  if (!in_place_) {
    ::unlink(temporary_.c_str());
  }
}

void OutputFile::write(std::span<const std::byte> bytes) {
  write_at(written_, bytes);
}

void OutputFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const size_t step = std::min(bytes.size() - done, kMaxTransfer);
    const ssize_t result =
        ::pwrite(descriptor_, bytes.data() + done, step, offset + static_cast<int64_t>(done));
    if (result < 0 && errno == EINTR) {
      continue;
    }
    if (result <= 0) {
      throw IoError("writing failed", {.path = temporary_,
                                       .offset = offset,
                                       .expected_bytes = static_cast<int64_t>(bytes.size()),
                                       .actual_bytes = static_cast<int64_t>(done),
                                       .error_number = result < 0 ? errno : ENOSPC});
    }
    done += static_cast<size_t>(result);
  }
  written_ += static_cast<int64_t>(bytes.size());
}

void OutputFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text)));
}

void OutputFile::close() {
  HR_CHECK(written_ == size_.count(), "{}: wrote {} of {} bytes", target_, written_, size_.count());
  if (::fsync(descriptor_) != 0) {
    fail("cannot sync the file to disk", temporary_, errno);
  }
  const int result = ::close(descriptor_);
  descriptor_ = -1;
  if (result != 0) {
    fail("cannot close the file", temporary_, errno);
  }
}

void OutputFile::rename_to_target() {
  HR_CHECK(descriptor_ < 0, "{} is still open", temporary_);
  if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail(fmt::format("cannot rename {} into place", temporary_), target_, errno);
  }
  in_place_ = true;
}

void replace_file(const std::string& path, std::string_view content) {
  OutputFile file(path, Bytes(static_cast<int64_t>(content.size())));
  file.write(content);
  file.close();
  file.rename_to_target();
}

void check_is_elsewhere(const std::string& output, const std::string& model) {
  std::error_code none_is_there;
  if (std::filesystem::equivalent(output, model, none_is_there)) {
    throw InputError(fmt::format(
        "the output {} is the folder of the model that training starts from, which would be lost; "
        "name another folder with --output",
        output));
  }
}

OutputFolder::OutputFolder(std::string path) : path_(std::move(path)) {
  if (const std::error_code error = made_.make(path_)) {
    fail(error == std::errc::not_a_directory ? "the output must be a folder, and this is a file"
                                             : "cannot make the output folder",
         path_, error.value());
  }
}

std::string OutputFolder::file(std::string_view name) const {
  return (std::filesystem::path(path_) / name).string();
}

void OutputFolder::sync() const {
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    fail("cannot open the output folder", path_, errno);
  }
  const int result = ::fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  // Some file systems (FUSE, 9p) have no sync of folders.
  if (result != 0 && error_number != EINVAL && error_number != ENOTSUP) {
    fail("cannot sync the output folder", path_, error_number);
  }
}

void OutputFolder::remove(std::string_view name) const {
  const std::string path = file(name);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    fail("cannot remove a file of the previous model", path, errno);
  }
}

}  // namespace headrace::model
