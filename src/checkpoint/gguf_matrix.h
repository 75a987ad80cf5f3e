// SPDX-License-Identifier: Apache-2.0
// One tensor of a GGUF file as matrices or a vector, checked against the shape that the keys say.
#pragma once

#include "checkpoint/gguf_files.h"
#include "checkpoint/schemes/scheme.h"
#include "sluice/spec.h"

namespace sluice::checkpoint {

/// [experts, rows, cols]; in the file cols come first.
struct GgufShape {
  std::int64_t cols = 1, rows = 1, experts = 1;
};

/// Throws corrupt_file unless the tensor has this shape: what the keys say and what the tensor holds, in
/// numbers.
void check_gguf_shape(const GgufTensor& tensor, const GgufShape& shape);

/// Throws unsupported unless weights are read from the tensor's type.
Format gguf_format(const GgufTensor& tensor);

/// The matrix of one expert, of a tensor whose shape was checked.
WeightMatrix gguf_matrix(const GgufTensor& tensor, const GgufShape& shape, std::int64_t expert);

/// Throws corrupt_file when a scale of a block is NaN, infinite, or negative where that has no meaning. Reads
/// the whole tensor. Zero is what ggml writes for a block of zeros.
void check_gguf_scales(const GgufTensor& tensor);

/// The numbers of one expert; F32, F16 or BF16.
VectorView gguf_vector(const GgufTensor& tensor, const GgufShape& shape, std::int64_t expert);

}  // namespace sluice::checkpoint
