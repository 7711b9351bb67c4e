#include "model/torch_pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <variant>

#include "base/error.h"
#include "model/safetensors.h"

namespace headrace::model {

namespace {

struct Value;
using Values = std::vector<Value>;

struct Mark {};
struct Null {};
/// A name from a Python module.
struct Global {
  std::string name;
};
struct Tuple {
  std::shared_ptr<Values> values;
};
struct Dictionary {
  std::shared_ptr<std::map<std::string, Value>> values;
};
struct Storage {
  std::string key;
  std::string type;
};
struct Tensor {
  PickledTensor description;
};
/// Anything that is allowed to be there, but not needed.
struct Other {};

struct Value {
  std::variant<Null, Mark, int64_t, std::string, Global, Tuple, Dictionary, Storage, Tensor, Other>
      held;
};

/// The stack machine of the pickle format, with the instructions of protocol 2 that matter.
class Machine {
 public:
  Machine(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  PickledTensor run() {
    while (true) {
      const char instruction = byte();
      if (instruction == '.') {
        return result(pop());
      }
      step(instruction);
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw InputError(
        fmt::format("{}: {}; only tensors and numbers of torch.save are read", origin_, what));
  }

  char byte() { return bytes(1)[0]; }
  std::string_view bytes(size_t count) {
    if (count > text_.size() - at_) {
      refuse("the pickle ends early");
    }
    at_ += count;
    return text_.substr(at_ - count, count);
  }
  template <class Number>
  Number number() {
    Number value{};
    std::memcpy(&value, bytes(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string line() {
    const size_t end = text_.find('\n', at_);
    if (end == std::string_view::npos) {
      refuse("the pickle ends early");
    }
    std::string text(text_.substr(at_, end - at_));
    at_ = end + 1;
    return text;
  }

  template <class Held>
  void push(Held held) {
    stack_.push_back(Value{std::move(held)});
  }
  Value pop() {
    if (stack_.empty()) {
      refuse("the pickle is damaged: nothing is on its stack");
    }
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  template <class Held>
  Held take(const char* what) {
    return as<Held>(pop(), what);
  }
  template <class Held>
  Held as(const Value& value, const char* what) const {
    const Held* const held = std::get_if<Held>(&value.held);
    if (held == nullptr) {
      refuse(fmt::format("the pickle has no {} where there should be one", what));
    }
    return *held;
  }
  /// What lies above the last mark.
  Values pop_to_mark() {
    size_t mark = stack_.size();
    while (mark > 0 && !std::holds_alternative<Mark>(stack_[mark - 1].held)) {
      --mark;
    }
    if (mark == 0) {
      refuse("the pickle is damaged: a mark is missing");
    }
    Values values(std::make_move_iterator(stack_.begin() + static_cast<int64_t>(mark)),
                  std::make_move_iterator(stack_.end()));
    stack_.resize(mark - 1);
    return values;
  }

  void step(char instruction) {
    switch (instruction) {
      case '\x80':  // protocol
        bytes(1);
        return;
      case '(':
        push(Mark{});
        return;
      case '}':
        push(Dictionary{std::make_shared<std::map<std::string, Value>>()});
        return;
      case ')':
        push(Tuple{std::make_shared<Values>()});
        return;
      case 'N':
        push(Null{});
        return;
      case '\x88':  // true
      case '\x89':  // false
        push(Other{});
        return;
      case 'G':  // float
        push_float();
        return;
      case 'c': {
        std::string module = line();
        push(Global{module + "." + line()});
        return;
      }
      default:
        break;
    }
    step_numbers(instruction);
  }

  void push_float() {
    uint64_t bits = 0;
    for (const char each : bytes(sizeof(bits))) {  // big-endian
      bits = (bits << 8U) | static_cast<uint8_t>(each);
    }
    const double value = std::bit_cast<double>(bits);
    constexpr double kExact = 9007199254740992.0;
    if (value >= 0 && value <= kExact && std::floor(value) == value) {
      push(static_cast<int64_t>(value));
    } else {
      push(Other{});
    }
  }

  void step_numbers(char instruction) {
    switch (instruction) {
      case 'K':
        push(int64_t{number<uint8_t>()});
        return;
      case 'M':
        push(int64_t{number<uint16_t>()});
        return;
      case 'J':
        push(int64_t{number<int32_t>()});
        return;
      case '\x8a': {  // an integer of n bytes
        const auto length = number<uint8_t>();
        if (length > sizeof(int64_t)) {
          refuse("a number beyond 64 bits");
        }
        const std::string_view digits = bytes(length);
        uint64_t value = length > 0 && (digits.back() & '\x80') != 0 ? ~uint64_t{0} : 0;
        std::memcpy(&value, digits.data(), length);
        push(static_cast<int64_t>(value));
        return;
      }
      case 'X':
        push(std::string(bytes(number<uint32_t>())));
        return;
      case 'q':
        remember(number<uint8_t>());
        return;
      case 'r':
        remember(number<uint32_t>());
        return;
      case 'h':
        recall(number<uint8_t>());
        return;
      case 'j':
        recall(number<uint32_t>());
        return;
      default:
        break;
    }
    step_structures(instruction);
  }

  void remember(uint32_t slot) {
    if (stack_.empty()) {
      refuse("the pickle is damaged: nothing is on its stack");
    }
    memory_[slot] = stack_.back();
  }
  void recall(uint32_t slot) {
    const auto found = memory_.find(slot);
    if (found == memory_.end()) {
      refuse(fmt::format("the pickle uses value {}, which it did not set", slot));
    }
    stack_.push_back(found->second);
  }

  void step_structures(char instruction) {
    switch (instruction) {
      case 't':
        push(Tuple{std::make_shared<Values>(pop_to_mark())});
        return;
      case '\x85':
        push_tuple(1);
        return;
      case '\x86':
        push_tuple(2);
        return;
      case '\x87':
        push_tuple(3);
        return;
      case 'u': {
        const Values items = pop_to_mark();
        for (size_t i = 0; i + 1 < items.size(); i += 2) {
          set_item(items[i], items[i + 1]);
        }
        return;
      }
      case 's': {
        const Value value = pop();
        const Value key = pop();
        set_item(key, value);
        return;
      }
      case 'Q':
        push(storage(take<Tuple>("tuple")));
        return;
      case 'R':
        call();
        return;
      case 'b':  // sets attributes: of a tensor, none that matter
        pop();
        return;
      default:
        refuse(fmt::format("the pickle has the instruction {:#04x}",
                           static_cast<unsigned>(static_cast<uint8_t>(instruction))));
    }
  }

  void push_tuple(size_t count) {
    auto values = std::make_shared<Values>(count);
    for (size_t i = count; i-- > 0;) {
      (*values)[i] = pop();
    }
    push(Tuple{std::move(values)});
  }

  void set_item(const Value& key, const Value& value) {
    if (stack_.empty()) {
      refuse("the pickle is damaged: nothing is on its stack");
    }
    const auto dictionary = as<Dictionary>(stack_.back(), "dictionary");
    // Only tensors are wanted; without the others no value can hold itself.
    const bool is_tensor = std::holds_alternative<Tensor>(value.held);
    (*dictionary.values)[as<std::string>(key, "text")] = is_tensor ? value : Value{Other{}};
  }

  const Value& item(const Tuple& tuple, size_t i) const {
    if (i >= tuple.values->size()) {
      refuse("the pickle has a tuple that is too short");
    }
    return (*tuple.values)[i];
  }

  Storage storage(const Tuple& parts) const {
    return {as<std::string>(item(parts, 2), "text"), as<Global>(item(parts, 1), "name").name};
  }

  void call() {
    const auto arguments = take<Tuple>("tuple");
    const auto function = take<Global>("function");
    if (function.name == "collections.OrderedDict") {
      push(Dictionary{std::make_shared<std::map<std::string, Value>>()});
    } else if (function.name == "torch._utils._rebuild_tensor_v2") {
      push(tensor(arguments));
    } else if (function.name == "torch._utils._rebuild_parameter") {
      push(as<Tensor>(item(arguments, 0), "tensor"));
    } else {
      refuse(fmt::format("the pickle calls {}", function.name));
    }
  }

  std::vector<int64_t> integers(const Value& value) const {
    std::vector<int64_t> numbers;
    for (const Value& each : *as<Tuple>(value, "tuple").values) {
      numbers.push_back(as<int64_t>(each, "number"));
    }
    return numbers;
  }

  Tensor tensor(const Tuple& arguments) const {
    static const std::map<std::string, DType> types{{"torch.FloatStorage", DType::f32},
                                                    {"torch.BFloat16Storage", DType::bf16},
                                                    {"torch.HalfStorage", DType::f16}};
    const auto storage = as<Storage>(item(arguments, 0), "storage");
    const auto type = types.find(storage.type);
    if (type == types.end()) {
      refuse(fmt::format("a tensor of {}", storage.type));
    }
    PickledTensor description;
    description.storage = storage.key;
    description.dtype = type->second;
    description.offset = as<int64_t>(item(arguments, 1), "number");
    description.shape = integers(item(arguments, 2));
    description.count = element_count(description.shape, origin_);
    const std::vector<int64_t> strides = integers(item(arguments, 3));
    int64_t expected = 1;
    for (size_t i = description.shape.size(); i-- > 0;) {
      if (strides.size() != description.shape.size() ||
          (strides[i] != expected && description.shape[i] > 1)) {
        refuse("a tensor that is not contiguous");
      }
      expected *= std::max<int64_t>(description.shape[i], 1);
    }
    if (description.offset < 0 || description.offset > (int64_t{1} << 60)) {
      refuse(fmt::format("a tensor at element {} of its storage", description.offset));
    }
    return {description};
  }

  PickledTensor result(const Value& value) const {
    if (const auto* number = std::get_if<int64_t>(&value.held)) {
      PickledTensor result;
      result.number = *number;
      return result;
    }
    if (const auto* dictionary = std::get_if<Dictionary>(&value.held)) {
      const auto found = dictionary->values->find("param");
      if (found == dictionary->values->end()) {
        refuse("a dictionary without 'param'");
      }
      return as<Tensor>(found->second, "tensor").description;
    }
    return as<Tensor>(value, "tensor").description;
  }

  std::string_view text_;
  const std::string& origin_;
  size_t at_ = 0;
  Values stack_;
  std::map<uint32_t, Value> memory_;
};

}  // namespace

PickledTensor unpickle(std::string_view text, const std::string& origin) {
  return Machine(text, origin).run();
}

}  // namespace headrace::model
