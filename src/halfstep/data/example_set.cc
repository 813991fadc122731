#include "halfstep/data/example_set.h"

#include <fmt/core.h>

#include <algorithm>

#include "halfstep/core/error.h"
#include "halfstep/core/hash.h"
#include "halfstep/io/checksum.h"

namespace halfstep::data {

void ExampleSet::add(const Example& example, int64_t file, int64_t line) {
  check(example.tokens.size() == example.learned.size(), "ExampleSet: a token without its flag");
  tokens_.insert(tokens_.end(), example.tokens.begin(), example.tokens.end());
  learned_.insert(learned_.end(), example.learned.begin(), example.learned.end());
  starts_.push_back(static_cast<int64_t>(tokens_.size()));
  file_of_.push_back(static_cast<int32_t>(file));
  lines_.push_back(line);
  num_targets_ += std::count(example.learned.begin() + 1, example.learned.end(), 1);
}

std::string ExampleSet::name(int64_t e) const {
  return fmt::format("{}:{}", files_[file_of_[e]], lines_[e]);
}

uint64_t ExampleSet::fingerprint(int64_t first, int64_t count) const {
  const int64_t begin = starts_[first], size = starts_[first + count] - begin;
  uint64_t hash = fnv1a("halfstep examples");
  // Where examples begin is told by their lengths: tokens alone could be cut another way.
  std::vector<int64_t> lengths;
  for (int64_t e = first; e < first + count; ++e) lengths.push_back(length(e));
  for (const uint64_t part : {io::checksum(tokens_.data() + begin, size * sizeof(int32_t)),
                              io::checksum(learned_.data() + begin, size),
                              io::checksum(lengths.data(), lengths.size() * sizeof(int64_t))}) {
    hash = fnv1a(fmt::format("{:016x}", part), hash);
  }
  return hash;
}

}  // namespace halfstep::data
