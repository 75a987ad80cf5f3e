// SPDX-License-Identifier: Apache-2.0
// The lists behind DeviceKind and Instruction. An instruction is named as the vendor names it, lower case.
#pragma once

#include <string_view>

#include "core/choice.h"
#include "sluice/device.h"

namespace sluice {

// clang-format off
namespace device {
struct Cpu { static constexpr std::string_view name = "cpu"; };
struct Cuda { static constexpr std::string_view name = "cuda"; };
}  // namespace device

namespace instruction {
struct Avx2 { static constexpr std::string_view name = "avx2"; };
struct Fma { static constexpr std::string_view name = "fma"; };
struct F16c { static constexpr std::string_view name = "f16c"; };
struct Avx512f { static constexpr std::string_view name = "avx512f"; };
struct Avx512bw { static constexpr std::string_view name = "avx512bw"; };
struct Avx512dq { static constexpr std::string_view name = "avx512dq"; };
struct Avx512vl { static constexpr std::string_view name = "avx512vl"; };
struct Avx512vbmi { static constexpr std::string_view name = "avx512_vbmi"; };
struct Avx512vnni { static constexpr std::string_view name = "avx512_vnni"; };
struct Avx512bf16 { static constexpr std::string_view name = "avx512_bf16"; };
struct AmxBf16 { static constexpr std::string_view name = "amx_bf16"; };
struct AmxInt8 { static constexpr std::string_view name = "amx_int8"; };

struct CpAsync { static constexpr std::string_view name = "cp_async"; };        // SM80 and newer
struct MmaBf16 { static constexpr std::string_view name = "mma_bf16"; };        // SM80 and newer
struct MmaFp8 { static constexpr std::string_view name = "mma_fp8"; };          // SM89 and newer
struct Tma { static constexpr std::string_view name = "tma"; };                 // SM90 and newer
struct Wgmma { static constexpr std::string_view name = "wgmma"; };             // SM90 alone
struct MmaBlockFp4 { static constexpr std::string_view name = "mma_block_fp4"; };  // SM100, SM120
struct Tcgen05 { static constexpr std::string_view name = "tcgen05"; };         // SM100
}  // namespace instruction
// clang-format on

using DeviceKinds = List<struct DeviceKindTag, device::Cpu, device::Cuda>;

using InstructionList =
    List<struct InstructionTag, instruction::Avx2, instruction::Fma, instruction::F16c, instruction::Avx512f,
         instruction::Avx512bw, instruction::Avx512dq, instruction::Avx512vl, instruction::Avx512vbmi,
         instruction::Avx512vnni, instruction::Avx512bf16, instruction::AmxBf16, instruction::AmxInt8,
         instruction::CpAsync, instruction::MmaBf16, instruction::MmaFp8, instruction::Tma,
         instruction::Wgmma, instruction::MmaBlockFp4, instruction::Tcgen05>;

}  // namespace sluice
