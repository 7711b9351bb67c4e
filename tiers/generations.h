#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiers/catalog.h"
#include "tiers/extent_io.h"

namespace headrace::tiers {

/// A generation that the store holds.
struct GenerationInfo {
  uint64_t generation = 0;
  int64_t committed_unix_nanoseconds = 0;
  bool is_committed = false;  ///< the one that a run goes on from
  bool is_snapshot = false;
  bool is_automatic = false;  ///< a snapshot taken by save_interval
  Bytes size;
  Bytes own_size;  ///< that no other generation shares: what deleting it gives back
  std::map<std::string, std::string> run_state;
};

/// The generations of a catalog, by number: snapshots, and the committed one.
std::vector<GenerationInfo> describe_generations(const CatalogContents& contents);

/// A value that the catalog describes.
struct CommittedValue {
  StoredValueRef value;     ///< null: none
  uint64_t generation = 0;  ///< of the commit that wrote it
};
using CommittedValues = std::map<std::string, CommittedValue>;

/// A generation that stays until it is deleted.
struct Snapshot {
  CatalogSnapshot record;  ///< its objects are left empty: `values` has them
  CommittedValues values;
};

/// What a catalog describes, with the space of every value taken in the allocator.
struct LoadedGenerations {
  CommittedValues committed;
  std::map<uint64_t, Snapshot> snapshots;
};

/// Values that several generations share become one. InputError where extents are not in the data
/// files, or two values share space.
LoadedGenerations load_generations(const CatalogContents& contents, ExtentAllocator& allocator);

/// The form in which the catalog keeps a value.
CatalogObject catalog_object(const CommittedValue& value);

/// Bytes that only `values` hold, none of `others`.
Bytes own_bytes(const CommittedValues& values, const std::vector<const CommittedValues*>& others);
Bytes total_bytes(const CommittedValues& values);

/// One damaged extent.
struct Damage {
  std::string object;
  int64_t value_offset = 0;           ///< of the extent's first byte in the object's value
  Extent extent;                      ///< place, length, and the checksum that it should have
  std::vector<uint64_t> generations;  ///< those that have it
  std::string text;                   ///< what was found: file, offset, expected and actual
};

/// What came of one damaged extent.
struct Repair {
  bool is_repaired = false;
  std::string text;  ///< where its bytes were, or why it could not be repaired
};

/// Fills `out`, as long as the damaged extent, with what its bytes may have been; false where that
/// is not known. It may be wrong: what does not have the checksum is not used.
using Guess = std::function<bool(const Damage& damage, std::span<std::byte> out)>;

/// Values with the number of the generation that has them.
using GenerationList = std::vector<std::pair<uint64_t, const CommittedValues*>>;

/// Checks every extent of these values, several at a time; `progress` is told the bytes done and in
/// total. Only IoErrors about the bytes are damage; others are thrown.
std::vector<Damage> verify_values(const GenerationList& generations, ExtentIo& io,
                                  const std::function<void(Bytes done, Bytes total)>& progress);

}  // namespace headrace::tiers
