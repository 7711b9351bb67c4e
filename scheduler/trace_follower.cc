#include "scheduler/trace_follower.h"

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace headrace::scheduler {

namespace {

/// Steps that the guess of the next trace looks back on.
constexpr size_t kLongestHistory = 64;
/// Steps in a row that it looks for in them.
constexpr size_t kLongestContext = 4;

uint64_t hash_of(const Operation& operation) {
  uint64_t hash = std::hash<std::string>()(operation.name);
  const auto add = [&](uint64_t value) { hash = (hash ^ value) * 0x9E3779B97F4A7C15ULL; };
  for (const Use& use : operation.uses) {
    add(index_of(use.object));
    add((static_cast<uint64_t>(use.tier) << 8) | (static_cast<uint64_t>(use.access) << 1) |
        (use.discard_after ? 1 : 0));
  }
  return hash;
}

}  // namespace

bool is_same_operation(const Operation& a, const Operation& b) {
  return a.name == b.name && a.lane == b.lane && a.uses == b.uses && a.in_order == b.in_order &&
         a.starts_pass == b.starts_pass;
}

void TraceFollower::Sequence::add(const Operation& operation) {
  trace.operations.push_back(operation);
  hashes.push_back(hash_of(operation));
}

bool TraceFollower::Sequence::has(size_t position, const Sequence& other, size_t at) const {
  return hashes[position] == other.hashes[at] &&
         is_same_operation(trace.operations[position], other.trace.operations[at]);
}

bool TraceFollower::Sequence::begins_with(const Sequence& other) const {
  if (other.size() > size()) {
    return false;
  }
  for (size_t i = other.size(); i-- > 0;) {  // differences are more likely late
    if (!has(i, other, i)) {
      return false;
    }
  }
  return true;
}

TraceFollower::TraceFollower(size_t most_traces) : most_traces_(std::max<size_t>(1, most_traces)) {}

const TraceFollower::Known* TraceFollower::find(uint64_t id) const {
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&](const Known& known) { return known.id == id; });
  return found == known_.end() ? nullptr : &*found;
}

const Trace& TraceFollower::trace(uint64_t id) const {
  const Known* const known = find(id);
  HR_CHECK(known != nullptr, "trace {} is not remembered", id);
  return known->sequence.trace;
}

/// What came only once before what came again, then the one that came longer ago.
bool TraceFollower::is_less_usual(const Known& a, const Known& b) {
  return std::pair(a.times > 1, a.last_step) < std::pair(b.times > 1, b.last_step);
}

/// What came most often after the longest sequence of steps that has come before; a step that came
/// only once says nothing. Else the last one that came more than once.
std::optional<uint64_t> TraceFollower::guess() const {
  for (size_t length = std::min(kLongestContext, history_.size()); length > 0; --length) {
    const auto context = history_.end() - static_cast<ptrdiff_t>(length);
    std::map<uint64_t, std::pair<int64_t, size_t>> followers;  // times, last
    for (size_t i = length; i < history_.size(); ++i) {
      const Known* const known = find(history_[i]);
      if (known != nullptr && known->times > 1 &&
          std::equal(context, history_.end(),
                     history_.begin() + static_cast<ptrdiff_t>(i - length))) {
        auto& follower = followers[history_[i]];
        ++follower.first;
        follower.second = i;
      }
    }
    if (!followers.empty()) {
      return std::max_element(followers.begin(), followers.end(),
                              [](const auto& a, const auto& b) { return a.second < b.second; })
          ->first;
    }
  }
  const auto last = std::max_element(known_.begin(), known_.end(), is_less_usual);
  return last == known_.end() ? std::nullopt : std::optional(last->id);
}

std::optional<TracePlace> TraceFollower::begin() {
  ++step_;
  ran_ = {};
  expected_.reset();
  left_.reset();
  since_left_ = 0;
  gave_up_ = false;
  if (const auto trace = guess()) {
    expected_ = TracePlace{*trace, 0};
  }
  return expected_;
}

FollowStep TraceFollower::announce(const Operation& operation) {
  ran_.add(operation);
  FollowStep step;
  if (gave_up_) {
    return step;
  }
  if (expected_) {
    const Known& known = *find(expected_->trace);
    if (expected_->position < known.sequence.size() &&
        known.sequence.has(expected_->position, ran_, ran_.size() - 1)) {
      step.event = FollowEvent::follows;
      step.place = std::exchange(expected_, TracePlace{known.id, expected_->position + 1});
      return step;
    }
    step.instead_of = left_ = expected_;
    since_left_ = 0;
    expected_.reset();
    if ((step.place = switch_trace())) {
      step.event = FollowEvent::switched;
    }
  }
  ++since_left_;
  if (!step.place && (step.place = rejoin())) {
    step.event = FollowEvent::rejoined;
  }
  if (step.place) {
    expected_ = TracePlace{step.place->trace, step.place->position + 1};
  }
  return step;
}

/// The trace used last among those that begin with all of the step so far.
std::optional<TracePlace> TraceFollower::switch_trace() {
  const Known* best = nullptr;
  for (const Known& known : known_) {
    if (known.sequence.begins_with(ran_) &&
        (best == nullptr || known.last_step > best->last_step)) {
      best = &known;
    }
  }
  return best == nullptr ? std::nullopt : std::optional(TracePlace{best->id, ran_.size() - 1});
}

TraceFollower::Candidate TraceFollower::candidate(const Known& known, size_t position) const {
  Candidate result;
  result.place = {known.id, position};
  result.last_step = known.last_step;
  const size_t longest = std::min({ran_.size(), position + 1, kLongestMatch});
  while (result.match < longest &&
         known.sequence.has(position - result.match, ran_, ran_.size() - 1 - result.match)) {
    ++result.match;
  }
  if (left_ && left_->trace == known.id) {
    result.is_same_trace = true;
    result.distance =
        position >= left_->position ? position - left_->position : left_->position - position;
    result.is_near = position >= left_->position && result.distance < since_left_ + kNear;
  }
  return result;
}

bool TraceFollower::is_better(const Candidate& a, const Candidate& b) {
  if (a.is_near != b.is_near) {
    return a.is_near;
  }
  if (a.is_near && a.distance != b.distance) {
    return a.distance < b.distance;
  }
  const auto rank = [](const Candidate& c) {
    return std::tuple(c.match, c.is_same_trace, -static_cast<int64_t>(c.distance), c.last_step,
                      c.place.position);
  };
  return rank(a) > rank(b);
}

std::optional<TracePlace> TraceFollower::rejoin() const {
  std::optional<Candidate> best;
  for (const Known& known : known_) {
    for (size_t position = 0; position < known.sequence.size(); ++position) {
      if (!known.sequence.has(position, ran_, ran_.size() - 1)) {
        continue;
      }
      const Candidate found = candidate(known, position);
      if ((found.is_near || found.match >= kEnough) && (!best || is_better(found, *best))) {
        best = found;
      }
    }
  }
  return best ? std::optional(best->place) : std::nullopt;
}

void TraceFollower::give_up() {
  gave_up_ = true;
  if (expected_) {
    left_ = std::exchange(expected_, std::nullopt);
  }
}

TraceFollower::Known* TraceFollower::same_as_step() {
  for (Known& known : known_) {
    if (known.sequence.size() == ran_.size() && known.sequence.begins_with(ran_)) {
      return &known;
    }
  }
  return nullptr;
}

/// Forgets what came only once before what came again, the oldest first.
std::optional<uint64_t> TraceFollower::make_room() {
  if (known_.size() < most_traces_) {
    return std::nullopt;
  }
  const auto oldest = std::min_element(known_.begin(), known_.end(), is_less_usual);
  const uint64_t id = oldest->id;
  known_.erase(oldest);
  return id;
}

FollowEnd TraceFollower::end(const std::vector<double>& seconds) {
  HR_CHECK(gave_up_ || seconds.size() == ran_.size(), "{} durations of {} operations",
           seconds.size(), ran_.size());
  FollowEnd end;
  if (expected_ && expected_->position < trace(expected_->trace).operations.size()) {
    end.ended_before = expected_;
  }
  expected_.reset();
  if (gave_up_ || ran_.size() == 0) {
    return end;
  }
  Known* known = same_as_step();
  if (known == nullptr) {
    end.is_new = true;
    end.forgotten = make_room();
    known = &known_.emplace_back();
    known->id = next_id_++;
    known->sequence = std::move(ran_);
    known->sequence.trace.name = fmt::format("step {}", step_);
  }
  if (++known->times <= 2) {
    end.has_new_seconds = true;
    for (size_t i = 0; i < seconds.size(); ++i) {
      known->sequence.trace.operations[i].seconds = seconds[i];
    }
  }
  known->last_step = step_;
  end.trace = known->id;
  history_.push_back(known->id);
  if (history_.size() > kLongestHistory) {
    history_.pop_front();
  }
  return end;
}

}  // namespace headrace::scheduler
