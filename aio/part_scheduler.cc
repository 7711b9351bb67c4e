#include "aio/part_scheduler.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "aio/transfer_error.h"
#include "base/check.h"

namespace headrace::aio {

namespace {

constexpr int kRetriesMax = 32;

IoOperation other(IoOperation operation) {
  return operation == IoOperation::read ? IoOperation::write : IoOperation::read;
}

}  // namespace

PartScheduler::PartScheduler(Bytes block_size, int depth_max)
    : block_size_(block_size.count()), depth_(depth_max) {
  HR_CHECK(block_size_ > 0 && block_size_ <= kPartBytesMax, "block_size={}", block_size_);
  HR_CHECK(depth_ > 0, "depth_max={}", depth_);
  parts_.resize(static_cast<size_t>(depth_));
  batch_.reserve(parts_.size());
  again_.reserve(parts_.size());
  for (auto token = static_cast<uint32_t>(depth_); token > 0; --token) {
    free_.push_back(token - 1);
  }
}

void PartScheduler::set_depth(int depth) {
  HR_CHECK(depth > 0 && depth <= static_cast<int>(parts_.size()), "depth={} of {}", depth,
           parts_.size());
  depth_ = depth;
}

PartScheduler::Queue& PartScheduler::queue(IoOperation operation, IoClass io_class) {
  return queues_[static_cast<size_t>(io_class) * 2 + index_of(operation)];
}

void PartScheduler::add(std::shared_ptr<PendingRequest> request) {
  const IoRequest& value = request->request;
  HR_CHECK(value.length.count() > 0, "length={}", value.length);
  ++queued_[index_of(value.operation)];
  queue(value.operation, value.io_class).push_back(std::move(request));
}

bool PartScheduler::is_wanted(IoOperation operation) const {
  return queued_[index_of(operation)] > 0 || in_flight_[index_of(operation)] > 0;
}

bool PartScheduler::is_waiting(IoOperation operation) const {
  return queued_[index_of(operation)] > 0;
}

int PartScheduler::limit(IoOperation operation) const {
  const bool both = is_wanted(other(operation));
  if (operation == IoOperation::read) {
    return both ? std::max(1, depth_ - std::max(1, depth_ / 4)) : depth_;
  }
  return std::max(1, both ? depth_ / 2 : depth_ - depth_ / 8);
}

bool PartScheduler::may_go(IoOperation operation) const {
  return in_flight_[0] + in_flight_[1] < depth_ && in_flight(operation) < limit(operation);
}

std::span<const PartRequest> PartScheduler::next_parts() {
  batch_.clear();
  for (const uint32_t token : again_) {
    batch_.push_back(part_request(token));
  }
  again_.clear();
  for (const IoClass io_class : {IoClass::demand, IoClass::prefetch, IoClass::write_back}) {
    for (const IoOperation operation : {IoOperation::read, IoOperation::write}) {
      Queue& from = queue(operation, io_class);
      while (!from.empty() && may_go(operation)) {
        cut(from);
      }
    }
  }
  return batch_;
}

/// Makes the next part of the first request of `from`.
void PartScheduler::cut(Queue& from) {
  const std::shared_ptr<PendingRequest> request = from.front();
  const int64_t length = request->request.length.count();
  const uint32_t token = free_.back();
  free_.pop_back();
  parts_[token] = Part{.request = request,
                       .start = request->bytes_cut,
                       .length = std::min(block_size_, length - request->bytes_cut)};
  request->bytes_cut += parts_[token].length;
  ++request->parts_open;
  ++in_flight_[index_of(request->request.operation)];
  if (request->bytes_cut == length) {
    from.pop_front();
    --queued_[index_of(request->request.operation)];
  }
  batch_.push_back(part_request(token));
}

PartRequest PartScheduler::part_request(uint32_t token) const {
  const Part& part = parts_[token];
  const IoRequest& request = part.request->request;
  const int64_t from = part.start + part.resume;
  return PartRequest{.token = token,
                     .operation = request.operation,
                     .handle = part.request->file->handle,
                     .offset = request.offset + from,
                     .data = request.data + from,
                     .length = static_cast<uint32_t>(part.length - part.resume)};
}

/// Whether the part, which is not done, is worth one more transfer; sets it up.
bool PartScheduler::go_on(Part& part, const PartCompletion& completion) {
  if (completion.result == -EAGAIN || completion.result == -EINTR) {
    return ++part.retries <= kRetriesMax;
  }
  if (completion.result <= 0) {
    return false;
  }
  const int64_t reached = part.resume + completion.result;
  const bool is_further = reached > part.reached;
  part.reached = std::max(part.reached, reached);
  if (!is_further || part.continued) {
    return false;
  }
  part.continued = true;
  // A direct transfer can only go on from an aligned place, so it repeats the broken block.
  part.resume =
      part.request->file->direct ? reached / kDirectAlignment * kDirectAlignment : reached;
  return true;
}

void PartScheduler::settle(const PartCompletion& completion, Requests& ended) {
  HR_CHECK(completion.token < parts_.size() && parts_[completion.token].request != nullptr,
           "token={}", completion.token);
  Part& part = parts_[completion.token];
  const int64_t expected = completion.expected;
  HR_CHECK(expected == part.length - part.resume && completion.result <= expected,
           "expected={} result={} length={} resume={}", expected, completion.result, part.length,
           part.resume);
  if (completion.result >= 0 && part.resume + completion.result == part.length) {
    part.reached = part.length;
    end_part(completion.token, nullptr, ended);
    return;
  }
  if (go_on(part, completion)) {
    again_.push_back(completion.token);
    return;
  }
  const IoRequest& request = part.request->request;
  end_part(completion.token,
           make_transfer_error({.operation = request.operation,
                                .path = part.request->file->path,
                                .offset = request.offset + part.start,
                                .expected_bytes = part.length,
                                .actual_bytes = part.reached,
                                .error_number = completion.result < 0 ? -completion.result : 0}),
           ended);
}

void PartScheduler::end_part(uint32_t token, std::exception_ptr error, Requests& ended) {
  const Part part = std::exchange(parts_[token], Part{});
  free_.push_back(token);
  PendingRequest& request = *part.request;
  const size_t operation = index_of(request.request.operation);
  --in_flight_[operation];
  bytes_done_[operation] += part.reached;
  if (error && (request.error == nullptr || part.start < request.error_offset)) {
    request.error = std::move(error);
    request.error_offset = part.start;
  }
  --request.parts_open;
  if (request.error && request.bytes_cut < request.request.length.count()) {
    // The rest is not worth sending: take the request out of its queue.
    Queue& from = queue(request.request.operation, request.request.io_class);
    from.erase(std::find(from.begin(), from.end(), part.request));
    --queued_[operation];
    request.bytes_cut = request.request.length.count();
  }
  if (request.parts_open == 0 && request.bytes_cut == request.request.length.count()) {
    ended.push_back(part.request);
  }
}

void PartScheduler::fail_all(const std::exception_ptr& error, Requests& ended) {
  again_.clear();
  for (uint32_t token = 0; token < parts_.size(); ++token) {
    if (parts_[token].request != nullptr) {
      end_part(token, error, ended);
    }
  }
  for (Queue& from : queues_) {
    for (const std::shared_ptr<PendingRequest>& request : from) {
      request->error = error;
      ended.push_back(request);
    }
    from.clear();
  }
  queued_ = {};
}

bool PartScheduler::is_idle() const {
  return free_.size() == parts_.size() && queued_[0] == 0 && queued_[1] == 0;
}

int PartScheduler::in_flight(IoOperation operation) const {
  return in_flight_[index_of(operation)];
}

int64_t PartScheduler::bytes_done(IoOperation operation) const {
  return bytes_done_[index_of(operation)];
}

}  // namespace headrace::aio
