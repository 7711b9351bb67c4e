#include "aio/uring_setup.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "base/log.h"

namespace headrace::aio {

namespace {

struct RingSetup {
  unsigned flags = 0;
  const char* name = "";
};

/// Cheapest first. Flags missing in the headers are left out; a kernel that does not know a flag
/// answers EINVAL. Polling modes are not here: SQPOLL burns a core, IOPOLL is refused by many
/// devices, and neither was seen to help.
constexpr auto kSetups = std::to_array<RingSetup>({
#if defined(IORING_SETUP_SINGLE_ISSUER) && defined(IORING_SETUP_DEFER_TASKRUN)
  {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, "single issuer, deferred task work"},
#endif
#if defined(IORING_SETUP_COOP_TASKRUN)
      {IORING_SETUP_COOP_TASKRUN, "cooperative task work"},
#endif
      {0, "plain"},
});

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
  return result;
}

int try_setup(const RingSetup& setup) {
  io_uring ring{};
  int result = io_uring_queue_init(4, &ring, setup.flags | IORING_SETUP_R_DISABLED);
  if (result < 0) {
    return result;
  }
  result = try_ring(ring);
  io_uring_queue_exit(&ring);
  return result;
}

}  // namespace

int open_best_ring(unsigned entries, io_uring& ring) {
  int refusal = 0;
  std::string refused;
  for (const RingSetup& setup : kSetups) {
    int result = try_setup(setup);
    if (result >= 0) {
      result = io_uring_queue_init(entries, &ring, setup.flags | IORING_SETUP_R_DISABLED);
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
    refused += fmt::format("{}{} ({})", refused.empty() ? "" : " and ", setup.name,
                           std::generic_category().message(-result));
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
