#include "aio/fio_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <string_view>

#include "base/error.h"

namespace headrace::aio {

namespace {

constexpr int kPollMilliseconds = 50;

/// glibc asks for huge pages for large blocks of malloc: fio's buffers are one such block.
constexpr const char* kHugePages = "GLIBC_TUNABLES=glibc.malloc.hugetlb=1";

/// The reading end of a pipe and a process that writes into it. The destructor ends the process.
class Child {
 public:
  Child(const std::string& program, const std::vector<std::string>& arguments) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
      throw InternalError("pipe2 failed: " + errno_text(errno));
    }
    output_ = ends[0];
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
    start_error_ = start(program, arguments, actions);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (is_running()) {
      ::kill(process_, SIGKILL);
      wait();
    }
    ::close(output_);
  }

  int start_error() const { return start_error_; }

  /// Everything it writes, until it ends.
  std::string read_all(const std::atomic<bool>* cancelled) const {
    std::string text;
    std::array<char, 4096> buffer{};
    for (;;) {
      if (cancelled != nullptr && cancelled->load()) {
        throw InterruptedError("the probe was stopped; its test file is removed");
      }
      pollfd waiting{.fd = output_, .events = POLLIN, .revents = 0};
      if (::poll(&waiting, 1, kPollMilliseconds) <= 0) {
        continue;  // nothing yet, or a signal
      }
      const ssize_t length = ::read(output_, buffer.data(), buffer.size());
      if (length < 0 && errno == EINTR) {
        continue;
      }
      if (length <= 0) {
        return text;
      }
      text.append(buffer.data(), static_cast<size_t>(length));
    }
  }

  /// Its exit status as of waitpid.
  int wait() {
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) {
    }
    process_ = -1;
    return status;
  }

 private:
  bool is_running() const { return process_ > 0; }

  int start(const std::string& program, const std::vector<std::string>& arguments,
            const posix_spawn_file_actions_t& actions) {
    std::vector<std::string> texts = {program};
    texts.insert(texts.end(), arguments.begin(), arguments.end());
    std::vector<char*> pointers;
    pointers.reserve(texts.size() + 1);
    for (std::string& text : texts) {
      pointers.push_back(text.data());
    }
    pointers.push_back(nullptr);
    std::string huge_pages = kHugePages;
    std::vector<char*> environment = {huge_pages.data()};
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (!std::string_view(*entry).starts_with("GLIBC_TUNABLES=")) {
        environment.push_back(*entry);
      }
    }
    environment.push_back(nullptr);
    const int error = ::posix_spawnp(&process_, program.c_str(), &actions, nullptr, pointers.data(),
                                     environment.data());
    process_ = error == 0 ? process_ : -1;
    return error;
  }

  int output_ = -1;
  pid_t process_ = -1;
  int start_error_ = 0;
};

}  // namespace

FioOutput run_fio_program(const std::string& program, const std::vector<std::string>& arguments,
                          const std::atomic<bool>* cancelled) {
  Child child(program, arguments);
  if (child.start_error() != 0) {
    return {.start_error = child.start_error(), .succeeded = false, .text = {}};
  }
  std::string text = child.read_all(cancelled);
  const int status = child.wait();
  return {.start_error = 0,
          .succeeded = WIFEXITED(status) && WEXITSTATUS(status) == 0,
          .text = std::move(text)};
}

}  // namespace headrace::aio
