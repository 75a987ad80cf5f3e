// SPDX-License-Identifier: Apache-2.0
// AMX with tiles of bf16, beside AVX-512 with VNNI and VBMI. Compiled with flags of its own, the tiles are
// assembler; see kernel.h for what must therefore not appear here.
#include "experts/cpu/amx/table.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/multiply_amx.h"
#include "experts/cpu/common/tiles_amx.h"
#include "experts/cpu/common/vector_pairs.h"

namespace sluice::cpu {
namespace {

static_assert(Vector::kLanes == kAmxLanes);

struct TileVector : PairVector {
  using Tiles = cpu::Tiles;
};

/// Where tiles overtake (docs/decisions/033-amx-few-tokens.md).
constexpr TilesFrom kFaster{
    .bf16 = 8, .mxfp4 = 4, .nvfp4 = 6, .mxfp8 = 5, .fp8_block128 = 5, .fp8_rows = 7, .int4 = 3};

constexpr KernelTable kTable = with_tiles<TileVector>(make_table<TileVector, Fp4>(), kFaster);
constexpr KernelTable kTilesTable = with_tiles<TileVector>(make_table<TileVector, Fp4>(), {});

}  // namespace

const KernelTable* const kAmxTable = &kTable;
const KernelTable* const kAmxTilesTable = &kTilesTable;

}  // namespace sluice::cpu
