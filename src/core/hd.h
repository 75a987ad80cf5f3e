// SPDX-License-Identifier: Apache-2.0
// Marks the arithmetic that both sides of the bus run, so that CI without a GPU tests the very function a
// kernel calls.
#pragma once

#ifdef __CUDACC__
#define SLUICE_HD __host__ __device__ inline
#else
#define SLUICE_HD inline
#endif
