#include "engine/state_transfer.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "engine/master_weights.h"
#include "engine/optimizer/moment_codes.h"
#include "engine/shard_arrays.h"

namespace headrace::engine {

using scheduler::Access;

namespace {

constexpr int64_t kPiece = 65536;  ///< elements put together at a time
constexpr double kBytesPerSecond = 1e9;

/// Whether the module's objects hold the same bytes in both layouts.
bool same_form(const proto::StateLayout& a, const proto::StateLayout& b, const std::string& name) {
  const auto module_of = [&](const proto::StateLayout& layout) -> const proto::StoredModule* {
    for (const proto::StoredModule& module : layout.modules()) {
      if (module.name() == name) {
        return &module;
      }
    }
    return nullptr;
  };
  const auto formats = [](const proto::StateLayout& layout) {
    return std::tuple(layout.dtype(), layout.master(), layout.moments(), layout.moment_dtype(),
                      layout.optimizer());
  };
  const proto::StoredModule* const one = module_of(a);
  const proto::StoredModule* const other = module_of(b);
  return one != nullptr && other != nullptr && formats(a) == formats(b) &&
         one->SerializeAsString() == other->SerializeAsString();
}

class TransferBuilder {
 public:
  TransferBuilder(const ModelLayout& layout, std::string name) : layout_(layout) {
    result_.steps.trace.name = std::move(name);
  }

  /// An object on the host, whose bytes move as they are.
  void raw(ObjectId object, Access access) {
    add({{object, Tier::host, access, false}}, {}, layout_.objects[index_of(object)].name);
  }

  void numbers(size_t module, size_t shard) {
    const ModuleObjects& objects = layout_.modules[module];
    StepOperation step;
    step.kind = StepKind::load;
    step.module = module;
    step.shard = shard;
    add({{objects.shards[shard].state, Tier::host, Access::write, false},
         {objects.weights, Tier::host, shard == 0 ? Access::write : Access::update, false}},
        step, "");
  }

  StateTransfer take() { return std::move(result_); }

 private:
  void add(std::vector<scheduler::Use> uses, const StepOperation& step, const std::string& raw) {
    scheduler::Operation operation;
    operation.lane = scheduler::Lane::cpu_optimizer;
    operation.name = raw.empty() ? layout_.modules[step.module].spec.name + ".restore" : raw;
    Bytes size;
    for (const scheduler::Use& use : uses) {
      size += layout_.objects[index_of(use.object)].size;
    }
    operation.seconds = static_cast<double>(size.count()) / kBytesPerSecond;
    operation.uses = std::move(uses);
    result_.steps.trace.operations.push_back(std::move(operation));
    result_.steps.operations.push_back(step);
    result_.raw.push_back(raw);
  }

  const ModelLayout& layout_;
  StateTransfer result_;
};

std::set<std::string> object_names(const proto::StateLayout& layout) {
  std::set<std::string> names;
  for (const proto::StoredModule& module : layout.modules()) {
    if (!module.weights().empty()) {
      names.insert(module.weights());
    }
    for (const proto::StoredShard& shard : module.shards()) {
      names.insert(shard.state());
    }
  }
  return names;
}

/// Sets a moment array from its element `first` on; with 8 bits that begins a block.
void set_moment(void* array, DType dtype, int64_t first, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const auto at = first + static_cast<int64_t>(i);
    if (dtype == DType::bf16) {
      static_cast<Bf16*>(array)[at] = to_bf16(values[i]);
    } else {
      static_cast<float*>(array)[at] = values[i];
    }
  }
}
void set_moment(const MomentCode& code, void* words, uint8_t* scales, int64_t first,
                std::span<const float> values) {
  const auto block = static_cast<size_t>(kMomentBlock.count());
  HR_CHECK(first % kMomentBlock.count() == 0, "8-bit moments from element {} on", first);
  for (size_t i = 0; i < values.size(); i += block) {
    const int64_t at = first + static_cast<int64_t>(i);
    const uint32_t scale =
        encode_moments(code, values.subspan(i, std::min(block, values.size() - i)),
                       static_cast<uint8_t*>(words) + at);
    scales[at / kMomentBlock.count()] = static_cast<uint8_t>(scale);
  }
}

/// Puts one shard together from the numbers of the reader.
class ShardRestore {
 public:
  ShardRestore(const ModelLayout& layout, StateReader& reader, bool with_moments)
      : layout_(layout),
        reader_(reader),
        with_moments_(with_moments),
        values_(static_cast<size_t>(kPiece)) {}

  void run(const StepOperation& step, UseBytes uses) {
    const ModuleObjects& module = layout_.modules[step.module];
    const Shard& shard = module.shards[step.shard];
    std::fill(uses[0].begin(), uses[0].end(), std::byte{0});
    if (step.shard == 0) {  // the padding; the rest is set below and by the other shards
      std::fill(uses[1].begin(), uses[1].end(), std::byte{0});
    }
    arrays_ = shard_arrays(layout_.state, layout_.dtype, shard.first, shard.count, uses[0].data(),
                           uses[1].data());
    for_parameter_ranges(
        module.spec, shard.first, shard.count,
        [&](const model::ParameterSpec& parameter, int64_t first, int64_t at, int64_t count) {
          restore(parameter, first, at, count);
        },
        [&](int64_t at, int64_t count) {
          in_pieces(count, [&](int64_t done, std::span<float> piece) {
            std::fill(piece.begin(), piece.end(), 0.0F);
            set_master(arrays_, at + done, piece);
          });
        });
  }

 private:
  template <class Body>
  void in_pieces(int64_t count, const Body& body) {
    for (int64_t done = 0; done < count; done += kPiece) {
      body(done, std::span(values_).first(static_cast<size_t>(std::min(count - done, kPiece))));
    }
  }

  /// From element `first` of what the module has of the parameter.
  void read(const model::ParameterSpec& parameter, StateArray array, int64_t first,
            std::span<float> out) {
    model::read_runs(parameter.part(), first, out, [&](int64_t element, std::span<float> run) {
      reader_.read(parameter.name, array, Elements(element), run);
    });
  }

  /// Elements [first, first + count) of what the module has of the parameter. They are put together
  /// before they are set: a block of 8-bit moments can go over the end of a run.
  void restore(const model::ParameterSpec& parameter, int64_t first, int64_t at, int64_t count) {
    in_pieces(count, [&](int64_t done, std::span<float> piece) {
      read(parameter, StateArray::master, first + done, piece);
      set_master(arrays_, at + done, piece);
      const auto moment = [&](StateArray array, void* target, uint8_t* scales,
                              const MomentCode& code) {
        if (target == nullptr || !with_moments_ || !reader_.has(array)) {
          return;
        }
        read(parameter, array, first + done, piece);
        if (arrays_.moment_dtype == DType::u8) {
          set_moment(code, target, scales, at + done, piece);
        } else {
          set_moment(target, arrays_.moment_dtype, at + done, piece);
        }
      };
      moment(StateArray::moment1, arrays_.moment1, arrays_.scale1, kSignedMoment);
      moment(StateArray::moment2, arrays_.moment2, arrays_.scale2, kSquareMoment);
    });
  }

  const ModelLayout& layout_;
  StateReader& reader_;
  bool with_moments_;
  std::vector<float> values_;
  UpdateShard arrays_;
};

}  // namespace

StateTransfer make_restore(const ModelLayout& layout, const proto::StateLayout& stored) {
  TransferBuilder builder(layout, "restore");
  const proto::StateLayout present = describe(layout, stored.optimizer());
  const auto read_where_not_on_nvme = [&](ObjectId object) {
    if (layout.objects[index_of(object)].home != Tier::nvme) {
      builder.raw(object, Access::write);
    }
  };
  for (size_t m = 0; m < layout.modules.size(); ++m) {
    const ModuleObjects& module = layout.modules[m];
    const bool as_it_is = same_form(present, stored, module.spec.name);
    if (as_it_is) {
      read_where_not_on_nvme(module.weights);
    }
    for (size_t k = 0; k < module.shards.size(); ++k) {
      if (as_it_is) {
        read_where_not_on_nvme(module.shards[k].state);
      } else {
        builder.numbers(m, k);
      }
    }
  }
  StateTransfer transfer = builder.take();
  const std::set<std::string> kept = object_names(present);
  for (const std::string& name : object_names(stored)) {
    if (!kept.contains(name)) {
      transfer.obsolete.push_back(name);
    }
  }
  return transfer;
}

OperationBody restore_body(const StateTransfer& transfer, const ModelLayout& layout,
                           tiers::ExtentStore& store, StateReader& reader, bool with_moments) {
  auto shards = std::make_shared<ShardRestore>(layout, reader, with_moments);
  return [&transfer, &store, shards](uint32_t operation, UseBytes uses) {
    const std::string& raw = transfer.raw[operation];
    if (raw.empty()) {
      shards->run(transfer.steps.operations[operation], uses);
    } else {
      store.read(raw, uses[0], aio::IoClass::demand).wait();
    }
  };
}

StateTransfer make_checkpoint(const ModelLayout& layout) {
  TransferBuilder builder(layout, "checkpoint");
  const auto take = [&](ObjectId object) {
    if (layout.objects[index_of(object)].home != Tier::nvme) {
      builder.raw(object, Access::read);
    }
  };
  for (const ModuleObjects& module : layout.modules) {
    take(module.weights);
    for (const Shard& shard : module.shards) {
      take(shard.state);
    }
  }
  return builder.take();
}

OperationBody checkpoint_body(const StateTransfer& transfer, tiers::ExtentStore& store) {
  return [&transfer, &store](uint32_t operation, UseBytes uses) {
    store.write(transfer.raw[operation], uses[0], true, aio::IoClass::write_back).wait();
  };
}

proto::StateLayout describe(const ModelLayout& layout, const std::string& optimizer) {
  const auto name_of = [&](ObjectId id) { return layout.objects[index_of(id)].name; };
  proto::StateLayout described;
  described.set_dtype(std::string(headrace::to_string(layout.dtype)));
  described.set_master(to_string(layout.state.master));
  described.set_moments(layout.state.moments);
  described.set_moment_dtype(std::string(headrace::to_string(layout.state.moment_dtype)));
  described.set_optimizer(optimizer);
  for (const ModuleObjects& module : layout.modules) {
    proto::StoredModule& to = *described.add_modules();
    to.set_name(module.spec.name);
    to.set_count(module.spec.count.count());
    to.set_weights(name_of(module.weights));
    for (const model::ParameterSpec& parameter : module.spec.parameters) {
      proto::StoredParameter& stored = *to.add_parameters();
      stored.set_name(parameter.name);
      stored.mutable_shape()->Add(parameter.shape.begin(), parameter.shape.end());
      stored.set_offset(parameter.offset.count());
      stored.set_count(parameter.count.count());
      stored.set_first(parameter.first.count());
      stored.set_columns(parameter.columns);
    }
    for (const Shard& shard : module.shards) {
      proto::StoredShard& stored = *to.add_shards();
      stored.set_first(shard.first.count());
      stored.set_count(shard.count.count());
      stored.set_state(name_of(shard.state));
    }
  }
  return described;
}

}  // namespace headrace::engine
