#include "model/token_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "model/token_data_shuffle.h"
#include "model/token_data_source.h"

namespace headrace::model {

namespace {

constexpr int64_t kCheckAtStartTokens = int64_t{1} << 25;  // 64 MiB of uint16
constexpr int64_t kDocumentEndTokens = int64_t{1} << 20;   // in which one is expected
constexpr uint64_t kShuffleStream = uint64_t{0x5U} << 60;  // apart from other uses of the seed

// How rows of tokens are cut into sequences.
struct Cut {
  int64_t rows = 1;
  int64_t row_length = 0;
  int64_t per_row = 0;

  int64_t sequences() const { return rows * per_row; }
};

Cut cut_rows(const std::string& path, const TokenFile& file, int64_t seq) {
  Cut cut{file.rows, file.row_length, 0};
  const bool fits_rows = file.row_length >= seq && file.row_length % seq <= 1;
  if (!file.has_rows || (file.rows == 1 && !fits_rows)) {
    cut.per_row = (file.row_length - 1) / seq;
    if (file.row_length <= seq) {
      throw InputError(fmt::format(
          "{} has {} tokens; one sequence of {} needs {}, its labels being the next tokens. Give "
          "more data or a smaller sequence length",
          path, file.row_length, seq, seq + 1));
    }
    return cut;
  }
  cut.per_row = file.row_length / seq;
  if (file.rows == 0 || !fits_rows) {
    throw InputError(fmt::format(
        "{}: input_ids has shape [{}, {}] and the sequence length is {}; rows must have a multiple "
        "of "
        "the sequence length, or one token more. Set the sequence length to {}, or make the data "
        "again with prepare_data.py --seq-len {}",
        path, file.rows, file.row_length, seq, std::max<int64_t>(file.row_length, 1), seq));
  }
  return cut;
}

int64_t validation_share(const std::string& path, int64_t sequences, double fraction) {
  if (!(fraction >= 0 && fraction < 1)) {
    throw InputError(
        fmt::format("the validation fraction is {}; expected 0 or more and below 1", fraction));
  }
  if (fraction == 0) {
    return 0;
  }
  if (sequences < 2) {
    throw InputError(fmt::format(
        "{} has {} sequence: not enough to hold some out for validation; give more data, a smaller "
        "sequence length or a validation fraction of 0",
        path, sequences));
  }
  const auto share = static_cast<int64_t>(std::floor(static_cast<double>(sequences) * fraction));
  return std::clamp<int64_t>(share, 1, sequences - 1);
}

void count_labels(TokenBatch& batch) {
  batch.counted_labels = static_cast<int64_t>(batch.labels.size()) -
                         std::count(batch.labels.begin(), batch.labels.end(), kIgnoredLabel);
}

/// Most likely it is not the token that ends documents here.
void warn_without_document_end(const std::string& path, const TokenFile& file,
                               int32_t document_end) {
  std::vector<int32_t> ids(static_cast<size_t>(std::min(file.ids.count(), kDocumentEndTokens)));
  file.ids.read(0, ids);
  if (std::find(ids.begin(), ids.end(), document_end) == ids.end()) {
    log_warning(
        "{}: token {}, which ends a document, is not among the first {} tokens: there each "
        "sequence is one document",
        path, document_end, ids.size());
  }
}

class FileTokenData : public TokenData {
 public:
  FileTokenData(TokenFile file, Cut cut, int64_t validation, const TokenDataOptions& options)
      : file_(std::move(file)), cut_(cut), validation_(validation), options_(options) {}

  int64_t training_sequences() const override { return cut_.sequences() - validation_; }
  int64_t validation_sequences() const override { return validation_; }

  TokenBatch training_batch(int64_t first, int64_t count) const override {
    HR_CHECK(first >= 0 && count >= 0, "training sequences [{}, +{})", first, count);
    return batch(count, [&](int64_t i) { return shuffled(first + i); });
  }

  TokenBatch validation_batch(int64_t first, int64_t count) const override {
    HR_CHECK(first >= 0 && count >= 0 && first <= validation_ - count,
             "validation sequences [{}, +{}) of {}", first, count, validation_);
    return batch(count, [&](int64_t i) { return training_sequences() + first + i; });
  }

 private:
  int64_t shuffled(int64_t index) const {
    const int64_t epoch = index / training_sequences();
    const int64_t position = index % training_sequences();
    if (!options_.shuffle) {
      return position;
    }
    const auto stream = kShuffleStream ^ static_cast<uint64_t>(epoch);
    return Permutation(training_sequences(), options_.seed, stream)(position);
  }

  template <class Order>
  TokenBatch batch(int64_t count, const Order& order) const {
    const auto seq = static_cast<size_t>(options_.seq);
    TokenBatch result;
    result.ids.resize(static_cast<size_t>(count) * seq);
    result.labels.resize(result.ids.size());
    for (int64_t i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(i) * seq;
      read_sequence(order(i), std::span(result.ids).subspan(at, seq),
                    std::span(result.labels).subspan(at, seq));
    }
    count_labels(result);
    if (options_.document_end) {
      separate_documents(options_.seq, *options_.document_end, options_.window, result);
    }
    return result;
  }

  void read_sequence(int64_t sequence, std::span<int32_t> ids, std::span<int32_t> labels) const {
    const int64_t in_row = (sequence % cut_.per_row) * options_.seq;
    const int64_t begin = (sequence / cut_.per_row) * cut_.row_length + in_row;
    file_.ids.read(begin, ids);
    // The label of the row's last token would be in the next row.
    const bool has_next = in_row + options_.seq < cut_.row_length;
    const auto known = labels.first(labels.size() - (has_next ? 0 : 1));
    (file_.labels ? *file_.labels : file_.ids).read(begin + 1, known);
    if (!has_next) {
      labels.back() = kIgnoredLabel;
    }
  }

  TokenFile file_;
  Cut cut_;
  int64_t validation_;
  TokenDataOptions options_;
};

}  // namespace

void separate_documents(int64_t seq, int32_t document_end, std::optional<int64_t> window,
                        TokenBatch& batch) {
  batch.documents = find_documents(batch.ids, seq, document_end, window);
  for (size_t t = 0; t < batch.ids.size(); ++t) {
    if (batch.ids[t] == document_end) {
      batch.labels[t] = kIgnoredLabel;
    }
  }
  count_labels(batch);
}

std::unique_ptr<TokenData> TokenData::open(const std::string& path,
                                           const TokenDataOptions& options) {
  if (options.seq < 1) {
    throw InputError(fmt::format("the sequence length is {}; expected 1 or more", options.seq));
  }
  TokenFile file = open_token_file(path, options);
  const Cut cut = cut_rows(path, file, options.seq);
  const int64_t validation = validation_share(path, cut.sequences(), options.validation_fraction);
  if (file.ids.count() <= kCheckAtStartTokens) {
    file.ids.check_all();
    if (file.labels) {
      file.labels->check_all();
    }
  }
  if (options.document_end) {
    warn_without_document_end(path, file, *options.document_end);
  }
  return std::make_unique<FileTokenData>(std::move(file), cut, validation, options);
}

}  // namespace headrace::model
