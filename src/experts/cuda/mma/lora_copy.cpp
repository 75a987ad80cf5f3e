// SPDX-License-Identifier: Apache-2.0
#include "experts/cuda/mma/lora_copy.h"

#include <algorithm>
#include <cstring>

#include "experts/cuda/mma/runtime.h"

namespace sluice::cuda {
namespace {

std::ptrdiff_t element_bytes(const LoraMatrix& m) { return bits(m.dtype) / 8; }
std::size_t bytes_of(const LoraMatrix& m) {
  return static_cast<std::size_t>(m.rows * m.cols * element_bytes(m));
}

bool has_dense_rows(const LoraMatrix& m) {
  return (m.cols == 1 || m.col_stride == element_bytes(m)) &&
         (m.rows == 1 || m.row_stride == m.cols * element_bytes(m));
}
bool has_dense_columns(const LoraMatrix& m) {
  return (m.rows == 1 || m.row_stride == element_bytes(m)) &&
         (m.cols == 1 || m.col_stride == m.rows * element_bytes(m));
}

void gather_rows(const LoraMatrix& m, std::byte* to) {
  const auto width = static_cast<std::size_t>(element_bytes(m));
  for (std::int64_t i = 0; i < m.rows; ++i)
    for (std::int64_t k = 0; k < m.cols; ++k, to += width)
      std::memcpy(to, m.data + i * m.row_stride + k * m.col_stride, width);
}

void count(const LoraDelta& delta, Places& places) {
  if (!delta) return;
  places.take<std::byte>(bytes_of(delta.a));
  places.take<std::byte>(bytes_of(delta.b));
}

CardMatrix copy(const LoraMatrix& m, const LoraCopy& to) {
  auto* const at = to.places.take<std::byte>(bytes_of(m));
  const bool columns = has_dense_columns(m), as_it_is = columns || has_dense_rows(m);
  if (!as_it_is) gather_rows(m, to.dense);
  check(cudaMemcpyAsync(at, as_it_is ? m.data : to.dense, bytes_of(m), cudaMemcpyHostToDevice, to.stream),
        "copying an adapter");
  // The next matrix may be made in the same place.
  if (!as_it_is) check(cudaStreamSynchronize(to.stream), "copying an adapter");
  return {at, m.dtype, columns ? 1 : m.cols, columns ? m.rows : 1};
}

CardDelta copy(const LoraDelta& delta, const LoraCopy& to) {
  if (!delta) return {};
  const CardMatrix a = copy(delta.a, to);
  return {a, copy(delta.b, to), delta.scale, delta.rank()};
}

}  // namespace

std::size_t dense_bytes(const ExpertsSpec& spec) {
  return sizeof(float) * static_cast<std::size_t>(spec.lora_rank) *
         static_cast<std::size_t>(std::max(spec.hidden, spec.intermediate));
}

void count(const LoraExpert& expert, Places& places) {
  for (const LoraDelta* delta : {&expert.gate, &expert.up, &expert.down}) count(*delta, places);
}

CardLoraExpert copy(const LoraExpert& expert, const LoraCopy& to) {
  CardLoraExpert made;
  made.gate = copy(expert.gate, to);
  made.up = copy(expert.up, to);
  made.down = copy(expert.down, to);
  return made;
}

}  // namespace sluice::cuda
