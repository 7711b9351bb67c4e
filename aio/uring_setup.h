#pragma once

#include <liburing.h>

#include "aio/io.h"

namespace headrace::aio {

/// Opens a disabled ring of a submission mode with the cheapest set of flags that this kernel is
/// seen to work with (a request is sent through a small ring first), and says once why it is not
/// the best one. Returns 0 or -errno. The thread that enables the ring must be the one that uses
/// it.
int open_best_ring(unsigned entries, SubmissionMode mode, io_uring& ring);

/// Makes the calling thread the user of a disabled ring; 0 or -errno.
int enable_ring(io_uring& ring);

/// 0, or -ENOSYS when the ring lacks an operation that transfers need.
int check_operations(io_uring& ring);

}  // namespace headrace::aio
