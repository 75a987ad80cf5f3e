// SPDX-License-Identifier: Apache-2.0
// Memory of a card for tests: copied there, poisoned, copied back.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/devices.h"
#include "experts/backend.h"
#include "sluice/layer.h"
#include "testing/usable_backends.h"

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

inline std::size_t cards() { return detect(DeviceKinds::of<device::Cuda>()).size(); }

/// Skips where there is no card.
class Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (backends().empty()) GTEST_SKIP() << "no card";
  }
};

/// Equal in bits, so that NaN equals itself and 0 is not -0.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace sluice::on_card
