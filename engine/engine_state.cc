// How the engine's state gets into its store and out of it.
#include "base/check.h"
#include "engine/engine.h"

namespace headrace::engine {

void Engine::commit(const RunState& state) {
  if (extents_ != nullptr) {
    extents_->commit(generation_, {{kRunStateKey, state}});
    extents_->set_in_place(in_place_);
  }
}

void Engine::resume(const proto::StateLayout& stored, const std::string& optimizer,
                    const RunState& state, const ResumeProgress& progress) {
  HR_CHECK(extents_ != nullptr && extents_->has_generation(), "resume without a generation");
  extents_->prepare_for_writing();
  StateReader reader(*extents_, std::nullopt, stored);
  const StateTransfer transfer = make_restore(plan_.layout, stored);
  const OperationBody body =
      restore_body(transfer, plan_.layout, *extents_, reader, stored.optimizer() == optimizer);
  const auto count = static_cast<int64_t>(transfer.raw.size());
  int64_t done = 0;
  if (count > 0) {
    run(transfer.steps, [&](uint32_t operation, UseBytes uses) {
      body(operation, uses);
      progress(++done, count);
    });
    schedules_.erase(&transfer.steps);
  }
  for (const std::string& name : transfer.obsolete) {
    extents_->discard(name);
  }
  if (commits_every_step() && count > 0) {
    commit(state);  // other shards or formats: from now on the store has the present ones
  }
  extents_->set_in_place(in_place_);
  mark();
}

void Engine::checkpoint(const RunState& state) {
  HR_CHECK(extents_ != nullptr, "a checkpoint without a store");
  run(checkpoint_.steps, checkpoint_body(checkpoint_, *extents_));
  commit(state);
}

}  // namespace headrace::engine
