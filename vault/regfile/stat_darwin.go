package regfile

import "golang.org/x/sys/unix"

// dirFlags opens a directory. Without O_PATH that takes the right to list it.
const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

func times(st *unix.Stat_t) (mtime, ctime int64) { return st.Mtim.Nano(), st.Ctim.Nano() }
