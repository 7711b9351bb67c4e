#include "scheduler/time_bound.h"

#include <algorithm>
#include <queue>

#include "scheduler/costs.h"
#include "scheduler/placement.h"

namespace headrace::scheduler {

namespace {

/// Barriers at which the bytes before and after are bounded; each costs a pass over the values.
constexpr size_t kMostBarriers = 16;

/// Work of one lane: not before `release`, and followed by at least `tail` of other work.
struct Job {
  double release = 0;
  double seconds = 0;
  double tail = 0;
};

/// One machine, interruptions allowed, longest tail first: exactly the largest, over all subsets of
/// the jobs, of first release + work + least tail.
double one_lane_seconds(std::vector<Job> jobs) {
  std::sort(jobs.begin(), jobs.end(),
            [](const Job& a, const Job& b) { return a.release < b.release; });
  std::priority_queue<std::pair<double, double>> waiting;  // tail, seconds left
  double now = 0;
  double end = 0;
  size_t next = 0;
  while (next < jobs.size() || !waiting.empty()) {
    if (waiting.empty()) {
      now = std::max(now, jobs[next].release);
    }
    for (; next < jobs.size() && jobs[next].release <= now; ++next) {
      waiting.emplace(jobs[next].tail, jobs[next].seconds);
    }
    const auto [tail, left] = waiting.top();
    waiting.pop();
    const double until = next < jobs.size() ? jobs[next].release - now : left;
    if (until < left) {
      waiting.emplace(tail, left - until);
      now += until;
      continue;
    }
    now += left;
    end = std::max(end, now + tail);
  }
  return end;
}

class TimeBound {
 public:
  TimeBound(const CompileInput& input, const std::vector<ValueLife>& lives,
            const BoundaryBound& link, const BoundaryBound& drive)
      : input_(input),
        operations_(input.trace->operations),
        lives_(lives),
        link_(link),
        drive_(drive),
        edges_(operations_.size()),
        from_start_(operations_.size()),
        start_(operations_.size()),
        tail_(operations_.size()) {}

  void run(LowerBound& bound) {
    find_edges();
    find_starts();
    find_tails();
    raise_barriers(bound.seconds);
    for (size_t i = 0; i < operations_.size(); ++i) {
      const Operation& operation = operations_[i];
      jobs(operation.lane).push_back({start_[i], operation.seconds, tail_[i]});
      bound.chain_seconds = std::max(bound.chain_seconds, start_[i] + operation.seconds + tail_[i]);
    }
    for (const ValueLife& life : lives_) {
      add_transfers(life);
    }
    add_rest(Lane::nvme_read, bound.nvme_read);
    add_rest(Lane::nvme_write, bound.nvme_write);
    add_rest(Lane::host_to_device, bound.host_to_device);
    add_rest(Lane::device_to_host, bound.device_to_host);
    const DriveSeconds drive = drive_seconds(
        input_.rates, {static_cast<double>(bound.nvme_read.count()) / input_.rates.nvme_read,
                       static_cast<double>(bound.nvme_write.count()) / input_.rates.nvme_write});
    bound.seconds = std::max({bound.seconds, bound.chain_seconds, drive.reading, drive.writing});
    for (size_t lane = 0; lane < jobs_.size(); ++lane) {
      for (const Job& job : jobs_[lane]) {
        bound.lane_seconds[lane] += job.seconds;
      }
      bound.seconds = std::max(bound.seconds, one_lane_seconds(std::move(jobs_[lane])));
    }
  }

 private:
  /// `to` starts at least `seconds` after `from` has ended.
  struct Edge {
    uint32_t from = 0;
    double seconds = 0;
  };

  std::vector<Job>& jobs(Lane lane) { return jobs_[static_cast<size_t>(lane)]; }

  const ObjectFacts& facts(const ValueLife& life) const {
    return (*input_.objects)[index_of(life.object)];
  }

  bool has_direct_reads() const { return input_.rates.direct_share > 0; }

  double path(const ValueLife& life, Tier from, Tier to) const {
    const double adjacent = adjacent_path(life, from, to);
    return has_direct_reads() && is_direct(from, to)
               ? std::min(adjacent, transfer_seconds(input_.rates, facts(life).size, from, to))
               : adjacent;
  }

  double adjacent_path(const ValueLife& life, Tier from, Tier to) const {
    double seconds = 0;
    while (from != to) {
      const auto next = static_cast<Tier>(static_cast<int>(from) + (from < to ? 1 : -1));
      seconds += transfer_seconds(input_.rates, facts(life).size, from, next);
      from = next;
    }
    return seconds;
  }

  /// From the places where the value is born, the shortest.
  double path_to(const ValueLife& life, Tier to) const {
    double best = -1;
    for (const Tier from : {Tier::device, Tier::host, Tier::nvme}) {
      if (life.in[static_cast<size_t>(from)]) {
        const double seconds = path(life, from, to);
        best = best < 0 ? seconds : std::min(best, seconds);
      }
    }
    return std::max(best, 0.0);
  }

  double birth_end(const ValueLife& life) const {
    return life.born < 0 ? 0
                         : start_[static_cast<size_t>(life.born)] +
                               operations_[static_cast<size_t>(life.born)].seconds;
  }

  void find_edges() {
    for (const ValueLife& life : lives_) {
      for (const Need& need : life.needs) {
        const double seconds = path_to(life, need.tier);
        if (life.born >= 0) {
          edges_[need.position].push_back({static_cast<uint32_t>(life.born), seconds});
        } else {
          from_start_[need.position] = std::max(from_start_[need.position], seconds);
        }
      }
    }
    std::array<int64_t, kLaneCount> last{};
    last.fill(-1);
    for (uint32_t i = 0; i < operations_.size(); ++i) {
      int64_t& before = last[static_cast<size_t>(operations_[i].lane)];
      if (!operations_[i].in_order) {
        continue;
      }
      if (before >= 0) {
        edges_[i].push_back({static_cast<uint32_t>(before), 0});
      }
      before = i;
    }
  }

  void find_starts() {
    for (size_t i = 0; i < operations_.size(); ++i) {
      start_[i] = std::max(start_[i], from_start_[i]);
      for (const Edge& edge : edges_[i]) {
        start_[i] =
            std::max(start_[i], start_[edge.from] + operations_[edge.from].seconds + edge.seconds);
      }
    }
  }

  void find_tails() {
    for (const ValueLife& life : lives_) {
      if (life.born >= 0 && life.goes_home) {
        double& tail = tail_[static_cast<size_t>(life.born)];
        tail = std::max(tail, path_to(life, *facts(life).home));
      }
    }
    for (size_t i = operations_.size(); i-- > 0;) {
      for (const Edge& edge : edges_[i]) {
        tail_[edge.from] =
            std::max(tail_[edge.from], edge.seconds + operations_[i].seconds + tail_[i]);
      }
    }
  }

  /// Operations that depend on all earlier ones and on which all later ones depend.
  std::vector<uint32_t> find_barriers() const {
    const size_t count = operations_.size();
    std::vector<int64_t> latest(count, -1);                             // that it depends on
    std::vector<int64_t> earliest(count, static_cast<int64_t>(count));  // that depends on it
    for (size_t i = 0; i < count; ++i) {
      for (const Edge& edge : edges_[i]) {
        latest[i] = std::max<int64_t>(latest[i], edge.from);
        earliest[edge.from] = std::min(earliest[edge.from], static_cast<int64_t>(i));
      }
    }
    std::vector<bool> later_depend(count);
    int64_t least = static_cast<int64_t>(count);
    for (size_t k = count; k-- > 0;) {
      later_depend[k] = least >= static_cast<int64_t>(k);
      least = std::min(least, latest[k]);
    }
    std::vector<uint32_t> barriers;
    int64_t most = -1;
    for (uint32_t k = 0; k < count; ++k) {
      if (later_depend[k] && most <= static_cast<int64_t>(k)) {
        barriers.push_back(k);
      }
      most = std::max(most, earliest[k]);
    }
    return barriers;
  }

  /// Those that end the longest stretches without a barrier: where parallel work meets.
  static std::vector<uint32_t> choose(const std::vector<uint32_t>& barriers) {
    std::vector<std::pair<uint32_t, uint32_t>> by_stretch;  // operations since the one before
    by_stretch.reserve(barriers.size());
    for (size_t b = 0; b < barriers.size(); ++b) {
      by_stretch.emplace_back(b == 0 ? barriers[b] : barriers[b] - barriers[b - 1], barriers[b]);
    }
    std::sort(by_stretch.rbegin(), by_stretch.rend());
    by_stretch.resize(std::min(by_stretch.size(), kMostBarriers));
    std::vector<uint32_t> chosen;
    chosen.reserve(by_stretch.size());
    for (const auto& entry : by_stretch) {
      chosen.push_back(entry.second);
    }
    std::sort(chosen.begin(), chosen.end());
    return chosen;
  }

  /// Before a barrier the bytes of the operations before it have moved; what the later ones need
  /// beyond what fits above the boundary moves after it.
  void raise_barriers(double& seconds) {
    const std::vector<uint32_t> barriers = choose(find_barriers());
    const auto end = static_cast<uint32_t>(operations_.size()) + 1;
    const std::array<std::pair<const BoundaryBound*, double>, 2> ways = {
        {{&link_, input_.rates.host_to_device}, {&drive_, input_.rates.nvme_read}}};
    for (const uint32_t k : barriers) {
      for (const auto& [boundary, rate] : ways) {
        const auto before = static_cast<double>(boundary->up_over({0, k + 1}));
        from_start_[k] = std::max(from_start_[k], before / rate);
      }
      for (const Lane lane : {Lane::compute, Lane::cpu_optimizer}) {
        from_start_[k] = std::max(from_start_[k], one_lane_seconds(work_before(k, lane)));
      }
    }
    find_starts();
    for (const uint32_t k : barriers) {
      if (k == 0) {
        continue;  // nothing is before it: the whole trace
      }
      for (const auto& [boundary, rate] : ways) {
        const auto after = static_cast<double>(boundary->up_over({k, end}));
        seconds = std::max(seconds, start_[k] + after / rate);
      }
    }
  }

  std::vector<Job> work_before(uint32_t barrier, Lane lane) const {
    std::vector<Job> work;
    for (uint32_t i = 0; i < barrier; ++i) {
      if (operations_[i].lane == lane) {
        work.push_back({start_[i], operations_[i].seconds, 0});
      }
    }
    return work;
  }

  double tail_from(const Need& need) const {
    return operations_[need.position].seconds + tail_[need.position];
  }

  /// The transfers that every schedule makes. Of a value that a direct read may bring, both parts
  /// of the way may be one: then neither waits for the other.
  void add_transfers(const ValueLife& life) {
    const Bytes size = facts(life).size;
    const auto job = [&](Lane lane, double release, double tail) {
      jobs(lane).push_back({release,
                            static_cast<double>(size.count()) / rate_of(input_.rates, lane),
                            latency_of(input_.rates, lane) + tail});
    };
    const double birth = birth_end(life);
    if (drive_.must_move_up(life)) {
      const Need& need = *drive_.first_need_above(life);
      const double rest = has_direct_reads() ? 0 : path(life, Tier::host, need.tier);
      job(Lane::nvme_read, 0, rest + tail_from(need));
    }
    if (link_.must_move_up(life)) {
      const Need* need = link_.first_need_above(life);
      // A direct read ends with the drive's latency, not the link's.
      const double early = has_direct_reads() ? latency_of(input_.rates, Lane::host_to_device) : 0;
      job(Lane::host_to_device, birth + (has_direct_reads() ? 0 : path_to(life, Tier::host)),
          need != nullptr ? tail_from(*need) - early : -early);
    }
    if (link_.must_move_down(life)) {
      double tail = life.goes_home ? path(life, Tier::host, *facts(life).home) : 0;
      const auto need = std::find_if(life.needs.begin(), life.needs.end(),
                                     [](const Need& n) { return n.tier == Tier::host; });
      if (need != life.needs.end()) {
        tail = std::max(tail, tail_from(*need));
      }
      job(Lane::device_to_host, birth, tail);
    }
    if (drive_.must_move_down(life)) {
      job(Lane::nvme_write, birth + path_to(life, Tier::host), 0);
    }
  }

  /// What moves beyond the transfers that are known one by one: time of the lane, at any time.
  void add_rest(Lane lane, Bytes bytes) {
    double known = 0;
    for (const Job& job : jobs(lane)) {
      known += job.seconds;
    }
    const double rest = static_cast<double>(bytes.count()) / rate_of(input_.rates, lane) - known;
    if (rest > 0) {
      jobs(lane).push_back({0, rest, 0});
    }
  }

  const CompileInput& input_;
  const std::vector<Operation>& operations_;
  const std::vector<ValueLife>& lives_;
  const BoundaryBound& link_;
  const BoundaryBound& drive_;
  std::vector<std::vector<Edge>> edges_;  ///< by the later operation
  std::vector<double> from_start_;        ///< least start for other reasons than edges
  std::vector<double> start_;             ///< earliest start of each operation
  std::vector<double> tail_;              ///< least time from its end to the end of the step
  std::array<std::vector<Job>, kLaneCount> jobs_;
};

}  // namespace

void bound_time(const CompileInput& input, const std::vector<ValueLife>& lives,
                const BoundaryBound& link, const BoundaryBound& drive, LowerBound& bound) {
  TimeBound(input, lives, link, drive).run(bound);
}

}  // namespace headrace::scheduler
