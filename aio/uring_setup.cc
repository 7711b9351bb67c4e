#include "aio/uring_setup.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>

#include "aio/uring_facts.h"
#include "base/error.h"
#include "base/log.h"

namespace headrace::aio {

namespace {

struct RingSetup {
  unsigned flags = 0;
  const char* name = nullptr;  ///< null: no more sets
};

#if defined(IORING_SETUP_SINGLE_ISSUER)
constexpr unsigned kSingleIssuer = IORING_SETUP_SINGLE_ISSUER;
#else
constexpr unsigned kSingleIssuer = 0;
#endif
#if defined(IORING_SETUP_DEFER_TASKRUN)
constexpr unsigned kDeferTaskRun = kSingleIssuer | IORING_SETUP_DEFER_TASKRUN;
#else
constexpr unsigned kDeferTaskRun = 0;
#endif
#if defined(IORING_SETUP_COOP_TASKRUN)
constexpr unsigned kCooperate = IORING_SETUP_COOP_TASKRUN;
#else
constexpr unsigned kCooperate = 0;
#endif

/// The kernel thread of a ring with submission polling sleeps after so long without work; until
/// then it keeps a core busy.
constexpr unsigned kPollerIdleMs = 50;

/// The flag sets of a mode, cheapest first. A kernel that does not know a flag answers EINVAL; a
/// flag missing in the headers is 0, which makes its set the same as the plain one.
std::array<RingSetup, 3> setups_of(SubmissionMode mode) {
  switch (mode) {
    case SubmissionMode::sq_poll:
      return {{{IORING_SETUP_SQPOLL | kSingleIssuer, "submission polling, single issuer"},
               {IORING_SETUP_SQPOLL, "submission polling"}}};
    case SubmissionMode::io_poll:
      return {{{IORING_SETUP_IOPOLL | kDeferTaskRun, "I/O polling, deferred task work"},
               {IORING_SETUP_IOPOLL, "I/O polling"}}};
    case SubmissionMode::interrupt:
      break;
  }
  return {{{kDeferTaskRun, "single issuer, deferred task work"},
           {kCooperate, "cooperative task work"},
           {0, "plain"}}};
}

int open_ring(unsigned entries, unsigned flags, io_uring& ring) {
  io_uring_params params{};
  params.flags = flags | IORING_SETUP_R_DISABLED;
  params.sq_thread_idle = kPollerIdleMs;
  return io_uring_queue_init_params(entries, &ring, &params);
}

/// Sends one empty request through `ring` and waits for it.
int try_ring(io_uring& ring) {
  if (const int result = enable_ring(ring); result < 0) {
    return result;
  }
  io_uring_sqe* entry = io_uring_get_sqe(&ring);
  if (entry == nullptr) {
    return -EBUSY;
  }
  io_uring_prep_nop(entry);
  int result = 0;
  do {
    result = io_uring_submit_and_wait(&ring, 1);
  } while (result == -EINTR);
  if (result < 0) {
    return result;
  }
  io_uring_cqe* done = nullptr;
  result = io_uring_wait_cqe(&ring, &done);
  if (result < 0) {
    return result;
  }
  result = done->res;
  io_uring_cqe_seen(&ring, done);
  // Older kernels refuse empty requests on a ring with I/O polling, which says nothing about reads.
  return (ring.flags & IORING_SETUP_IOPOLL) != 0 ? 0 : result;
}

int try_setup(const RingSetup& setup) {
  io_uring ring{};
  int result = open_ring(4, setup.flags, ring);
  if (result < 0) {
    return result;
  }
  result = try_ring(ring);
  io_uring_queue_exit(&ring);
  return result;
}

}  // namespace

std::vector<RingTrial> try_ring_setups(SubmissionMode mode) {
  std::vector<RingTrial> trials;
  for (const RingSetup& setup : setups_of(mode)) {
    if (setup.name == nullptr) {
      break;
    }
    const int result = try_setup(setup);
    trials.push_back({setup.name, result < 0 ? -result : 0});
    if (result >= 0) {
      break;
    }
  }
  return trials;
}

int open_best_ring(unsigned entries, SubmissionMode mode, io_uring& ring) {
  int refusal = 0;
  std::string refused;
  for (const RingSetup& setup : setups_of(mode)) {
    if (setup.name == nullptr) {
      break;
    }
    int result = try_setup(setup);
    if (result >= 0) {
      result = open_ring(entries, setup.flags, ring);
    }
    if (result >= 0) {
      if (!refused.empty()) {
        log_message_once(LogLevel::info, "io_uring setup",
                         fmt::format("io_uring: the kernel refused {}; using a ring with {} (a "
                                     "little more CPU time per transfer)",
                                     refused, setup.name));
      }
      return 0;
    }
    refusal = result;
    refused +=
        fmt::format("{}{} ({})", refused.empty() ? "" : " and ", setup.name, errno_text(-result));
  }
  return refusal;
}

int enable_ring(io_uring& ring) {
  // The library's io_uring_enable_rings is missing from its shared object in version 2.3.
  return io_uring_register(static_cast<unsigned>(ring.ring_fd), IORING_REGISTER_ENABLE_RINGS,
                           nullptr, 0);
}

int check_operations(io_uring& ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) {
    return -ENOSYS;
  }
  bool all = true;
  for (const int operation : {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED,
                              IORING_OP_WRITE_FIXED, IORING_OP_POLL_ADD}) {
    all = all && io_uring_opcode_supported(probe, operation) != 0;
  }
  io_uring_free_probe(probe);
  return all ? 0 : -ENOSYS;
}

}  // namespace headrace::aio
