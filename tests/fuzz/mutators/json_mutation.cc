#include "json_mutation.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

namespace halfstep::fuzz {
namespace {

using nlohmann::json;

void collect(json& value, std::vector<json*>& out) {
  out.push_back(&value);
  if (value.is_structured()) {
    for (json& child : value) collect(child, out);
  }
}

// Values at which readers break: limits, other types, empty things.
json special_value(Random& random) {
  static const json kValues =
      json::parse(R"([0, 1, -1, 2, 3, 127, 255, 65536, 2147483647, 2147483648,
    4294967296, 4294967297, 4611686018427387904, 9223372036854775807, 9223372036854775808,
    18446744073709551615, -9223372036854775808, 0.5, 1e300, 1e-300, true, false, null, "", "w", "0",
    "../x", "fp32", "bf16", "ue6m10", "F32", "BF16", "F16", [], {}, [0], [0, 0], [1, 2, 3], [[]],
    {"default": 1}])");
  return kValues[random() % kValues.size()];
}

void change_number(json& value, Random& random) {
  const int64_t step = static_cast<int64_t>(random() % 5) - 2;
  if (value.is_number_float()) {
    value = value.get<double>() * static_cast<double>(step);
  } else if (random() % 2 == 0) {
    value = static_cast<int64_t>(value.get<uint64_t>() + static_cast<uint64_t>(step));
  } else {
    value = value.get<uint64_t>() ^ uint64_t { 1 } << random() % 64;
  }
}

void change_children(json& value, json copy, Random& random) {
  if (value.is_array()) {
    auto& items = value.get_ref<json::array_t&>();
    const auto at = [&] { return items.begin() + static_cast<ptrdiff_t>(random() % items.size()); };
    if (items.empty() || random() % 3 == 0) {
      items.push_back(items.empty() ? std::move(copy) : json(*at()));
    } else if (random() % 2 == 0) {
      items.erase(at());
    } else {
      std::iter_swap(at(), at());
    }
  } else if (value.is_object()) {
    auto& members = value.get_ref<json::object_t&>();
    if (members.empty() || random() % 4 == 0) {
      members["x" + std::to_string(random() % 3)] = std::move(copy);
      return;
    }
    const auto member =
        std::next(members.begin(), static_cast<ptrdiff_t>(random() % members.size()));
    if (random() % 2 == 0) {
      members.erase(member);
    } else {
      std::string key = mutate_bytes(member->first, member->first.size() + 8);
      json moved = std::move(member->second);
      if (random() % 2 == 0) members.erase(member);
      members[std::move(key)] = std::move(moved);
    }
  }
}

void mutate_once(json& document, Random& random) {
  std::vector<json*> values;
  collect(document, values);
  json& value = *values[random() % values.size()];
  json copy = *values[random() % values.size()];
  const unsigned choice = static_cast<unsigned>(random() % 8);
  if (choice == 0) {
    value = special_value(random);
  } else if (choice == 1) {
    value = std::move(copy);
  } else if (value.is_structured()) {
    change_children(value, std::move(copy), random);
  } else if (value.is_number()) {
    change_number(value, random);
  } else if (value.is_string()) {
    const std::string text = value.get<std::string>();
    value = mutate_bytes(text, text.size() + 8);
  } else {
    value = special_value(random);
  }
}

}  // namespace

std::string mutate_bytes(std::string bytes, size_t max_size) {
  const size_t size = std::min(bytes.size(), max_size);
  bytes.resize(std::max<size_t>(max_size, 1));
  bytes.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(bytes.data()), size, bytes.size()));
  return bytes;
}

void mutate_json(json& document, Random& random) {
  for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) mutate_once(document, random);
}

std::string dump(const json& document) {
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string mutate_json_text(const std::string& text, size_t max_size, Random& random) {
  json document = json::parse(text, nullptr, false);
  if (document.is_discarded() || random() % 4 == 0) return mutate_bytes(text, max_size);
  mutate_json(document, random);
  std::string result = dump(document);
  // A text that is too long would be cut and be no JSON any more.
  return result.size() <= max_size ? result : mutate_bytes(text, max_size);
}

size_t give_back(const std::string& result, uint8_t* data, size_t max_size) {
  const size_t size = std::min(result.size(), max_size);
  std::memcpy(data, result.data(), size);
  return size;
}

}  // namespace halfstep::fuzz
