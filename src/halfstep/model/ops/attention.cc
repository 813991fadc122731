#include "halfstep/model/ops/attention.h"

#include <ATen/ATen.h>

#include "halfstep/core/error.h"

namespace halfstep::model {
namespace {

// q [count · length, heads, head_dim] and so on; returns [count · length, heads · head_dim].
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t count,
                  bool causal) {
  const auto batched = [count](const at::Tensor& x) {
    return x.unflatten(0, {count, x.size(0) / count}).transpose(1, 2);
  };
  const at::Tensor out = at::scaled_dot_product_attention(
      batched(q), batched(k), batched(v), /*attn_mask=*/{}, /*dropout_p=*/0.0, causal,
      /*scale=*/{}, /*enable_gqa=*/q.size(1) != k.size(1));
  return out.transpose(1, 2).reshape({q.size(0), q.size(1) * q.size(2)});
}

}  // namespace

std::vector<SegmentRun> segment_runs(const std::vector<int64_t>& segment_starts) {
  std::vector<SegmentRun> runs;
  for (size_t i = 1; i < segment_starts.size(); ++i) {
    const int64_t length = segment_starts[i] - segment_starts[i - 1];
    check(length > 0, "attention: segment starts do not rise");
    if (runs.empty() || runs.back().length != length) runs.push_back({0, length});
    ++runs.back().count;
  }
  return runs;
}

at::Tensor attention(const AttentionInputs& in, const std::vector<SegmentRun>& segments) {
  if (segments.size() == 1) return attend(in.q, in.k, in.v, segments[0].count, /*causal=*/true);
  // split, and not narrow: its gradient is one concatenation instead of a padded sum.
  std::vector<int64_t> sizes;
  for (const SegmentRun& run : segments) sizes.push_back(run.count * run.length);
  const auto q = in.q.split_with_sizes(sizes), k = in.k.split_with_sizes(sizes),
             v = in.v.split_with_sizes(sizes);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < segments.size(); ++i) {
    parts.push_back(attend(q[i], k[i], v[i], segments[i].count, /*causal=*/true));
  }
  return at::cat(parts);
}

at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check(q.size(0) == 1 || q.size(0) == k.size(0), "attention: several new tokens on a used cache");
  return attend(q, k, v, 1, /*causal=*/q.size(0) > 1);
}

}  // namespace halfstep::model
