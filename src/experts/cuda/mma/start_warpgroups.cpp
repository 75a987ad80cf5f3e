// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "experts/cuda/mma/warpgroup.h"

namespace sluice::cuda {
namespace {

/// What the kernel's barriers take of a block's shared memory, and a ring cannot have.
constexpr int kBesideRing = 1024;
constexpr int kFewestStages = 2;

}  // namespace

WarpgroupKernel warpgroup_kernel(Storage storage, TileLimits tiles) {
  switch (storage) {
    case Storage::fp4_e8m0:
      return warpgroup_fp4_e8m0(tiles);
    case Storage::fp4_e4m3:
      return warpgroup_fp4_e4m3(tiles);
    case Storage::fp8_scaled:
      return warpgroup_fp8_scaled(tiles);
    case Storage::fp8_e8m0:
      return warpgroup_fp8_e8m0(tiles);
    case Storage::int4_g32:
      return warpgroup_int4_g32(tiles);
    case Storage::int4_g128:
      return warpgroup_int4_g128(tiles);
    case Storage::int8_g32:
      return warpgroup_int8_g32(tiles);
    case Storage::int8_g128:
      return warpgroup_int8_g128(tiles);
    default:
      return {};
  }
}

bool has_warpgroups(const ExpertLayout& layout) {
  if (!layout.up.paired) return false;
  for (const StripsLayout* product : {&layout.up, &layout.down}) {
    const WarpgroupKernel kernel = warpgroup_kernel(product->storage, {1, kColumnStep});
    cudaFuncAttributes attributes{};
    if (kernel.function == nullptr) return false;
    if (cudaFuncGetAttributes(&attributes, kernel.function) != cudaSuccess) {
      cudaGetLastError();  // no code for this card, which is an answer
      return false;
    }
  }
  return true;
}

cudaError_t start_warpgroups(WarpgroupProduct product, int most, cudaStream_t stream) {
  const WarpgroupKernel kernel =
      warpgroup_kernel(product.weights.storage, {product.input.terms, most, product.sums});
  int device = 0, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  if (error != cudaSuccess) return error;
  const int tokens = 2 * product.input.terms * most * 2 * kChunkColumns;
  product.stage_bytes = (tokens + kernel.weight_bytes + 1023) / 1024 * 1024;
  product.stages = std::min(kMostStages, (shared - kBesideRing) / product.stage_bytes);
  if (product.stages < kFewestStages) return cudaErrorInvalidConfiguration;
  const auto ring = static_cast<std::size_t>(product.stages * product.stage_bytes);
  return start_everywhere(kernel.function, &product, {kernel.threads, ring}, stream);
}

}  // namespace sluice::cuda
