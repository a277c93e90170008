// Instantiates a function that is a template over float and double, for both; a library that is rebuilt for a
// model, for one.
#pragma once

#ifdef MDOPS_MODEL_FLOAT
#define MDOPS_INSTANTIATE(name) template decltype(name<MDOPS_MODEL_FLOAT>) name<MDOPS_MODEL_FLOAT>;
#else
#define MDOPS_INSTANTIATE(name)               \
  template decltype(name<float>) name<float>; \
  template decltype(name<double>) name<double>;
#endif
