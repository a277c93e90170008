// Instantiates functions that are templates over float and double, for both; in a library that is rebuilt for
// a model, for one.
#pragma once

#include "common/each.h"

#ifdef MDOPS_MODEL_FLOAT
#define MDOPS_FOR_FLOATS(one, ...) one(MDOPS_MODEL_FLOAT, __VA_ARGS__)
#else
#define MDOPS_FOR_FLOATS(one, ...) one(float, __VA_ARGS__) one(double, __VA_ARGS__)
#endif

// Functions by name.
#define MDOPS_INSTANTIATE(...) MDOPS_LOOK(MDOPS_EACH(MDOPS_INSTANTIATE_ONE, __VA_ARGS__))
#define MDOPS_INSTANTIATE_ONE(name) MDOPS_FOR_FLOATS(MDOPS_INSTANTIATE_NAME, name)
#define MDOPS_INSTANTIATE_NAME(T, name) template decltype(name<T>) name<T>;

// Classes by name.
#define MDOPS_INSTANTIATE_CLASSES(...) MDOPS_LOOK(MDOPS_EACH(MDOPS_INSTANTIATE_EACH_CLASS, __VA_ARGS__))
#define MDOPS_INSTANTIATE_EACH_CLASS(name) MDOPS_FOR_FLOATS(MDOPS_INSTANTIATE_CLASS, name)
#define MDOPS_INSTANTIATE_CLASS(T, name) template struct name<T>;

// function(op, arguments, ...), with a template `Args`.
#define MDOPS_INSTANTIATE_OF(function, Op, Args, ...) \
  MDOPS_FOR_FLOATS(MDOPS_INSTANTIATE_ARGS, function, Op, Args __VA_OPT__(, ) __VA_ARGS__)
#define MDOPS_INSTANTIATE_ARGS(T, function, Op, Args, ...) \
  template void function(const Op&, const Args<T>& __VA_OPT__(, ) __VA_ARGS__);
