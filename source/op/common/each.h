// A macro for each of several arguments.
#pragma once

// what(x) of each x, as often as the preprocessor rescans.
#define MDOPS_EACH(what, x, ...) what(x) __VA_OPT__(MDOPS_NEXT MDOPS_LATER(what, __VA_ARGS__))
#define MDOPS_NEXT() MDOPS_EACH
#define MDOPS_LATER ()
#define MDOPS_LOOK(...) MDOPS_LOOK_4(MDOPS_LOOK_4(MDOPS_LOOK_4(MDOPS_LOOK_4(__VA_ARGS__))))
#define MDOPS_LOOK_4(...) MDOPS_LOOK_1(MDOPS_LOOK_1(MDOPS_LOOK_1(MDOPS_LOOK_1(__VA_ARGS__))))
#define MDOPS_LOOK_1(...) __VA_ARGS__
