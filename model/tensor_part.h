#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace headrace::model {

/// Elements of a tensor that follow each other in a packed vector: `count` of them, in runs of
/// `run` elements whose begins are `stride` apart in the tensor, the first at `first`. One run
/// where they follow each other in the tensor too. Whole runs.
struct TensorPart {
  int64_t first = 0;
  int64_t count = 0;
  int64_t run = 0;
  int64_t stride = 0;

  /// Elements [first, first + count) of the tensor, or with `columns` > 0 so many of every row of
  /// `row` elements.
  static TensorPart of(int64_t first, int64_t count, int64_t columns, int64_t row) {
    return columns == 0 ? TensorPart{first, count, count, count}
                        : TensorPart{first, count, columns, row};
  }

  int64_t runs() const { return run > 0 ? count / run : 0; }
  /// Where element `index` of the part, below `count`, is in the tensor.
  int64_t element(int64_t index) const { return first + index / run * stride + index % run; }
};

/// Calls body(element of the tensor, element of the range, count) for elements [first, first +
/// count) of the part, cut where a run ends.
template <class Body>
void for_runs(const TensorPart& part, int64_t first, int64_t count, const Body& body) {
  for (int64_t done = 0; done < count;) {
    const int64_t left_of_run = part.run - (first + done) % part.run;
    const int64_t length = std::min(left_of_run, count - done);
    body(part.element(first + done), done, length);
    done += length;
  }
}

/// Fills `values`, elements of the part from `first` on: calls read(element of the tensor, values
/// of one run).
template <class T, class Read>
void read_runs(const TensorPart& part, int64_t first, std::span<T> values, const Read& read) {
  for_runs(part, first, static_cast<int64_t>(values.size()),
           [&](int64_t element, int64_t done, int64_t length) {
             read(element, values.subspan(static_cast<size_t>(done), static_cast<size_t>(length)));
           });
}

/// Calls body(element of the part, element of the range, count) for what the part has of elements
/// [first, first + count) of the tensor, in the order of the part.
template <class Body>
void for_overlaps(const TensorPart& part, int64_t first, int64_t count, const Body& body) {
  if (part.run <= 0 || first + count <= part.first) {
    return;
  }
  const int64_t begin = std::max<int64_t>(first - part.first, 0) / part.stride;
  const int64_t end = std::min(part.runs(), (first + count - 1 - part.first) / part.stride + 1);
  for (int64_t run = begin; run < end; ++run) {
    const int64_t at = part.first + run * part.stride;
    const int64_t from = std::max(first, at);
    const int64_t to = std::min(first + count, at + part.run);
    if (from < to) {
      body(run * part.run + from - at, from - first, to - from);
    }
  }
}

}  // namespace headrace::model
