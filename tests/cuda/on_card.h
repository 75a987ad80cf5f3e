// SPDX-License-Identifier: Apache-2.0
// Memory of a card for tests: copied there, poisoned, copied back.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/devices.h"
#include "experts/backend.h"
#include "sluice/layer.h"
#include "testing/usable_backends.h"
#include "tests/engine/small_layer.h"

namespace sluice::on_card {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

/// Of the device that is current where it is made.
template <class T>
class Array {
 public:
  explicit Array(std::size_t count) : count_(count) {
    check(cudaMalloc(&data_, bytes() + 1));
    poison();
  }
  explicit Array(std::span<const T> host) : Array(host.size()) { write(host); }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  /// NaN as a float, and an id of nobody.
  void poison() { check(cudaMemset(data_, 0xFF, bytes())); }
  void write(std::span<const T> host) {
    check(cudaMemcpy(data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice));
  }
  std::vector<T> read() const {
    std::vector<T> host(count_);
    check(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost));
    return host;
  }
  T* get() const { return static_cast<T*>(data_); }
  std::span<T> span() const { return {get(), count_}; }

 private:
  std::size_t bytes() const { return count_ * sizeof(T); }
  std::size_t count_;
  void* data_ = nullptr;
};

/// A stream of its own, which waits for nobody.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Backends that take such calls and can run here; none without a card.
inline std::vector<const Backend*> backends() {
  std::vector<const Backend*> found;
  for (const Backend* backend : testing::usable_backends())
    if (backend->on_device != nullptr) found.push_back(backend);
  return found;
}

/// Those of this build, for parameters of tests.
inline std::vector<const Backend*> known_backends() {
  std::vector<const Backend*> found;
  for (const Backend* backend : sluice::backends())
    if (backend->on_device != nullptr) found.push_back(backend);
  return found;
}

inline std::size_t cards() { return detect(DeviceKinds::of<device::Cuda>()).size(); }

/// Skips where there is no card.
class Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends().empty()) GTEST_SKIP() << "no card";
  }
};

/// Of one backend; skips where that cannot run.
class BackendTest : public ::testing::TestWithParam<const Backend*> {
 protected:
  void SetUp() override {
    const std::vector<const Backend*> here = backends();
    if (std::ranges::find(here, GetParam()) == here.end()) GTEST_SKIP() << "no card for it";
  }
  const Backend& backend() const { return *GetParam(); }
  bool batch_invariant() const { return backend().can.calls.has(CallModes::of<call::BatchInvariant>()); }
  /// small::spec() in formats that the backend takes.
  LayerSpec small_spec() const {
    LayerSpec spec = small::spec();
    MatrixFormats& shared = spec.shared->experts.formats;
    if (!backend().can.weights.has(shared.up)) shared = spec.routed.formats;
    return spec;
  }
  Layer small_layer(const LayerSpec& spec, const LayerWeights& weights,
                    std::vector<std::int32_t> expert_map = {}) const {
    return Layer(small::plan_for(spec, std::string(backend().name)), weights,
                 {.expert_map = std::move(expert_map), .executor = make_thread_team(2)});
  }
};

/// Equal in bits, so that NaN equals itself and 0 is not -0.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace sluice::on_card
