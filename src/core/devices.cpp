// SPDX-License-Identifier: Apache-2.0
// The processor we run on, and devices known by name.
#include "core/devices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/gpus.h"
#include "core/machine.h"

namespace sluice {

template <>
std::span<const std::string_view> DeviceKind::all() {
  return DeviceKinds::kNames;
}

template <>
std::span<const std::string_view> Instruction::all() {
  return InstructionList::kNames;
}

namespace {

using namespace instruction;

// What a compute capability has, as the PTX ISA manual lists it.
constexpr Instructions kSm80 = InstructionList::set<CpAsync, MmaBf16>();
constexpr Instructions kSm89 = kSm80.plus(InstructionList::set<MmaFp8>());
constexpr Instructions kSm90 = kSm89.plus(InstructionList::set<Tma, Wgmma>());
constexpr Instructions kSm100 = kSm89.plus(InstructionList::set<Tma, MmaBlockFp4, Tcgen05>());
constexpr Instructions kSm120 = kSm89.plus(InstructionList::set<Tma, MmaBlockFp4>());

/// What a card of compute capability `least` or newer has, and the dense bf16 operations of a multiprocessor
/// in a clock (the vendor's tuning guides). From the last entry that is not above the card's; 9.0's wgmma and
/// 10's tcgen05 are theirs alone, so what comes after them starts anew.
struct Generation {
  int least;  // 10 * major + minor
  Instructions has;
  int flops_per_clock;
};
constexpr std::array kGenerations = {
    Generation{80, kSm80, 2048},  Generation{86, kSm80, 1024},   Generation{89, kSm89, 1024},
    Generation{90, kSm90, 4096},  Generation{91, kSm89, 1024},   Generation{100, kSm100, 8192},
    Generation{104, kSm89, 1024}, Generation{120, kSm120, 1024}, Generation{122, kSm89, 1024},
};

struct Gpu {
  std::string_view name;
  std::string_view shown;
  Instructions has;
  int multiprocessors;
  double gb_per_second;
  double bf16_tflops;
  int gib;  // a datasheet's "80 GB" are gibibytes, to within a percent
};

// The vendor's datasheet numbers, of nothing measured: memory bandwidth, and the dense bf16 peak with float32
// accumulation. A bare capability is sized as its commonest card.
constexpr std::array kGpus = {
    Gpu{"sm80", "SM80, sized as A100", kSm80, 108, 2039, 312, 80},
    Gpu{"sm86", "SM86, sized as A10", kSm80, 72, 600, 125, 24},
    Gpu{"sm89", "SM89, sized as L40S", kSm89, 142, 864, 362, 48},
    Gpu{"sm90", "SM90, sized as H100", kSm90, 132, 3350, 989, 80},
    Gpu{"sm100", "SM100, sized as B200", kSm100, 148, 8000, 2250, 180},
    Gpu{"sm120", "SM120, sized as RTX 5090", kSm120, 170, 1792, 209, 32},
    Gpu{"a100", "A100 SXM 80 GB", kSm80, 108, 2039, 312, 80},
    Gpu{"a10", "A10", kSm80, 72, 600, 125, 24},
    Gpu{"rtx3090", "RTX 3090", kSm80, 82, 936, 71, 24},
    Gpu{"l4", "L4", kSm89, 58, 300, 121, 24},
    Gpu{"l40s", "L40S", kSm89, 142, 864, 362, 48},
    Gpu{"rtx4090", "RTX 4090", kSm89, 128, 1008, 165, 24},
    Gpu{"h100", "H100 SXM", kSm90, 132, 3350, 989, 80},
    Gpu{"h200", "H200 SXM", kSm90, 132, 4800, 989, 141},
    Gpu{"b200", "B200", kSm100, 148, 8000, 2250, 180},
    Gpu{"rtx5090", "RTX 5090", kSm120, 170, 1792, 209, 32},
};

constexpr Instructions kAvx2Level = InstructionList::set<Avx2, Fma, F16c>();
constexpr Instructions kAvx512Level =
    kAvx2Level.plus(InstructionList::set<Avx512f, Avx512bw, Avx512dq, Avx512vl>());

constexpr Instructions kAvx512Bf16Level =
    kAvx512Level.plus(InstructionList::set<Avx512vbmi, Avx512vnni, Avx512bf16>());

constexpr Instructions kAmxLevel = kAvx512Bf16Level.plus(InstructionList::set<AmxBf16, AmxInt8>());

constexpr std::array<std::string_view, 6> kCpuNames = {
    "auto", "cpu", "cpu.avx2", "cpu.avx512", "cpu.avx512_bf16", "cpu.amx"};

constexpr auto kNames = [] {
  std::array<std::string_view, kCpuNames.size() + kGpus.size()> names{};
  std::copy(kCpuNames.begin(), kCpuNames.end(), names.begin());
  std::transform(kGpus.begin(), kGpus.end(), names.begin() + kCpuNames.size(),
                 [](const Gpu& gpu) { return gpu.name; });
  return names;
}();

DeviceFacts facts_of(const Gpu& gpu) {
  return {.kind = DeviceKinds::of<device::Cuda>(),
          .name = std::string(gpu.shown),
          .has = gpu.has,
          .cores = gpu.multiprocessors,
          .read_gbps = gpu.gb_per_second,
          .peak_gflops = gpu.bf16_tflops * 1000,
          .memory_bytes = std::int64_t{gpu.gib} << 30};
}

/// This machine with these instructions. Estimates: a core reads about 10 GB/s until some eight of them fill
/// the memory channels, and starts two fused multiply-adds a cycle at about 3 GHz.
DeviceFacts cpu_facts(std::string name, Instructions has) {
  const int cores = usable_cores();
  const int lanes = has.has(InstructionList::of<Avx512f>()) ? 16
                    : has.has(InstructionList::of<Avx2>())  ? 8
                                                            : 4;
  return {.kind = DeviceKinds::of<device::Cpu>(),
          .name = std::move(name),
          .has = has,
          .cores = cores,
          .read_gbps = std::min(cores, 8) * 10.0,
          .peak_gflops = cores * 3.0 * lanes * 2 * 2,
          .memory_bytes = memory_bytes()};
}

/// Of "cuda" and "cuda:N"; nothing for other names.
std::optional<std::size_t> place_of_card(std::string_view name) {
  if (name == "cuda") return 0;
  constexpr std::string_view kPrefix = "cuda:";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::size_t place = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, place);
  return error == std::errc() && stop == end ? std::optional(place) : std::nullopt;
}

DeviceFacts card_at(std::size_t place) {
  const std::vector<DeviceFacts> cards = detect(DeviceKinds::of<device::Cuda>());
  require(place < cards.size(), ErrorKind::device, [&] {
    const std::string many = std::to_string(cards.size()) + " CUDA devices";
    return ErrorInfo{.code = "no_device",
                     .what = cards.empty() ? "this machine shows no CUDA device"
                                           : "this machine shows " + many + ", number " +
                                                 std::to_string(place) + " (from 0) was asked for",
                     .why = cards.empty() ? "libcuda.so.1 is missing, or the driver lists no card" : "",
                     .todo = "Name a card to plan for one that is elsewhere, such as \"h200\""};
  });
  return cards[place];
}

}  // namespace

DeviceFacts detect() {
  Processor processor = this_processor();
  return cpu_facts(std::move(processor.name), processor.has);
}

std::vector<DeviceFacts> detect(DeviceKind kind) {
  if (kind == DeviceKinds::of<device::Cpu>()) return {detect()};
  std::vector<DeviceFacts> found;
  for (const GpuReport& report : gpu_reports()) {
    found.push_back(facts_of(report));
    found.back().index = static_cast<int>(found.size()) - 1;
  }
  return found;
}

DeviceFacts facts_of(const GpuReport& report) {
  const Generation* mine = nullptr;
  for (const Generation& each : kGenerations)
    if (each.least <= report.capability) mine = &each;
  DeviceFacts facts{.kind = DeviceKinds::of<device::Cuda>(),
                    .name = report.name,
                    .cores = report.multiprocessors,
                    .memory_bytes = report.memory_bytes};
  // Both edges of the clock.
  facts.read_gbps = 2e-6 * report.memory_clock_khz * report.memory_bus_bits / 8;
  if (mine == nullptr) return facts;
  facts.has = mine->has;
  facts.peak_gflops = 1e-6 * report.clock_khz * report.multiprocessors * mine->flops_per_clock;
  return facts;
}

DeviceFacts known_device(std::string_view name) {
  if (name == "auto" || name == "cpu") return detect();
  if (const std::optional<std::size_t> place = place_of_card(name)) return card_at(*place);
  if (name == "cpu.avx2") return cpu_facts("a CPU with AVX2", kAvx2Level);
  if (name == "cpu.avx512") return cpu_facts("a CPU with AVX-512", kAvx512Level);
  if (name == "cpu.avx512_bf16") return cpu_facts("a CPU with AVX-512 and its bf16", kAvx512Bf16Level);
  if (name == "cpu.amx") return cpu_facts("a CPU with AMX", kAmxLevel);
  for (const Gpu& gpu : kGpus)
    if (gpu.name == name) return facts_of(gpu);
  fail(ErrorKind::invalid_argument, {.code = "unknown_device",
                                     .what = "there is no device \"" + std::string(name) + "\"",
                                     .todo = "known are " + [] {
                                       std::string list;
                                       for (const std::string_view known : kNames)
                                         list += (list.empty() ? "" : ", ") + std::string(known);
                                       return list;
                                     }()});
}

std::span<const std::string_view> known_device_names() { return kNames; }

}  // namespace sluice
