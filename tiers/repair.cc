#include "tiers/repair.h"

#include <fmt/format.h>

#include <map>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "tiers/checksum.h"
#include "tiers/host_memory.h"
#include "tiers/value_reader.h"

namespace headrace::tiers {

namespace {

using Place = std::tuple<uint32_t, uint32_t, int64_t>;

Place place_of(const Extent& extent) {
  return {extent.path, extent.file, extent.offset};
}

class Repairer {
 public:
  Repairer(const GenerationList& generations, ExtentIo& io, const Guess& guess)
      : generations_(generations), io_(io), guess_(guess), buffer_(kExtentMax, false) {
    for (const auto& [generation, values] : generations) {
      for (const auto& [name, committed] : *values) {
        for (const Extent& extent : committed.value->extents()) {
          same_bytes_[{extent.length, extent.checksum}].emplace(place_of(extent),
                                                                Source{name, extent});
        }
      }
    }
  }

  Repair repair(const Damage& damage) {
    const std::string source = find(damage);
    if (source.empty()) {
      return {false, "its bytes are nowhere else in the run"};
    }
    try {
      io_.rewrite_extent(damage.object, damage.extent, bytes(damage));
    } catch (const IoError& error) {
      return {false,
              fmt::format("its bytes are {}, but writing them failed: {}", source, error.what())};
    }
    return {true, source};
  }

 private:
  struct Source {
    std::string object;
    Extent extent;
  };

  std::span<std::byte> bytes(const Damage& damage) const {
    return buffer_.bytes().first(static_cast<size_t>(damage.extent.length.count()));
  }
  bool matches(const Damage& damage) const {
    return checksum(bytes(damage)) == damage.extent.checksum;
  }

  /// Leaves the extent's bytes in the buffer and says where they were; empty: nowhere.
  std::string find(const Damage& damage) {
    for (const auto& [place, source] :
         same_bytes_[{damage.extent.length, damage.extent.checksum}]) {
      if (place != place_of(damage.extent) && read(source)) {
        return fmt::format("those of object '{}' in data-{} of path {} at offset {}", source.object,
                           source.extent.file, source.extent.path, source.extent.offset);
      }
    }
    for (const auto& [generation, values] : generations_) {
      const auto found = values->find(damage.object);
      if (found != values->end() && read_range(found->second.value, damage) && matches(damage)) {
        return fmt::format("those of the object in generation {}", generation);
      }
    }
    return guess_ && guess_(damage, bytes(damage)) && matches(damage)
               ? "made anew from other values of the run"
               : "";
  }

  bool read(const Source& source) {
    try {
      io_.read_extent(source.object, source.extent, buffer_.bytes());
      return true;
    } catch (const IoError&) {
      return false;
    }
  }

  /// The damaged range of another value of the object, which may be cut in other extents.
  bool read_range(const StoredValueRef& value, const Damage& damage) {
    if (value->size() < Bytes(damage.value_offset) + damage.extent.length) {
      return false;
    }
    for (const Extent& extent : value->extents()) {
      if (place_of(extent) == place_of(damage.extent)) {
        return false;  // the damaged value itself
      }
    }
    try {
      ValueReader(io_, damage.object, value).read(damage.value_offset, bytes(damage));
      return true;
    } catch (const IoError&) {
      return false;
    }
  }

  const GenerationList& generations_;
  ExtentIo& io_;
  const Guess& guess_;
  HostMemory buffer_;
  std::map<std::pair<Bytes, uint64_t>, std::map<Place, Source>> same_bytes_;
};

}  // namespace

std::vector<Repair> repair_extents(const std::vector<Damage>& damage,
                                   const GenerationList& generations, ExtentIo& io,
                                   const Guess& guess) {
  Repairer repairer(generations, io, guess);
  std::vector<Repair> repairs;
  repairs.reserve(damage.size());
  for (const Damage& each : damage) {
    repairs.push_back(repairer.repair(each));
  }
  return repairs;
}

}  // namespace headrace::tiers
