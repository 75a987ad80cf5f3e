// SPDX-License-Identifier: Apache-2.0
// Calls on tensors that are in a card's memory already, for a program that computes there.
//
// There are no CUDA headers here: a cudaStream_t is a pointer to CUstream_st, and null is the card's default
// stream. Every other pointer is into the memory of the layer's card (DeviceFacts::index of the
// request that it was planned for), or memory that this card reads and writes, and so is `workspace`, at a
// multiple of 256 bytes.
//
// A call puts work into the stream and returns: it allocates nothing, waits for nothing and reads nothing
// back, so that a CUDA graph can hold it. Buffers, the workspace among them, belong to the call until the
// stream has come past it; calls that may run at once, in different streams, have workspaces of their own.
// What is wrong with sizes and combinations throws before anything was started. Values in the card's memory
// are seen by nobody on the host: those that index something are read as said at each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sluice/routing.h"
#include "sluice/tensor.h"

struct CUstream_st;

namespace sluice {

class DeviceLayer;

/// Adapters that stay in the memory of a layer's card (Layer::put_adapters), for device calls of that layer.
/// Calls refer to them until their streams have come past them, and so does a graph that holds one.
class DeviceAdapters {
 public:
  virtual ~DeviceAdapters() = default;
  DeviceAdapters(const DeviceAdapters&) = delete;
  DeviceAdapters& operator=(const DeviceAdapters&) = delete;
  /// Of the card's memory.
  virtual std::int64_t bytes() const = 0;
  const DeviceLayer& layer() const { return layer_; }

 protected:
  explicit DeviceAdapters(const DeviceLayer& layer) : layer_(layer) {}

 private:
  const DeviceLayer& layer_;
};

/// LayerCall with everything on the card. Give `routing`, or `router_logits`, or neither (then the layer's
/// own router runs on `hidden`). The outputs have the bits of Layer::run on the same numbers, if the layer's
/// backend declares batch_invariant, or if both calls hand it as many tokens at a time; otherwise they agree
/// within roundings.
struct DeviceCall {
  RowsView hidden;                            // [tokens, hidden], elements at multiples of their size
  Routing routing = {};                       // optional: ids and weights as given
  const float* router_logits = nullptr;       // optional: [tokens, experts]
  const std::int64_t* token_ids = nullptr;    // [tokens], needed when the router goes by token id; one that
                                              // is outside its table has no experts
  const DeviceAdapters* adapters = nullptr;   // optional
  const std::int32_t* adapter_ids = nullptr;  // [tokens], with `adapters`; one that is none of them is none
  float* experts_out = nullptr;               // optional: [tokens, hidden], the routed part
  float* shared_out = nullptr;                // optional: [tokens, hidden], the shared expert's part
  float* block_out = nullptr;                 // optional: [tokens, hidden], with shared experts
  std::int32_t* topk_ids = nullptr;           // optional: [tokens, top_k], as used
  float* topk_weights = nullptr;              // optional: [tokens, top_k], as used
  std::span<std::byte> workspace = {};        // device_workspace_bytes(n) splits the tokens n at a time
  CUstream_st* stream = nullptr;              // cudaStream_t
};

/// ExpertRows with everything on the card, the counts or offsets too: nobody on the host knows how many rows
/// an expert has. Rows that no expert owns are neither read nor written. The plan's request must have asked
/// for the mode. Row r of `output` has the bits of Layer::run_rows where the backend declares
/// batch_invariant.
struct DeviceRows {
  RowsView hidden;                        // [rows, hidden], elements at multiples of their size
  const std::int32_t* offsets = nullptr;  // contiguous: [local_experts + 1]; ascending from 0, or which rows
                                          // are whose is undefined, but nothing outside is touched
  const std::int32_t* counts = nullptr;   // batched: [local_experts], taken as 0 to max_tokens
  int max_tokens = 0;                     // batched: hidden.rows is local_experts * max_tokens
  const float* weights = nullptr;         // optional: [rows], on the input where the layer weights inputs
  const DeviceAdapters* adapters = nullptr;   // optional
  const std::int32_t* adapter_ids = nullptr;  // [rows], as of DeviceCall
  float* output = nullptr;                    // [rows, hidden]
  std::span<std::byte> workspace = {};        // device_rows_workspace_bytes(n) splits the rows n at a time
  CUstream_st* stream = nullptr;              // cudaStream_t
};

}  // namespace sluice
