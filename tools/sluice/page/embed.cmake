# SPDX-License-Identifier: Apache-2.0
# Writes OUT, a C++ file with a function a file: cmake -DOUT=parts.cpp -DPARTS=name=path,name=path -P embed.cmake
# Bytes and not a literal: the standard promises literals of 65536 characters, and clang warns above.
set(text "// Written by embed.cmake.\n#include \"bench_page.h\"\n\nnamespace sluice::tools::page {\n")
string(REPLACE "," ";" PARTS "${PARTS}")
foreach(part IN LISTS PARTS)
  string(REGEX MATCH "^([a-z_]+)=(.+)$" matched "${part}")
  set(name ${CMAKE_MATCH_1})
  file(READ ${CMAKE_MATCH_2} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND text "\nstd::string_view ${name}() {\n  static constexpr unsigned char kBytes[] = {${bytes}};\n"
                     "  return {reinterpret_cast<const char*>(kBytes), sizeof(kBytes)};\n}\n")
endforeach()
string(APPEND text "\n}  // namespace sluice::tools::page\n")
file(WRITE ${OUT} "${text}")
