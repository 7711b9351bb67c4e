#include "transformer.h"

namespace headrace::scheduler::test {
namespace {

class StepWriter {
 public:
  StepWriter(Case& out, const TransformerShape& shape, Tier weights_home)
      : case_(out), shape_(shape) {
    const int modules = shape.layers + 2;  // embedding, blocks, head
    for (int m = 0; m < modules; ++m) {
      const bool is_block = m > 0 && m < modules - 1;
      const int64_t size = is_block ? shape.block_weights : shape.embedding_weights;
      weights_.push_back(case_.add(fmt::format("W{}", m), size, Tier::nvme, weights_home));
      state_.push_back(case_.add(fmt::format("S{}", m), 5 * size, Tier::nvme, Tier::nvme));
      sums_.push_back(case_.add(fmt::format("G{}", m), 2 * size, Tier::nvme));
    }
  }

  void micro_batch(int index) {
    const int last = static_cast<int>(weights_.size()) - 1;
    std::vector<ObjectId> saved;
    for (int m = 0; m < last; ++m) {
      saved.push_back(case_.add(fmt::format("A{}.{}", index, m), shape_.activation, Tier::nvme));
      std::vector<Use> uses{reads(weights_[m]), writes(saved[m])};
      if (m > 0) {
        uses.push_back(reads(saved[m - 1]));
      }
      case_.run(fmt::format("forward {}.{}", index, m), Lane::compute, shape_.forward_seconds, uses)
          .starts_pass = m == 0;
    }
    const ObjectId flowing = case_.add(fmt::format("dA{}", index), shape_.activation, Tier::device);
    for (int m = last; m >= 0; --m) {
      const int64_t size = case_.objects[index_of(weights_[m])].size.count();
      const ObjectId gradient = case_.add(fmt::format("D{}.{}", index, m), size, Tier::nvme);
      std::vector<Use> uses{reads(weights_[m]), writes(gradient),
                            m == last ? writes(flowing) : updates(flowing)};
      uses.back().discard_after = m == 0;
      if (m > 0) {
        uses.push_back(last_reads(saved[m - 1]));
      }
      case_.run(fmt::format("backward {}.{}", index, m), Lane::compute, 2 * shape_.forward_seconds,
                uses);
      case_.run(fmt::format("accumulate {}.{}", index, m), Lane::cpu_optimizer,
                shape_.update_seconds / 4,
                {last_reads(gradient, Tier::host),
                 index == 0 ? writes(sums_[m], Tier::host) : updates(sums_[m], Tier::host)});
    }
  }

  void optimizer() {
    // Gradients are complete from the last module to the first.
    for (size_t m = weights_.size(); m-- > 0;) {
      case_.run(fmt::format("update {}", m), Lane::cpu_optimizer, shape_.update_seconds,
                {last_reads(sums_[m], Tier::host), updates(state_[m], Tier::host),
                 writes(weights_[m], Tier::host)});
    }
  }

 private:
  Case& case_;
  const TransformerShape& shape_;
  std::vector<ObjectId> weights_;
  std::vector<ObjectId> state_;
  std::vector<ObjectId> sums_;
};

}  // namespace

Case transformer(const TransformerShape& shape, Tier weights_home) {
  Case result;
  result.trace.name = "training step";
  StepWriter writer(result, shape, weights_home);
  for (int b = 0; b < shape.micro_batches; ++b) {
    writer.micro_batch(b);
  }
  writer.optimizer();
  return result;
}

}  // namespace headrace::scheduler::test
