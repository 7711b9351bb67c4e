#include "aio/uring_facts.h"

#include <liburing.h>

#include "aio/uring_setup.h"
#include "base/system_file.h"

namespace headrace::aio {

namespace {

constexpr unsigned kEntries = 4;

bool has_all_operations() {
  io_uring ring{};
  if (io_uring_queue_init(kEntries, &ring, 0) < 0) {
    return false;
  }
  const bool all = check_operations(ring) == 0;
  io_uring_queue_exit(&ring);
  return all;
}

}  // namespace

UringFacts read_uring_facts(const std::string& root) {
  constexpr int64_t kFilterMode = 2;
  UringFacts facts;
  facts.kernel = first_line_of(root + "/proc/sys/kernel/osrelease");
  facts.disabled = number_of(root + "/proc/sys/kernel/io_uring_disabled");
  facts.has_seccomp_filter = number_of(root + "/proc/self/status", "Seccomp") == kFilterMode;
  return facts;
}

UringFacts try_uring() {
  UringFacts facts = read_uring_facts();
  facts.setups = try_ring_setups(SubmissionMode::interrupt);
  if (facts.setups.back().error == 0) {
    facts.has_operations = has_all_operations();
    facts.submission_poll = try_ring_setups(SubmissionMode::sq_poll).back().error;
  }
  return facts;
}

}  // namespace headrace::aio
