#include "aio/simulated_disk.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace headrace::aio {

SimulatedDisk::SimulatedDisk(const SimulatedDiskOptions& options)
    : options_(options), random_(options.seed, 0) {}

void SimulatedDisk::inject(const SimulatedFault& fault) {
  const std::lock_guard lock(mutex_);
  faults_.push_back(fault);
}

void SimulatedDisk::hold() {
  const std::lock_guard lock(mutex_);
  held_ = true;
}

void SimulatedDisk::release() {
  const std::lock_guard lock(mutex_);
  held_ = false;
  changed_.notify_all();
}

void SimulatedDisk::remove() {
  const std::lock_guard lock(mutex_);
  removed_ = true;
}

bool SimulatedDisk::is_held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

void SimulatedDisk::crash() {
  const std::lock_guard lock(mutex_);
  for (auto& [path, file] : files_) {
    for (const auto& [index, old] : file->unsynced) {
      if (random_.below(2) == 0) {
        file->blocks[index] = old;
      }
    }
    file->unsynced.clear();
  }
}

std::vector<PartRequest> SimulatedDisk::history() const {
  const std::lock_guard lock(mutex_);
  return history_;
}

int SimulatedDisk::open(const std::string& path, bool create, bool direct) {
  const std::lock_guard lock(mutex_);
  if (removed_) {
    return -ENODEV;
  }
  if (direct && options_.refuse_direct) {
    return -EINVAL;
  }
  auto place = files_.find(path);
  if (place == files_.end()) {
    if (!create) {
      return -ENOENT;
    }
    place = files_.emplace(path, std::make_shared<File>()).first;
  }
  handles_[next_handle_] = Handle{.file = place->second, .direct = direct};
  return next_handle_++;
}

/// With the lock held.
SimulatedDisk::File* SimulatedDisk::find(int handle) {
  const auto place = handles_.find(handle);
  return place == handles_.end() ? nullptr : place->second.file.get();
}

/// Makes the file at least `size` long; with the lock held.
int SimulatedDisk::grow(File& file, int64_t size) {
  int64_t used = 0;
  for (const auto& [path, other] : files_) {
    used += other->size;
  }
  if (size > file.size && size - file.size > options_.capacity.count() - used) {
    return -ENOSPC;
  }
  file.size = std::max(file.size, size);
  return 0;
}

int SimulatedDisk::allocate(int handle, int64_t size) {
  if (options_.refuse_allocate) {
    return -EOPNOTSUPP;
  }
  return set_size(handle, size);
}

int SimulatedDisk::set_size(int handle, int64_t size) {
  const std::lock_guard lock(mutex_);
  if (removed_) {
    return -ENODEV;
  }
  File* file = find(handle);
  if (file == nullptr) {
    return -EBADF;
  }
  if (const int result = grow(*file, size); result < 0) {
    return result;
  }
  file->size = size;
  const auto first_gone = file->blocks.lower_bound((size + kBlock - 1) / kBlock);
  file->blocks.erase(first_gone, file->blocks.end());
  if (const auto last = file->blocks.find(size / kBlock); last != file->blocks.end()) {
    std::fill(last->second.begin() + size % kBlock, last->second.end(), std::byte{0});
  }
  return 0;
}

int SimulatedDisk::sync(int handle) {
  const std::lock_guard lock(mutex_);
  if (removed_) {
    return -ENODEV;
  }
  File* file = find(handle);
  if (file == nullptr) {
    return -EBADF;
  }
  file->unsynced.clear();
  return 0;
}

int SimulatedDisk::close(int handle) {
  const std::lock_guard lock(mutex_);
  return handles_.erase(handle) == 1 ? 0 : -EBADF;
}

bool SimulatedDisk::happens(double rate) {
  return rate > 0 && static_cast<double>(uniform_from(random_.next_u32())) < rate;
}

/// What goes wrong with this part: a fault on command, else one drawn by the rates.
SimulatedFault SimulatedDisk::draw_fault(const PartRequest& part) {
  SimulatedFault hit;
  bool is_hit = false;
  for (SimulatedFault& fault : faults_) {
    if (fault.operation != part.operation || fault.count == 0) {
      continue;
    }
    if (fault.skip > 0) {
      --fault.skip;
    } else if (!is_hit) {
      --fault.count;
      hit = fault;
      is_hit = true;
    }
  }
  if (is_hit) {
    return hit;
  }
  if (happens(options_.retry_rate)) {
    hit.error_number = EAGAIN;
  } else if (part.length > kBlock && happens(options_.short_rate)) {
    const auto blocks = static_cast<uint64_t>((part.length - 1) / kBlock);
    hit.transfer_bytes = static_cast<int64_t>(1 + random_.below(blocks)) * kBlock;
  }
  hit.corrupt = part.operation == IoOperation::read && happens(options_.corrupt_rate);
  return hit;
}

int32_t SimulatedDisk::transfer(const PartRequest& part) {
  const std::lock_guard lock(mutex_);
  history_.push_back(part);
  if (removed_) {
    return -ENODEV;
  }
  const auto handle = handles_.find(part.handle);
  if (handle == handles_.end()) {
    return -EBADF;
  }
  const auto address = static_cast<int64_t>(reinterpret_cast<intptr_t>(part.data));
  if (handle->second.direct && ((part.offset | part.length | address) & (kBlock - 1)) != 0) {
    return -EINVAL;
  }
  const SimulatedFault fault = draw_fault(part);
  if (fault.error_number != 0) {
    return -fault.error_number;
  }
  const int64_t length = fault.transfer_bytes < 0
                             ? int64_t{part.length}
                             : std::min(int64_t{part.length}, fault.transfer_bytes);
  File& file = *handle->second.file;
  const int64_t moved =
      part.operation == IoOperation::read ? read(file, part, length) : write(file, part, length);
  if (fault.corrupt && moved > 0) {
    const auto bit = static_cast<int64_t>(random_.below(static_cast<uint64_t>(moved) * 8));
    const std::byte mask{static_cast<unsigned char>(1U << (bit % 8))};
    const int64_t place = bit / 8;
    if (part.operation == IoOperation::read) {
      part.data[place] ^= mask;
    } else {
      const int64_t position = part.offset + place;
      file.blocks[position / kBlock][static_cast<size_t>(position % kBlock)] ^= mask;
    }
  }
  return static_cast<int32_t>(moved);
}

int64_t SimulatedDisk::read(const File& file, const PartRequest& part, int64_t length) const {
  const int64_t end = std::min(file.size, part.offset + length);
  for (int64_t at = part.offset; at < end;) {
    const int64_t within = at % kBlock;
    const int64_t step = std::min(kBlock - within, end - at);
    std::byte* const to = part.data + (at - part.offset);
    const auto block = file.blocks.find(at / kBlock);
    if (block == file.blocks.end()) {
      std::memset(to, 0, static_cast<size_t>(step));
    } else {
      std::memcpy(to, block->second.data() + within, static_cast<size_t>(step));
    }
    at += step;
  }
  return std::max(int64_t{0}, end - part.offset);
}

int64_t SimulatedDisk::write(File& file, const PartRequest& part, int64_t length) {
  int64_t end = part.offset + length;
  // A full disk takes what fits, then nothing, like a file system.
  while (grow(file, end) < 0) {
    end = std::max(part.offset, (end - 1) / kBlock * kBlock);
    if (end == part.offset) {
      return -ENOSPC;
    }
  }
  for (int64_t at = part.offset; at < end;) {
    const int64_t within = at % kBlock;
    const int64_t step = std::min(kBlock - within, end - at);
    Block& block = file.blocks[at / kBlock];
    file.unsynced.try_emplace(at / kBlock, block);
    std::memcpy(block.data() + within, part.data + (at - part.offset), static_cast<size_t>(step));
    at += step;
  }
  return end - part.offset;
}

std::chrono::microseconds SimulatedDisk::draw_delay() {
  return std::chrono::microseconds(
      options_.delay_us_max > 0 ? draw_below(static_cast<uint64_t>(options_.delay_us_max) + 1) : 0);
}

uint64_t SimulatedDisk::draw_below(uint64_t bound) {
  const std::lock_guard lock(mutex_);
  return random_.below(bound);
}

void SimulatedDisk::await(std::chrono::steady_clock::time_point due, bool& woken) {
  std::unique_lock lock(mutex_);
  while (!woken && (held_ || std::chrono::steady_clock::now() < due)) {
    if (held_ || due == std::chrono::steady_clock::time_point::max()) {
      changed_.wait(lock);
    } else {
      changed_.wait_until(lock, due);
    }
  }
  woken = false;
}

void SimulatedDisk::signal(bool& woken) {
  const std::lock_guard lock(mutex_);
  woken = true;
  changed_.notify_all();
}

}  // namespace headrace::aio
