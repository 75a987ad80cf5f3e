// SPDX-License-Identifier: Apache-2.0
#include "tests/cpu/portable.h"

#include "experts/cpu/common/forward.h"
#include "experts/cpu/common/multiply.h"
#include "experts/cpu/common/multiply_int8.h"
#include "experts/cpu/common/pack.h"
#include "tests/cpu/portable_vector.h"

namespace sluice::testing {
namespace {

template <int N>
constexpr cpu::KernelTable kTable = cpu::make_table<Vector<N>, Fp4<N>>();

template <int N>
void run(const PackedExperts& packed, const Forward& call) {
  cpu::forward(kTable<N>, packed, call);
}

constexpr cpu::KernelTable kInt8Table = cpu::make_int8_table<Vector<16>, Fp4<16>>();

void run_int8(const PackedExperts& packed, const Forward& call) { cpu::forward(kInt8Table, packed, call); }

constexpr Kernel kInt8Kernels[] = {{.name = "portable",
                                    .tokens = {},
                                    .estimate_us = nullptr,
                                    .workspace_bytes = cpu::workspace_bytes,
                                    .run = run_int8}};

template <int N>
constexpr Kernel kKernels[] = {{.name = "portable",
                                .tokens = {},
                                .estimate_us = nullptr,
                                .workspace_bytes = cpu::workspace_bytes,
                                .run = run<N>}};

template <int N>
std::span<const Kernel> kernels() {
  return kKernels<N>;
}

template <int N>
std::int64_t packed_bytes(const ExpertsSpec& spec) {
  return cpu::packed_bytes(spec, N);
}

template <int N, const Backend& kOf>
std::unique_ptr<PackedExperts> pack(const PackInput& input) {
  return cpu::pack(kOf, N, input);
}

}  // namespace

constinit const Backend kPortable8{.name = "portable.8",
                                   .can = {.device = DeviceKinds::of<device::Cpu>()},
                                   .pack = pack<8, kPortable8>,
                                   .packed_bytes = packed_bytes<8>,
                                   .kernels = kernels<8>};
constinit const Backend kPortable16{.name = "portable.16",
                                    .can = {.device = DeviceKinds::of<device::Cpu>()},
                                    .pack = pack<16, kPortable16>,
                                    .packed_bytes = packed_bytes<16>,
                                    .kernels = kernels<16>};
constinit const Backend kPortableInt8{.name = "portable_int8.16",
                                      .can = {.device = DeviceKinds::of<device::Cpu>()},
                                      .pack = pack<16, kPortableInt8>,
                                      .packed_bytes = packed_bytes<16>,
                                      .kernels = [] { return std::span<const Kernel>(kInt8Kernels); }};

}  // namespace sluice::testing
