// Runs the GPU kernels of the ops on messages on the host. scripts/emulate_message.py calls them with the
// pointers of their tensors and with their sizes.
#include "fibers.h"
#include "angle_ends/gpu_kernels.h"
#include "message/gpu_run.h"

namespace {

using namespace mdops;

template <class T>
void run(bool plain, double threshold, Pointers next, const int64_t* sizes) {
  MessageArgs<T> a{};
  a.rows = sizes[0], a.inputs = sizes[1], a.sent = sizes[2], a.kept = sizes[3];
  a.firsts = sizes[4], a.seconds = sizes[5], a.activation = static_cast<Activation>(sizes[6]);
  a.threshold = static_cast<T>(threshold), a.groups = sizes[8];
  a.parts = static_cast<int>(sizes[9]);
  for (const int32_t** index :
       {&a.first, &a.first_offsets, &a.second, &a.second_order, &a.second_offsets, &a.group_offsets})
    *index = next();
  for (const T** array : {&a.x, &a.weight, &a.p, &a.q, &a.row_weight, &a.scale, &a.grad_sent, &a.grad_kept,
                          &a.along_x, &a.along_p, &a.along_q, &a.along_row_weight})
    *array = next();
  for (T** array : {&a.to_sent, &a.to_kept, &a.by_x, &a.by_p, &a.by_q, &a.by_row_weight, &a.by_z})
    *array = next();
  gpu_message::Memory<T> memory{};
  memory.dz = next(), memory.of_scales = next();
  MessageFrames<T> frames;
  for (const T** array : {&frames.frame, &frames.grad_moments, &frames.grad_taken}) *array = next();
  frames.by_frame = next();
  for (const int32_t** index : {&frames.taken, &frames.taken_offsets}) *index = next();
  for (const T** array : {&a.outer.number, &a.outer.vector}) *array = next();
  a.outer.by_number = next();
  frames.count = sizes[10], frames.width = sizes[11];
  frames.wanted = frames.frame, a.frames = frames;
  const Gpu gpu({static_cast<int>(sizes[7]), plain ? 70 : 90, 232448});
  gpu_message::run(gpu, a, memory);
}

}  // namespace

extern "C" void run_message(bool is_double, bool plain, double threshold, void** pointers, int64_t* sizes) {
  is_double ? run<double>(plain, threshold, pointers, sizes) : run<float>(plain, threshold, pointers, sizes);
}

extern "C" void run_angle_ends(bool backward, void** pointers, int64_t* sizes) {
  using namespace mdops;
  Pointers next(pointers);
  AngleEndsArgs<float> a{};
  a.rows = sizes[0], a.atoms = sizes[1], a.inputs = sizes[2], a.columns = sizes[3];
  for (const float** array : {&a.x, &a.weight, &a.of_atom, &a.grad_p, &a.grad_q}) *array = next();
  for (const int32_t** index : {&a.index, &a.offsets}) *index = next();
  for (float** array : {&a.p, &a.q, &a.by_x, &a.by_atom}) *array = next();
  const Gpu gpu({static_cast<int>(sizes[4]), 90, 232448});
  backward ? run_angle_end_gradients(gpu, a) : run_angle_ends(gpu, a);
}
