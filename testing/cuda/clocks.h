// SPDX-License-Identifier: Apache-2.0
// What NVML says of a card. It comes with the driver and is asked by name when the program runs; without it,
// or where it may not be asked, nothing is known and nothing fails.
#pragma once

#include <string>

namespace sluice::testing {

class Clocks {
 public:
  /// The card by its place on the bus, "0000:1B:00.0", as the runtime of CUDA tells it.
  explicit Clocks(const std::string& bus_id);

  /// MHz now; 0 where it is not known.
  int sm_mhz() const;
  /// "580.159.04"; empty where it is not known.
  std::string driver() const;

 private:
  int (*clock_)(void* card, int type, unsigned* mhz) = nullptr;
  int (*driver_)(char* text, unsigned size) = nullptr;
  void* card_ = nullptr;
};

}  // namespace sluice::testing
