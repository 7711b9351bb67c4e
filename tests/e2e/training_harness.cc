#include "e2e/training_harness.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "base/random.h"
#include "engine/run_plan.h"

namespace headrace::test {

namespace {

constexpr int32_t kDocumentEnd = 1;
constexpr uint64_t kDocumentLength = 9;  // on average

/// Fills packed vectors from the tensors of a folder; alignment gaps are zero.
void append_packed(const model::CheckpointReader& reader, const model::ModuleSpec& module,
                   std::vector<float>& out) {
  const size_t base = out.size();
  out.resize(base + static_cast<size_t>(module.count.count()), 0.0F);
  for (const model::ParameterSpec& parameter : module.parameters) {
    reader.read_f32(parameter.name, Elements(0),
                    std::span(out).subspan(base + static_cast<size_t>(parameter.offset.count()),
                                           static_cast<size_t>(parameter.count.count())));
  }
}

/// What follows from the settings, and an nvme tier.
void fill_in(engine::EngineOptions& options, const CurveSettings& settings) {
  options.dtype = settings.dtype;
  options.shape = settings.shape;
  options.memory.state.moments = engine::moment_count(settings.optimizer, settings.momentum);
  options.memory.micro_batches = static_cast<int64_t>(settings.steps[0].size());
  options.memory.has_nvme = true;
  if (options.nvme_budget == Bytes(0)) {
    options.nvme_budget = options.memory.nvme_budget = kGiB * 2;
  }
}

/// Calls use(network) with what is computed, on the device of the options.
template <class Use>
auto with_network(const CurveSettings& settings, const engine::EngineOptions& options,
                  const Use& use) {
  const model::CheckpointReader reader(settings.model_folder);
  const auto device = options.make_device ? options.make_device() : device::make_cpu_device();
  return use(model::Network(reader.config(), options.dtype, options.shape, *device,
                            options.vocab_tile, options.block_piece, options.fp8_forward));
}

}  // namespace

engine::MinimumBudgets least_budgets(const CurveSettings& settings, engine::EngineOptions options) {
  fill_in(options, settings);
  return with_network(settings, options, [&](const model::Network& network) {
    return engine::minimum_budgets(network.config(), options.dtype, options.shape,
                                   engine::network_needs(network), options.memory);
  });
}

engine::MemoryPlan plan_of(const CurveSettings& settings, engine::EngineOptions options) {
  fill_in(options, settings);
  return with_network(settings, options, [&](const model::Network& network) {
    return engine::plan_memory(network, options);
  });
}

Curve train_curve(const CurveSettings& settings, engine::EngineOptions options) {
  const TemporaryFolder folder;
  const TemporaryFolder nvme;
  const model::CheckpointReader reader(settings.model_folder);
  fill_in(options, settings);
  options.nvme_paths = {nvme.path()};
  Curve curve;
  engine::Engine engine(reader.config(), options);
  engine.load(reader, [](Elements) {});
  for (size_t step = 0; step < settings.steps.size(); ++step) {
    engine::StepNumbers numbers;
    numbers.optimizer.kind = settings.optimizer;
    numbers.optimizer.momentum = settings.momentum;
    numbers.optimizer.lr = settings.learning_rates[step];
    numbers.optimizer.beta1 = 0.9;
    numbers.optimizer.beta2 = 0.999;
    numbers.optimizer.eps = 1e-8;
    numbers.optimizer.weight_decay = settings.weight_decay;
    numbers.optimizer.step = static_cast<int64_t>(step) + 1;
    numbers.loss_scale = settings.loss_scale;
    numbers.gradient_clipping = settings.gradient_clipping;
    numbers.micro_batches = options.memory.micro_batches;
    numbers.check_finite = settings.check_finite;
    if (settings.adjust) {
      settings.adjust(step, numbers);
    }
    const auto begin = std::chrono::steady_clock::now();
    std::optional<engine::TimelineRecorder> recorder;
    if (settings.observe_timeline) {
      recorder.emplace(static_cast<int64_t>(step) + 1, begin);
    }
    const engine::EngineReport report =
        engine.train_step(settings.steps[step], numbers, {}, recorder ? &*recorder : nullptr);
    if (recorder) {
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      settings.observe_timeline(report, std::move(*recorder).finish(seconds.count()));
    }
    if (settings.observe) {
      settings.observe(report);
    }
    double loss = 0;
    for (const double part : numbers.losses) {
      loss += part / static_cast<double>(numbers.losses.size());
    }
    curve.losses.push_back(loss);
    curve.gradient_norms.push_back(numbers.gradient_norm);
  }
  EXPECT_LE(engine.host_high_water(), options.memory.host_memory);
  if (options.memory.device_memory) {
    EXPECT_LE(engine.device_high_water(), *options.memory.device_memory);
  }
  const auto modules = model::module_specs(reader.config());
  model::CheckpointWriter::Options writer_options;
  writer_options.dtype = DType::f32;
  model::CheckpointWriter writer(folder.path(), reader.config(), modules, writer_options);
  engine.save(writer, [](Elements) {});
  writer.finish();
  curve.weights = packed_weights(model::CheckpointReader(folder.path()));
  return curve;
}

std::vector<float> packed_weights(const model::CheckpointReader& reader) {
  std::vector<float> weights;
  for (const auto& module : model::module_specs(reader.config())) {
    append_packed(reader, module, weights);
  }
  return weights;
}

model::TokenBatch batch_from_windows(const int32_t* windows, int64_t sequences, int64_t seq) {
  model::TokenBatch batch;
  for (int64_t s = 0; s < sequences; ++s) {
    const int32_t* row = windows + s * (seq + 1);
    batch.ids.insert(batch.ids.end(), row, row + seq);
    batch.labels.insert(batch.labels.end(), row + 1, row + seq + 1);
  }
  batch.counted_labels = sequences * seq;
  return batch;
}

std::vector<std::vector<model::TokenBatch>> random_steps(uint64_t seed, size_t steps,
                                                         int64_t micro_batches,
                                                         model::BatchShape shape,
                                                         int32_t vocabulary) {
  Random random(seed, 0);
  std::vector<std::vector<model::TokenBatch>> result(steps);
  for (auto& batches : result) {
    for (int64_t m = 0; m < micro_batches; ++m) {
      std::vector<int32_t> windows(static_cast<size_t>(shape.batch * (shape.seq + 1)));
      for (int32_t& token : windows) {
        token = static_cast<int32_t>(random.below(static_cast<uint32_t>(vocabulary)));
        if (shape.is_packed && random.below(kDocumentLength) == 0) {
          token = kDocumentEnd;
        }
      }
      batches.push_back(batch_from_windows(windows.data(), shape.batch, shape.seq));
      if (shape.is_packed) {
        model::separate_documents(shape.seq, kDocumentEnd, std::nullopt, batches.back());
      }
    }
  }
  return result;
}

void expect_same_bits(const Curve& curve, const Curve& expected) {
  EXPECT_EQ(curve.losses, expected.losses);
  EXPECT_EQ(curve.gradient_norms, expected.gradient_norms);
  EXPECT_TRUE(curve.weights == expected.weights);
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest;
}

}  // namespace headrace::test
