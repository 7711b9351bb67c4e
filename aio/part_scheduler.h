#pragma once

#include <array>
#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/backend.h"
#include "base/completion.h"

namespace headrace::aio {

/// A file of an engine. `uses` (requests and calls under way) belongs to the engine's lock.
struct OpenFile {
  std::string path;
  int handle = -1;
  bool direct = false;
  int64_t uses = 0;
};

/// A request on its way through the engine.
struct PendingRequest {
  IoRequest request;
  std::shared_ptr<OpenFile> file;
  Promise promise;
  int64_t bytes_cut = 0;  ///< of the request, from its start, given to parts so far
  int64_t parts_open = 0;
  std::exception_ptr error;  ///< of the failed part with the lowest offset
  int64_t error_offset = -1;
};

/// Cuts requests into parts and decides which go out next. One queue per operation and class;
/// demand before prefetch before write-back, in order of arrival within a queue, and always as
/// deep as allowed, across requests and within one. Reads and writes have separate budgets: while
/// both are wanted, reads hold at most 3/4 of the depth and writes at most 1/2, so neither starves;
/// writes alone leave 1/8 free, so a demand read starts at once. Owned by one thread.
class PartScheduler {
 public:
  using Requests = std::vector<std::shared_ptr<PendingRequest>>;

  /// Never more than `depth_max` parts in flight; set_depth() may ask for fewer.
  PartScheduler(Bytes block_size, int depth_max);

  /// From 1 to depth_max. Where more are in flight, no new ones go out until enough have ended.
  void set_depth(int depth);

  void add(std::shared_ptr<PendingRequest> request);
  /// Parts to submit now; valid until the next call.
  std::span<const PartRequest> next_parts();
  /// Takes the end of a part. EAGAIN and EINTR are retried, a short transfer is continued once; all
  /// else ends the part. A request all of whose parts ended is appended to `ended`.
  void settle(const PartCompletion& completion, Requests& ended);
  /// Fails everything queued and in flight: the backend is lost.
  void fail_all(const std::exception_ptr& error, Requests& ended);

  bool is_idle() const;
  /// Whether requests of this operation are queued or in flight.
  bool is_wanted(IoOperation operation) const;
  /// Whether parts of this operation wait for a place in the queue.
  bool is_waiting(IoOperation operation) const;
  /// Whether a new part of this operation could go out; if not, some are in flight.
  bool may_go(IoOperation operation) const;
  int in_flight(IoOperation operation) const;
  int64_t bytes_done(IoOperation operation) const;

 private:
  struct Part {
    std::shared_ptr<PendingRequest> request;  ///< null: the slot is free
    int64_t start = 0;                        ///< in the request
    int64_t length = 0;
    int64_t reached = 0;  ///< bytes transferred from the start of the part
    int64_t resume = 0;   ///< where in the part the running transfer began
    int retries = 0;
    bool continued = false;
  };
  using Queue = std::deque<std::shared_ptr<PendingRequest>>;

  Queue& queue(IoOperation operation, IoClass io_class);
  int limit(IoOperation operation) const;
  void cut(Queue& from);
  PartRequest part_request(uint32_t token) const;
  bool go_on(Part& part, const PartCompletion& completion);
  void end_part(uint32_t token, std::exception_ptr error, Requests& ended);

  int64_t block_size_;
  int depth_;
  std::array<Queue, 6> queues_;      ///< by class, then operation
  std::array<int64_t, 2> queued_{};  ///< requests in queues, by operation
  std::array<int, 2> in_flight_{};
  std::array<int64_t, 2> bytes_done_{};
  std::vector<Part> parts_;
  std::vector<uint32_t> free_;
  std::vector<uint32_t> again_;  ///< parts to submit once more
  std::vector<PartRequest> batch_;
};

}  // namespace headrace::aio
