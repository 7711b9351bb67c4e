#!/bin/sh
# ccache.sh CCACHE COMPILER ARGUMENTS...: compiles with ccache.
#
# A precompiled header that is made anew is removed first. Where it lies beside its source, ccache
# takes it for what is included: the headers that it is made of are then not looked at, and what
# comes from the cache may be a precompiled header of others.
before=
for argument in "$@"; do
  case "$before $argument" in
    "-o "*.gch | "-o "*.pch) rm -f "$argument" ;;
  esac
  before=$argument
done
CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime exec "$@"
