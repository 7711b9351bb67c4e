#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "scheduler/check_order.h"
#include "scheduler/costs.h"

namespace headrace::scheduler {

namespace {

constexpr int64_t kNoValue = -1;       ///< a placed slot before its first write
constexpr size_t kMaxViolations = 64;  ///< enough to see the pattern

/// A copy as the replay sees it. Versions count the writes of the object in trace order.
struct SeenCopy {
  bool present = false;
  int64_t version = kNoValue;
  int64_t offset = 0;
};

/// Plays the actions in list order against the trace, and shows every access to ConflictOrder.
class Replay {
 public:
  Replay(const CompileInput& input, const Schedule& schedule)
      : input_(input),
        schedule_(schedule),
        trace_(*input.trace),
        objects_(*input.objects),
        order_(schedule.actions, objects_.size()),
        copies_(objects_.size()),
        newest_(objects_.size()),
        pending_(objects_.size()),
        ran_(trace_.operations.size()) {}

  std::vector<std::string> run() {
    number_versions();
    load(schedule_.initial);
    compare_initial();
    for (uint32_t i = 0; i < schedule_.actions.size(); ++i) {
      if (report_.size() >= kMaxViolations) {
        return std::move(report_);
      }
      play(i);
    }
    check_end();
    check_totals();
    return std::move(report_);
  }

 private:
  template <class... Args>
  void violation(fmt::format_string<Args...> format, Args&&... args) {
    report_.push_back(fmt::format("action {}: ", current_) +
                      fmt::format(format, std::forward<Args>(args)...));
  }

  SeenCopy& at(ObjectId object, Tier tier) {
    return copies_[index_of(object)][static_cast<size_t>(tier)];
  }
  const std::string& name(ObjectId object) const { return objects_[index_of(object)].name; }
  bool is_home(ObjectId object, Tier tier) const { return objects_[index_of(object)].home == tier; }
  int64_t budget(Tier tier) const {
    return (tier == Tier::device ? input_.budgets.device : input_.budgets.host).count();
  }
  int64_t rounded(ObjectId object) const {
    const int64_t unit = input_.budgets.alignment.count();
    return (objects_[index_of(object)].size.count() + unit - 1) / unit * unit;
  }

  /// Which version each operation must find, and how many operations still need each version.
  void number_versions() {
    for (size_t o = 0; o < objects_.size(); ++o) {
      pending_[o].resize(1);
    }
    const bool may_diverge = input_.foresight != Foresight::whole_step;
    std::vector<bool> discarded(objects_.size());
    expected_.resize(trace_.operations.size());
    for (size_t i = 0; i < trace_.operations.size(); ++i) {
      for (const Use& use : trace_.operations[i].uses) {
        auto& readers = pending_[index_of(use.object)];
        expected_[i].push_back(static_cast<int64_t>(readers.size()) - 1);
        if (use.access != Access::write) {
          ++readers.back();
        }
        if (use.access != Access::read) {
          readers.push_back(0);
        }
        discarded[index_of(use.object)] = use.discard_after;
      }
    }
    for (size_t o = 0; o < objects_.size(); ++o) {
      must_persist_.push_back(objects_[o].home.has_value() && !discarded[o] &&
                              input_.foresight != Foresight::expected_part);
      if (may_diverge) {
        // Any operation may turn out to be one that reads what there is.
        for (int64_t& readers : pending_[o]) {
          ++readers;
        }
      } else if (must_persist_[o]) {
        ++pending_[o].back();  // the end of the trace is one more reader
      }
    }
  }

  void load(const std::vector<Residency>& initial) {
    for (uint32_t o = 0; o < objects_.size(); ++o) {
      if (objects_[o].home == Tier::nvme) {
        at(ObjectId{o}, Tier::nvme) = {true, 0, 0};
      }
    }
    for (const Residency& residency : initial) {
      at(residency.object, residency.tier) = {true, 0, residency.offset};
      if (residency.tier == Tier::nvme) {
        continue;
      }
      take_bytes(residency.object, residency.tier, residency.offset);
    }
    for (const Residency& residency : initial) {
      const auto& home = objects_[index_of(residency.object)].home;
      if (residency.dirty && home) {
        at(residency.object, *home).version = kNoValue;
      }
    }
  }

  void compare_initial() {
    const auto key = [](const Residency& r) { return std::tuple(r.tier, r.object, r.offset); };
    const auto sorted = [&](std::vector<Residency> list) {
      std::sort(list.begin(), list.end(),
                [&](const Residency& a, const Residency& b) { return key(a) < key(b); });
      return list;
    };
    const auto given = sorted(input_.initial);
    const auto assumed = sorted(schedule_.initial);
    if (!std::equal(given.begin(), given.end(), assumed.begin(), assumed.end(),
                    [&](const Residency& a, const Residency& b) {
                      return key(a) == key(b) && a.dirty == b.dirty;
                    })) {
      report_.emplace_back("the schedule assumes another initial residency than the input has");
    }
  }

  void take_bytes(ObjectId object, Tier tier, int64_t offset) {
    const int64_t end = offset + rounded(object);
    if (offset < 0 || offset % input_.budgets.alignment.count() != 0 || end > budget(tier)) {
      violation("slot [{}, {}) of '{}' is not an aligned part of the {} budget {}", offset, end,
                name(object), to_string(tier), budget(tier));
    }
    auto& arena = arenas_[static_cast<size_t>(tier)];
    const auto next = arena.lower_bound(offset);
    if (next != arena.end() && next->first < end) {
      violation("slot of '{}' in {} overlaps that of '{}'", name(object), to_string(tier),
                name(next->second));
    }
    if (next != arena.begin()) {
      const auto& [before, neighbour] = *std::prev(next);
      if (before + rounded(neighbour) > offset) {
        violation("slot of '{}' in {} overlaps that of '{}'", name(object), to_string(tier),
                  name(neighbour));
      }
    }
    arena[offset] = object;
    high_water_[static_cast<size_t>(tier)] = std::max(high_water_[static_cast<size_t>(tier)], end);
  }

  /// The version must survive in a tier other than `tier` if anyone still needs it.
  void check_not_lost(ObjectId object, Tier tier, int64_t version) {
    if (version == kNoValue || pending_[index_of(object)][static_cast<size_t>(version)] <= 0) {
      return;
    }
    for (const Tier other : {Tier::device, Tier::host, Tier::nvme}) {
      const SeenCopy& copy = at(object, other);
      if (other != tier && copy.present && copy.version == version) {
        return;
      }
    }
    violation("the only copy of a value of '{}', in {}, is lost while it is needed", name(object),
              to_string(tier));
  }

  void play(uint32_t index) {
    current_ = index;
    const Action& action = schedule_.actions[index];
    order_.begin(index, report_);
    for (size_t i = 0; i < action.after.size(); ++i) {
      if (action.after[i] >= index || (i > 0 && action.after[i] <= action.after[i - 1])) {
        violation("its dependencies are not ascending earlier actions");
        return;
      }
    }
    if (action.kind == ActionKind::operation) {
      play_operation(action.operation);
      return;
    }
    if (index_of(action.object) >= objects_.size()) {
      violation("object {} is unknown", index_of(action.object));
      return;
    }
    switch (action.kind) {
      case ActionKind::transfer:
        play_transfer(action);
        break;
      case ActionKind::drop:
        play_drop(action);
        break;
      default:
        play_place(action);
        break;
    }
  }

  void play_transfer(const Action& action) {
    const int distance = static_cast<int>(action.to) - static_cast<int>(action.from);
    const bool direct = is_direct(action.from, action.to);
    if (direct && input_.rates.direct_share <= 0) {
      violation("a direct read of '{}', where there are none", name(action.object));
    } else if (!direct && distance != 1 && distance != -1) {
      violation("transfer between tiers that do not touch");
    }
    if (action.to > objects_[index_of(action.object)].floor) {
      violation("'{}' is moved below its floor, to {}", name(action.object), to_string(action.to));
    }
    const SeenCopy source = at(action.object, action.from);
    SeenCopy& target = at(action.object, action.to);
    if (!source.present || source.version == kNoValue ||
        source.version != newest_[index_of(action.object)]) {
      violation("transfer of '{}' from {}, where its current value is not", name(action.object),
                to_string(action.from));
    }
    order_.read_copy(action.object, action.from);
    order_.write_copy(action.object, action.to);
    if (target.present) {
      check_not_lost(action.object, action.to, target.version);
      if (action.to != Tier::nvme && target.offset != action.offset) {
        violation("a second slot for '{}' in {}", name(action.object), to_string(action.to));
      }
    } else if (action.to != Tier::nvme) {
      take_bytes(action.object, action.to, action.offset);
      order_.fill_bytes(action.to, action.offset, action.offset + rounded(action.object));
    }
    target = {true, source.version, action.offset};
    int64_t& moved = moved_[static_cast<size_t>(action.from)][static_cast<size_t>(action.to)];
    moved += objects_[index_of(action.object)].size.count();
  }

  void play_drop(const Action& action) {
    SeenCopy& copy = at(action.object, action.from);
    if (!copy.present) {
      violation("drop of '{}' from {}, where it is not", name(action.object),
                to_string(action.from));
      return;
    }
    if (is_home(action.object, action.from)) {
      violation("the home copy of '{}' is dropped", name(action.object));
    }
    check_not_lost(action.object, action.from, copy.version);
    order_.write_copy(action.object, action.from);
    if (action.from != Tier::nvme) {
      arenas_[static_cast<size_t>(action.from)].erase(copy.offset);
      order_.free_bytes(action.from, copy.offset, copy.offset + rounded(action.object));
    }
    copy = {};
  }

  void play_place(const Action& action) {
    SeenCopy& copy = at(action.object, action.to);
    if (copy.present || action.to == Tier::nvme) {
      violation("place of '{}' in {}, where it already is", name(action.object),
                to_string(action.to));
      return;
    }
    if (action.to > objects_[index_of(action.object)].floor) {
      violation("'{}' is placed below its floor", name(action.object));
    }
    take_bytes(action.object, action.to, action.offset);
    order_.write_copy(action.object, action.to);
    order_.fill_bytes(action.to, action.offset, action.offset + rounded(action.object));
    copy = {true, kNoValue, action.offset};
  }

  void play_operation(uint32_t index) {
    if (index >= trace_.operations.size() || ran_[index]) {
      violation("operation {} is unknown or runs a second time", index);
      return;
    }
    ran_[index] = true;
    const Operation& operation = trace_.operations[index];
    for (size_t u = 0; u < operation.uses.size(); ++u) {
      const Use& use = operation.uses[u];
      SeenCopy& copy = at(use.object, use.tier);
      const int64_t expected = expected_[index][u];
      if (!copy.present) {
        violation("operation '{}' finds no '{}' in {}", operation.name, name(use.object),
                  to_string(use.tier));
        continue;
      }
      if (use.access != Access::write) {
        if (copy.version != expected) {
          violation("operation '{}' finds version {} of '{}' instead of {}", operation.name,
                    copy.version, name(use.object), expected);
        }
        --pending_[index_of(use.object)][static_cast<size_t>(expected)];
      }
      if (use.access == Access::read) {
        order_.read_copy(use.object, use.tier);
        end_value(use.object, expected, use.discard_after);
        continue;
      }
      order_.write_copy(use.object, use.tier);
      order_.change_value(use.object);
      end_value(use.object, expected, true);
      const int64_t overwritten = copy.version;
      copy.version = newest_[index_of(use.object)] = expected + 1;
      check_not_lost(use.object, use.tier, overwritten);
      end_value(use.object, expected + 1, use.discard_after);
    }
  }

  /// From here on no operation can ask for the value, whichever comes.
  void end_value(ObjectId object, int64_t version, bool has_ended) {
    if (has_ended && input_.foresight != Foresight::whole_step) {
      --pending_[index_of(object)][static_cast<size_t>(version)];
    }
  }

  void check_end() {
    for (size_t i = 0; i < ran_.size(); ++i) {
      if (!ran_[i]) {
        report_.push_back(fmt::format("operation '{}' never runs", trace_.operations[i].name));
      }
    }
    std::vector<std::array<bool, kTierCount>> listed(objects_.size());
    for (const Residency& residency : schedule_.final) {
      const SeenCopy& copy = at(residency.object, residency.tier);
      listed[index_of(residency.object)][static_cast<size_t>(residency.tier)] = true;
      if (!copy.present || copy.offset != residency.offset ||
          residency.dirty != is_dirty(residency.object, residency.tier)) {
        report_.push_back(
            fmt::format("final residency of '{}' in {} at {} is not what the actions "
                        "leave there",
                        name(residency.object), to_string(residency.tier), residency.offset));
      }
    }
    for (uint32_t o = 0; o < objects_.size(); ++o) {
      check_end_of(ObjectId{o}, listed[o]);
    }
  }

  bool is_dirty(ObjectId object, Tier tier) {
    const auto& home = objects_[index_of(object)].home;
    return !home || (home != tier && at(object, *home).version != newest_[index_of(object)]);
  }

  void check_end_of(ObjectId object, const std::array<bool, kTierCount>& listed) {
    const auto& home = objects_[index_of(object)].home;
    for (const Tier tier : {Tier::device, Tier::host, Tier::nvme}) {
      const SeenCopy& copy = at(object, tier);
      const auto say = [&](std::string_view what) {
        report_.push_back(
            fmt::format("at the end, '{}' in {}: {}", name(object), to_string(tier), what));
      };
      const bool current = copy.present && copy.version == newest_[index_of(object)];
      if (home == tier && must_persist_[index_of(object)] && !current) {
        say("the home copy is not current");
      }
      const bool may_stay = home || input_.foresight != Foresight::whole_step;
      if (copy.present && !may_stay) {
        say("an object without home outlives the trace");
      }
      if (copy.present && may_stay && home != tier && !current) {
        say("a stale copy remains");
      }
      if (copy.present && (tier != Tier::nvme || !home) && !listed[static_cast<size_t>(tier)]) {
        say("it is resident but not in the final residency");
      }
    }
  }

  void check_totals() {
    const auto compare = [&](std::string_view what, Bytes stated, int64_t counted) {
      if (stated.count() != counted) {
        report_.push_back(fmt::format("{}: {} stated, {} counted", what, stated, counted));
      }
    };
    compare("peak_device", schedule_.peak_device, high_water_[0]);
    compare("peak_host", schedule_.peak_host, high_water_[1]);
    compare("nvme_read", schedule_.nvme_read, moved_[2][1] + moved_[2][0]);
    compare("nvme_write", schedule_.nvme_write, moved_[1][2]);
    compare("host_to_device", schedule_.host_to_device, moved_[1][0] + moved_[2][0]);
    compare("device_to_host", schedule_.device_to_host, moved_[0][1]);
    compare("direct", schedule_.direct, moved_[2][0]);
  }

  const CompileInput& input_;
  const Schedule& schedule_;
  const Trace& trace_;
  const std::vector<ObjectFacts>& objects_;
  ConflictOrder order_;
  std::vector<std::array<SeenCopy, kTierCount>> copies_;
  std::vector<int64_t> newest_;                 ///< by object: its version now
  std::vector<std::vector<int64_t>> pending_;   ///< by object and version: reads still to come
  std::vector<std::vector<int64_t>> expected_;  ///< by operation and use: version before it
  std::vector<bool> must_persist_;
  std::vector<bool> ran_;
  std::array<std::map<int64_t, ObjectId>, 2> arenas_;  ///< by first byte
  std::array<int64_t, 2> high_water_{};
  std::array<std::array<int64_t, kTierCount>, kTierCount> moved_{};
  uint32_t current_ = 0;
  std::vector<std::string> report_;
};

}  // namespace

std::vector<std::string> check_schedule(const CompileInput& input, const Schedule& schedule) {
  return Replay(input, schedule).run();
}

}  // namespace headrace::scheduler
