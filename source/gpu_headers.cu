// A check at every build: the headers with GPU kernels need nothing of PyTorch (this file is compiled without
// its headers), and more than one source may include them (this one is linked beside those that do).
#include "angle_moment/gpu_kernels.h"
#include "attention/gpu_run.h"
#include "displacements/gpu_kernels.h"
#include "displacements/gpu_pair_sums.h"
#include "dynamics/gpu_kernels.h"
#include "env_mat/gpu_kernels.h"
#include "gemm/gpu_mlp.h"
#include "gemm/gpu_run.h"
#include "lowbit/gpu_run.h"
#include "neighbor/gpu_rows.h"
#include "spline_moment/gpu_kernels.h"
#include "spline_potential/gpu_run.h"
