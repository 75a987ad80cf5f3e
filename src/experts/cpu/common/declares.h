// SPDX-License-Identifier: Apache-2.0
// What every CPU backend can do: the kernels are one template, so the backends differ in instructions alone.
#pragma once

#include "experts/backend.h"

namespace sluice::cpu {

inline constexpr NameSet<struct FormatTag> kWeights =
    Formats::set<format::F32, format::F16, format::Bf16, format::Mxfp4, format::Nvfp4, format::Fp8Block128,
                 format::Fp8Channel, format::Fp8Tensor, format::Mxfp8, format::Int2, format::Int3,
                 format::Int4, format::Int5, format::Int6, format::Int7, format::Int8, format::Q4_0,
                 format::Q8_0, format::Q4K, format::Q5K, format::Q6K>();

inline constexpr IntegerGroups kIntegerGroups{.multiple = 1, .whole_row = true};

inline constexpr FeatureSet kFeatures =
    Features::set<feature::GateUpBias, feature::DownBias, feature::Limit, feature::Slope, feature::Shift,
                  feature::Saturation, feature::ExpertMap, feature::WeightOnInput, feature::SharedExpert,
                  feature::MixedFormats, feature::MixedExperts, feature::ZeroPoints, feature::ActOrder,
                  feature::Lora, feature::Latent>();

inline constexpr NameSet<struct CallModeTag> kCalls =
    CallModes::set<call::Contiguous, call::Batched, call::BatchInvariant, call::Update>();

}  // namespace sluice::cpu
