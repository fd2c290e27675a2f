# $1: the directory, with fio.tar. fio comes with its own loader and libraries, so it runs on every distribution.
cd "$1" && tar -xf fio.tar && rm fio.tar && cat >fio/run <<RUN && chmod +x fio/run
#!/bin/sh
exec $1/fio/lib/ld-linux-x86-64.so.2 --library-path $1/fio/lib --argv0 fio $1/fio/fio "\$@"
RUN
