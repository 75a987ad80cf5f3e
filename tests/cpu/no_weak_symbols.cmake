# SPDX-License-Identifier: Apache-2.0
# cmake -DNM=nm -DOBJECTS=a.o;b.o -P no_weak_symbols.cmake
# An object compiled for an instruction set must not define weak symbols: the linker keeps one copy of each for the whole
# program, and a machine without those instructions might then run this one (kernel.h).
foreach(object IN LISTS OBJECTS)
  execute_process(COMMAND ${NM} --defined-only -C ${object} OUTPUT_VARIABLE symbols RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${NM} cannot read ${object}")
  endif()
  string(REGEX MATCHALL "[^\n]* [WVuwv] [^\n]*" weak "${symbols}")
  # Exception tables refer to the personality routine through a weak pointer; it is data, and everybody's is the same.
  list(FILTER weak EXCLUDE REGEX "DW\\.ref\\.")
  if(weak)
    list(JOIN weak "\n  " text)
    message(FATAL_ERROR "${object} defines weak symbols:\n  ${text}")
  endif()
endforeach()
