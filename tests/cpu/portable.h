// SPDX-License-Identifier: Apache-2.0
// The kernels on vectors of plain arrays, for any machine: the same templates, layouts and order of sums as
// the backends, without their instructions. What remains untested of a backend that this machine cannot run
// is its vector wrapper.
#pragma once

#include "experts/backend.h"
#include "experts/cpu/common/kernel.h"

namespace sluice::testing {

/// Backends "portable.8" and "portable.16", which pack as cpu.avx2 and cpu.avx512 do, and "portable_int8.16",
/// which rounds as their int8 ones.
extern const Backend kPortable8, kPortable16, kPortableInt8;
/// With tiles as cpu.amx and cpu.amx_tiles have them, and the order of their sums. "portable.amx" takes tiles
/// for experts of kPortableTilesFrom tokens and more, "portable.amx_tiles" always.
inline constexpr int kPortableTilesFrom = 4;
extern const Backend kPortableAmx, kPortableAmxTiles;

}  // namespace sluice::testing
