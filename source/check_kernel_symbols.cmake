# Fails when an object compiled for one instruction set defines a symbol outside that set's namespace:
# the linker could choose it for code that runs on every machine.
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+ [VWu] [^\n]+" weak "${symbols}")
  list(FILTER weak EXCLUDE REGEX "isa_(v2|v3|v4|portable)")
  list(FILTER weak EXCLUDE REGEX " V DW\\.ref\\.")  # addresses of the C++ runtime's functions, no code
  if(weak)
    message(FATAL_ERROR "${object} defines symbols shared between instruction sets: ${weak}")
  endif()
endforeach()
