// Mutations that keep JSON valid: values, keys and elements are replaced, copied, swapped and
// removed, so that what is tried is the reader's meaning and not again and again the JSON parser.
// Used by the mutators of the targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>

// Of libFuzzer: its own mutations of bytes, which know the program's comparisons.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed);

namespace halfstep::fuzz {

using Random = std::minstd_rand;  // seeded anew for each mutation

std::string mutate_bytes(std::string bytes, size_t max_size);

// One to three changes somewhere in `document`.
void mutate_json(nlohmann::json& document, Random& random);

// The text with such changes; one time in four, or if it is no JSON, as plain bytes.
std::string mutate_json_text(const std::string& text, size_t max_size, Random& random);

// JSON as text, whatever its strings hold.
std::string dump(const nlohmann::json& document);

// `result` as libFuzzer takes it: copied to `data`, cut at max_size.
size_t give_back(const std::string& result, uint8_t* data, size_t max_size);

}  // namespace halfstep::fuzz
