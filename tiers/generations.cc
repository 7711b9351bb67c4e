#include "tiers/generations.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "base/error.h"
#include "tiers/host_memory.h"

namespace headrace::tiers {

namespace {

/// Extents read at a time by verify_values(): one is checked while others arrive.
constexpr int kVerifyThreads = 8;

/// Makes one StoredValue of every value that the catalog has, however often.
class Loader {
 public:
  explicit Loader(ExtentAllocator& allocator) : allocator_(allocator) {}

  CommittedValues load(const std::map<std::string, CatalogObject>& objects) {
    CommittedValues values;
    for (const auto& [name, object] : objects) {
      values[name] = {value_of(name, object), object.generation};
    }
    return values;
  }

 private:
  StoredValueRef value_of(const std::string& name, const CatalogObject& object) {
    StoredValueRef& known = known_[place_of(object)];
    if (known != nullptr && known->extents() == object.extents) {
      return known;
    }
    allocator_.claim(name, object.extents);
    known = std::make_shared<StoredValue>(allocator_, object.extents, object.size, true);
    return known;
  }

  using Place = std::tuple<uint32_t, uint32_t, int64_t>;
  static Place place_of(const CatalogObject& object) {
    const Extent first = object.extents.empty() ? Extent{} : object.extents.front();
    return {first.path, first.file, first.offset};
  }

  ExtentAllocator& allocator_;
  std::map<Place, StoredValueRef> known_;
};

using Places = std::set<std::tuple<uint32_t, uint32_t, int64_t>>;
using Objects = std::map<std::string, CatalogObject>;

template <class Visit>
void for_extents(const Objects& objects, const Visit& visit) {
  for (const auto& [name, object] : objects) {
    for (const Extent& extent : object.extents) {
      visit(std::tuple(extent.path, extent.file, extent.offset),
            align_up(extent.length, kExtentAlignment));
    }
  }
}

GenerationInfo sizes_of(const Objects& objects, const std::vector<const Objects*>& others) {
  Places shared;
  for (const Objects* other : others) {
    for_extents(*other, [&](const auto& place, Bytes) { shared.insert(place); });
  }
  GenerationInfo info;
  for_extents(objects, [&](const auto& place, Bytes size) {
    info.size += size;
    info.own_size += shared.contains(place) ? Bytes(0) : size;
  });
  return info;
}

/// An extent to verify.
struct Task {
  std::string object;
  StoredValueRef value;
  size_t extent = 0;
  int64_t value_offset = 0;
  std::vector<uint64_t> generations;
};

std::vector<Task> tasks_of(const GenerationList& generations) {
  std::map<StoredValueRef, std::pair<std::string, std::vector<uint64_t>>> values;
  for (const auto& [generation, named] : generations) {
    for (const auto& [name, committed] : *named) {
      auto& entry = values[committed.value];
      entry.first = name;
      if (entry.second.empty() || entry.second.back() != generation) {
        entry.second.push_back(generation);
      }
    }
  }
  std::vector<Task> tasks;
  for (const auto& [value, entry] : values) {
    int64_t offset = 0;
    for (size_t i = 0; i < value->extents().size(); ++i) {
      tasks.push_back({entry.first, value, i, offset, entry.second});
      offset += value->extents()[i].length.count();
    }
  }
  // In the order of the files, which is the fastest to read.
  std::sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
    const auto place = [](const Task& task) {
      const Extent& extent = task.value->extents()[task.extent];
      return std::tuple(extent.file, extent.offset, extent.path);
    };
    return place(a) < place(b);
  });
  return tasks;
}

}  // namespace

LoadedGenerations load_generations(const CatalogContents& contents, ExtentAllocator& allocator) {
  Loader loader(allocator);
  LoadedGenerations loaded;
  loaded.committed = loader.load(contents.objects);
  for (const auto& [generation, record] : contents.snapshots) {
    Snapshot& snapshot = loaded.snapshots[generation];
    snapshot.values = loader.load(record.objects);
    snapshot.record = record;
    snapshot.record.objects.clear();
  }
  return loaded;
}

std::vector<GenerationInfo> describe_generations(const CatalogContents& contents) {
  std::vector<GenerationInfo> infos;
  bool committed_is_snapshot = false;
  for (const auto& [generation, snapshot] : contents.snapshots) {
    std::vector<const Objects*> others{&contents.objects};
    for (const auto& [other, kept] : contents.snapshots) {
      if (other != generation) {
        others.push_back(&kept.objects);
      }
    }
    GenerationInfo& info = infos.emplace_back(sizes_of(snapshot.objects, others));
    info.generation = generation;
    info.committed_unix_nanoseconds = snapshot.committed_unix_nanoseconds;
    // A run that went back to an earlier snapshot may commit other values under the same number.
    info.is_committed = generation == contents.generation &&
                        sizes_of(snapshot.objects, {&contents.objects}).own_size == Bytes(0);
    info.is_snapshot = true;
    info.is_automatic = snapshot.automatic;
    info.run_state = snapshot.run_state;
    committed_is_snapshot = committed_is_snapshot || info.is_committed;
  }
  if (contents.has_generation && !committed_is_snapshot) {
    std::vector<const Objects*> others;
    for (const auto& [other, kept] : contents.snapshots) {
      others.push_back(&kept.objects);
    }
    GenerationInfo& info = infos.emplace_back(sizes_of(contents.objects, others));
    info.generation = contents.generation;
    info.committed_unix_nanoseconds = contents.committed_unix_nanoseconds;
    info.is_committed = true;
    info.run_state = contents.run_state;
  }
  return infos;
}

CatalogObject catalog_object(const CommittedValue& value) {
  return {value.value->size(), value.generation, value.value->extents()};
}

Bytes total_bytes(const CommittedValues& values) {
  return own_bytes(values, {});
}

Bytes own_bytes(const CommittedValues& values, const std::vector<const CommittedValues*>& others) {
  std::set<StoredValueRef> shared;
  for (const CommittedValues* other : others) {
    for (const auto& [name, committed] : *other) {
      shared.insert(committed.value);
    }
  }
  Bytes sum;
  for (const auto& [name, committed] : values) {
    if (!shared.contains(committed.value)) {
      for (const Extent& extent : committed.value->extents()) {
        sum += align_up(extent.length, kExtentAlignment);
      }
    }
  }
  return sum;
}

std::vector<Damage> verify_values(const GenerationList& generations, ExtentIo& io,
                                  const std::function<void(Bytes done, Bytes total)>& progress) {
  const std::vector<Task> tasks = tasks_of(generations);
  Bytes total;
  for (const Task& task : tasks) {
    total += task.value->extents()[task.extent].length;
  }
  std::mutex mutex;
  Bytes done;
  std::vector<Damage> damage;
  std::exception_ptr failure;
  std::atomic<size_t> next{0};
  const auto work = [&] {
    const HostMemory buffer(kExtentMax, false);
    for (size_t i = next++; i < tasks.size(); i = next++) {
      const Task& task = tasks[i];
      const Extent& extent = task.value->extents()[task.extent];
      std::string problem;
      try {
        io.read_extent(task.object, extent, buffer.bytes());
      } catch (const IoError& error) {
        problem = error.what();
      }
      const std::lock_guard lock(mutex);
      if (!problem.empty()) {
        damage.push_back({task.object, task.value_offset, extent, task.generations, problem});
      }
      done += extent.length;
      progress(done, total);
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(kVerifyThreads);
    for (int i = 0; i < kVerifyThreads; ++i) {
      threads.emplace_back([&] {
        try {
          work();
        } catch (...) {
          const std::lock_guard lock(mutex);
          failure = std::current_exception();
        }
      });
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  return damage;
}

}  // namespace headrace::tiers
