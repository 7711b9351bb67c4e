#include "tiers/extent_io.h"

#include <mutex>

#include "base/check.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "tiers/checksum.h"

namespace headrace::tiers {

namespace {

constexpr int kReadAttempts = 2;

std::span<std::byte> slice(std::span<std::byte> bytes, int64_t offset, Bytes length) {
  return bytes.subspan(static_cast<size_t>(offset), static_cast<size_t>(length.count()));
}

}  // namespace

struct ExtentIo::WriteJob {
  WriteRequest request;
  WriteEnd on_end;
  std::shared_ptr<StoredValue> stored;
};

struct ExtentIo::ReadJob {
  std::string name;
  StoredValueRef value;
  std::span<std::byte> target;
  std::vector<int64_t> offsets;  ///< of each extent in the value
  aio::IoClass io_class = aio::IoClass::demand;
  ReadEnd on_end;
  std::mutex mutex;
  size_t open = 0;  ///< parts that have not ended
  std::exception_ptr error;
};

ExtentIo::ExtentIo(ExtentAllocator& allocator, std::shared_ptr<aio::IoEngine> io, bool verify_reads)
    : allocator_(allocator),
      io_(std::move(io)),
      verify_reads_(verify_reads),
      writer_("extent-write"),
      finisher_("extent-finish"),
      checker_("extent-check") {}

ExtentIo::~ExtentIo() {
  hand_overs_.wait_for_none();
}

void ExtentIo::go_on(SerialWorker& worker, std::function<void()> task) {
  hand_overs_.begin();
  worker.post(std::move(task));
  hand_overs_.end();
}

Completion ExtentIo::submit(const aio::IoRequest& request) {
  try {
    return io_->submit(request);
  } catch (...) {
    return Completion::failed(std::current_exception());
  }
}

void ExtentIo::write(WriteRequest request, WriteEnd on_end) {
  auto job = std::make_shared<WriteJob>(WriteJob{std::move(request), std::move(on_end), nullptr});
  go_on(writer_, [this, job] { start_write(job); });
}

void ExtentIo::start_write(const std::shared_ptr<WriteJob>& job) {
  const WriteRequest& request = job->request;
  const Bytes size(static_cast<int64_t>(request.value.size()));
  std::vector<Completion> parts;
  try {
    if (request.over != nullptr) {
      job->stored = std::const_pointer_cast<StoredValue>(request.over);
    } else {
      job->stored = std::make_shared<StoredValue>(
          allocator_, allocator_.allocate(request.name, size), size, request.persistent);
    }
    fault_point("before data write");
    // The engine's requests are for both directions; a write does not change the bytes.
    auto* data = const_cast<std::byte*>(request.value.data());
    for (Extent& extent : job->stored->extents_) {
      extent.checksum = checksum({data, static_cast<size_t>(extent.length.count())});
      parts.push_back(submit({aio::IoOperation::write, request.io_class, allocator_.file_id(extent),
                              extent.offset, data, extent.length}));
      data += extent.length.count();
    }
  } catch (...) {
    parts.push_back(Completion::failed(std::current_exception()));
  }
  when_all(parts).on_done([this, job](const std::exception_ptr& error) {
    go_on(finisher_, [this, job, error] { end_write(*job, error); });
  });
}

void ExtentIo::end_write(WriteJob& job, const std::exception_ptr& error) {
  if (error == nullptr) {
    fault_point("after data write");
    allocator_.mark_written(job.stored->extents());
    job.on_end(std::move(job.stored), nullptr);
  } else {
    job.stored.reset();
    job.on_end(nullptr, error);
  }
}

void ExtentIo::read(const std::string& name, StoredValueRef value, std::span<std::byte> target,
                    aio::IoClass io_class, ReadEnd on_end) {
  HR_CHECK(static_cast<int64_t>(target.size()) == value->size().count(),
           "read of '{}' ({} bytes) into {} bytes", name, value->size(), target.size());
  auto job = std::make_shared<ReadJob>();
  job->name = name;
  job->target = target;
  job->io_class = io_class;
  job->on_end = std::move(on_end);
  const size_t parts = value->extents().size();
  int64_t offset = 0;
  for (const Extent& extent : value->extents()) {
    job->offsets.push_back(offset);
    offset += extent.length.count();
  }
  job->value = std::move(value);
  job->open = parts + 1;  // one more, so that it cannot end while parts are being started
  for (size_t part = 0; part < parts; ++part) {
    start_part(job, part, 1);
  }
  go_on(checker_, [this, job] { end_part(*job, nullptr); });
}

void ExtentIo::read_direct(StoredValueRef value, device::DirectReader& reader,
                           std::span<std::byte> target, ReadEnd on_end) {
  std::vector<Completion> parts;
  try {
    HR_CHECK(!verify_reads_, "a direct read, which is not verified, where all reads are to be");
    std::byte* at = target.data();
    for (const Extent& extent : value->extents()) {
      parts.push_back(reader.read(allocator_.file_path(extent), extent.offset, at, extent.length));
      at += extent.length.count();
    }
  } catch (...) {
    parts.push_back(Completion::failed(std::current_exception()));
  }
  when_all(parts).on_done([this, value = std::move(value),
                           on_end = std::move(on_end)](const std::exception_ptr& error) mutable {
    // Not on a thread of the reader: letting go of the value may wait for the allocator.
    go_on(checker_, [value = std::move(value), on_end = std::move(on_end), error]() mutable {
      value.reset();  // before the end: the space may be needed by what the end starts
      on_end(error);
    });
  });
}

void ExtentIo::start_part(const std::shared_ptr<ReadJob>& job, size_t part, int attempt) {
  const Extent& extent = job->value->extents()[part];
  std::byte* const data = job->target.data() + job->offsets[part];
  const Completion arrived =
      submit({aio::IoOperation::read, job->io_class, allocator_.file_id(extent), extent.offset,
              data, extent.length});
  arrived.on_done([this, job, part, attempt](const std::exception_ptr& error) {
    go_on(checker_, [this, job, part, attempt, error] {
      if (error == nullptr && verify_reads_) {
        check_part(job, part, attempt);
      } else {
        end_part(*job, error);
      }
    });
  });
}

void ExtentIo::check_part(const std::shared_ptr<ReadJob>& job, size_t part, int attempt) {
  const Extent& extent = job->value->extents()[part];
  const uint64_t actual = checksum(slice(job->target, job->offsets[part], extent.length));
  if (actual == extent.checksum) {
    end_part(*job, nullptr);
  } else if (attempt < kReadAttempts) {
    log_warning("checksum of object '{}' does not match: {} at offset {}; reading it again",
                job->name, allocator_.file_path(extent), extent.offset);
    start_part(job, part, attempt + 1);
  } else {
    end_part(*job, mismatch(job->name, extent, actual));
  }
}

void ExtentIo::end_part(ReadJob& job, const std::exception_ptr& error) {
  {
    const std::lock_guard lock(job.mutex);
    if (error != nullptr && job.error == nullptr) {
      job.error = error;
    }
    if (--job.open > 0) {
      return;
    }
  }
  job.value.reset();  // before the end: the space may be needed by what the end starts
  job.on_end(job.error);
}

void ExtentIo::read_extent(const std::string& name, const Extent& extent,
                           std::span<std::byte> target) {
  uint64_t actual = 0;
  for (int attempt = 1; attempt <= kReadAttempts; ++attempt) {
    submit({aio::IoOperation::read, aio::IoClass::prefetch, allocator_.file_id(extent),
            extent.offset, target.data(), extent.length})
        .wait();
    actual = checksum(slice(target, 0, extent.length));
    if (actual == extent.checksum) {
      return;
    }
  }
  std::rethrow_exception(mismatch(name, extent, actual));
}

void ExtentIo::rewrite_extent(const std::string& name, const Extent& extent,
                              std::span<std::byte> bytes) {
  HR_CHECK(checksum(bytes) == extent.checksum, "other bytes for an extent of object '{}'", name);
  submit({aio::IoOperation::write, aio::IoClass::write_back, allocator_.file_id(extent),
          extent.offset, bytes.data(), extent.length})
      .wait();
  allocator_.mark_written({extent});
  allocator_.sync_written();
  read_extent(name, extent, bytes);
}

std::exception_ptr ExtentIo::mismatch(const std::string& name, const Extent& extent,
                                      uint64_t actual) const {
  IoError::Where where;
  where.path = allocator_.file_path(extent);
  where.offset = extent.offset;
  where.expected_bytes = extent.length.count();
  where.actual_bytes = extent.length.count();
  return std::make_exception_ptr(IoError(
      fmt::format("object '{}' is damaged on disk: checksum {:016x} expected, {:016x} read, {} "
                  "times",
                  name, extent.checksum, actual, kReadAttempts),
      where));
}

}  // namespace headrace::tiers
