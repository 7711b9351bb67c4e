#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tiers/extent_io.h"
#include "tiers/extent_store.h"
#include "tiers/generations.h"
#include "tiers/in_flight.h"
#include "tiers/store_files.h"

namespace headrace::tiers {

/// The ExtentStore. Values are in store.cc, generations in store_generations.cc.
class Store final : public ExtentStore {
 public:
  Store(const ExtentStoreOptions& options, StoreFiles files, std::shared_ptr<aio::IoEngine> io,
        bool is_new);
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() override;

  Completion write(const std::string& name, std::span<const std::byte> value, bool persistent,
                   aio::IoClass io_class) override;
  Completion read(const std::string& name, std::span<std::byte> value,
                  aio::IoClass io_class) override;
  Completion read_direct(const std::string& name, device::DirectReader& reader,
                         std::span<std::byte> target) override;
  bool contains(const std::string& name) const override;
  void discard(const std::string& name) override;
  void commit(uint64_t generation, const std::map<std::string, std::string>& run_state) override;
  uint64_t generation() const override;
  bool has_generation() const override;
  void mark() override;
  void roll_back() override;
  void set_in_place(bool in_place) override;
  bool is_torn() const override;
  std::vector<GenerationInfo> generations() const override;
  std::unique_ptr<ValueReader> open_value(std::optional<uint64_t> generation,
                                          const std::string& name) override;
  void take_snapshot(bool is_automatic, int64_t keep_last) override;
  void delete_snapshot(uint64_t generation) override;
  void restore(uint64_t generation) override;
  std::vector<Damage> verify(const Progress& progress) override;
  std::vector<Repair> repair(const std::vector<Damage>& damage, const Guess& guess) override;
  void prepare_for_writing() override { files_.allocator->back_with_blocks(); }
  void remove_on_close() override;
  Bytes bytes_on_disk() const override { return files_.allocator->bytes_on_disk(); }
  std::vector<std::string> directories() const override { return files_.paths(); }

 private:
  struct Entry {
    StoredValueRef latest;     ///< what read() gives; null: discarded or not yet written
    CommittedValue committed;  ///< what the catalog describes
    StoredValueRef marked;     ///< what roll_back() returns to
    bool writing = false;
    bool overwritten = false;  ///< the committed value, since the last commit
  };
  /// What a commit is about to make durable, taken from the tables at one moment.
  struct PendingCommit {
    CatalogChange change;
    CommittedValues values;  ///< of each changed name; null: it is no more
  };

  /// The values of all generations that should be whole, kept alive.
  struct HeldGenerations {
    CommittedValues committed;
    std::map<uint64_t, Snapshot> snapshots;
    GenerationList list;  ///< refers to these
  };

  void load();
  void hold_generations(HeldGenerations& held) const;
  void check_buffer(const std::string& name, std::span<const std::byte> value) const;
  StoredValueRef value_to_read(const std::string& name, std::span<const std::byte> target) const;
  StoredValueRef value_to_overwrite(const Entry& entry, Bytes size, bool persistent) const;
  void mark_updating();
  void end_write(const std::string& name, StoredValueRef value, const std::exception_ptr& error);
  PendingCommit take_changes(uint64_t generation,
                             const std::map<std::string, std::string>& run_state);
  void publish(PendingCommit& pending);
  /// Runs a change of the catalog. If it fails, nobody knows which state is on disk.
  void change_catalog(const std::function<void()>& change);
  void erase_if_unused(const std::string& name);
  static bool is_unused(const Entry& entry);
  const Snapshot& snapshot(uint64_t generation) const;
  CommittedValues committed_values() const;
  void check_room(Bytes freed) const;
  void warn_of_last_room(Bytes freed);

  // Each of these uses those above it: they go down in reverse order.
  std::shared_ptr<aio::IoEngine> io_;
  StoreFiles files_;
  std::mutex commit_mutex_;  ///< one change of the catalog at a time; taken before mutex_
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_;
  std::map<uint64_t, Snapshot> snapshots_;
  uint64_t generation_ = 0;
  bool has_generation_ = false;
  int64_t committed_at_ = 0;
  std::map<std::string, std::string> run_state_;  ///< of the committed generation
  bool in_place_ = false;
  bool is_marked_ = false;  ///< the catalog says that values are being overwritten
  bool is_torn_ = false;
  bool keep_;
  bool has_warned_of_room_ = false;
  bool is_changed_ = false;    ///< by this process
  bool is_uncertain_ = false;  ///< a change of the catalog failed
  InFlight in_flight_;
  std::unique_ptr<ExtentIo> extent_io_;
};

}  // namespace headrace::tiers
