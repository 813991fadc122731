// Loops over rows on the same OpenMP threads that libtorch uses, so that the two never compete for
// cores (libgomp's idle workers spin for a while; a second pool would run against them). The number
// of threads is torch's (at::set_num_threads). at::parallel_for would do, but it is a template that
// runs serially unless every file that includes ATen is compiled with OpenMP.
#pragma once

#include <cstdint>
#include <type_traits>

namespace halfstep::model {

void parallel_blocks(int64_t num_blocks, void (*body)(void*, int64_t), void* context);

// Calls body(begin, end) for consecutive blocks of `block` rows (the last one may be shorter).
// Which thread gets which block is fixed, and so are the blocks: a result that depends only on its
// block is the same for any number of threads.
template <typename Body>
void parallel_rows(int64_t rows, int64_t block, Body&& body) {
  struct Context {
    std::remove_reference_t<Body>* body;
    int64_t rows, block;
  } context{&body, rows, block};
  parallel_blocks((rows + block - 1) / block,
                  [](void* opaque, int64_t index) {
                    const auto& c = *static_cast<Context*>(opaque);
                    const int64_t begin = index * c.block;
                    (*c.body)(begin, begin + c.block < c.rows ? begin + c.block : c.rows);
                  },
                  &context);
}

// Rows per block so that a block is about 32 Ki elements: long enough to pay for its start.
inline int64_t rows_per_block(int64_t cols) {
  const int64_t rows = (int64_t{1} << 15) / (cols > 0 ? cols : 1);
  return rows < 1 ? 1 : rows;
}

}  // namespace halfstep::model
